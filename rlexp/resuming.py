"""Continuing a run in its own directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from rlexp.config.overrides import apply_overrides
from rlexp.config.trust import Trust
from rlexp.run_dir import RunDir
from rlexp.runner import Runner
from rlexp.trainers.base import STOPPING_FIELDS


def resume_run(
    path: Path | str,
    overrides: Iterable[str] = (),
    *,
    trust: Trust,
    checkpoint: str = "last",
    command: Sequence[str] = (),
    env_factory: Callable[[], gym.Env] | None = None,
) -> dict[str, Any]:
    """Continue a run exactly where its newest whole checkpoint (or another) stands; returns the summary.

    A run without a checkpoint starts again from its saved config. A completed one is left alone unless overrides (a
    larger budget, another threshold) give it something to do.
    """
    run_dir = RunDir.open(path)
    overrides = list(overrides)
    config = apply_overrides(run_dir.config, overrides)
    changed = config != run_dir.config
    before, now = (_settings(each.get("trainer")) for each in (run_dir.config, config))
    if run_dir.state() == "completed" and all(now.get(name) == before.get(name) for name in STOPPING_FIELDS):
        print(f"{run_dir.path} is completed. To extend it, give a larger budget, e.g. trainer.total_steps=…")
        return run_dir.summary()
    runner = Runner(config, trust=trust, env_factory=env_factory)
    return runner.resume(run_dir, command, changed=changed, which=checkpoint)


def _settings(node: Any) -> dict[str, Any]:
    """A node of a config that nobody has checked yet."""
    return node if isinstance(node, dict) else {}
