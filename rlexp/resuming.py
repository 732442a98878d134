"""Continuing a run in its own directory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from rlexp.config.compose import compose
from rlexp.config.continuing import other_loop
from rlexp.config.differences import differences
from rlexp.config.overrides import apply_overrides, parse_override, refuse_kept
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
    if refusal := other_loop(run_dir.config, overrides, run_dir.path, trust):
        raise refusal
    config = _changed(run_dir.config, overrides)
    changes = list(differences(run_dir.config, config))
    before, now = (_settings(each.get("trainer")) for each in (run_dir.config, config))
    goes_on = run_dir.state() != "completed" or any(now.get(name) != before.get(name) for name in STOPPING_FIELDS)
    if goes_on or changes:  # what changes nothing is checked all the same
        runner = Runner(config, trust=trust, env_factory=env_factory)
    if not goes_on:
        changes = [each for each in changes if not each.startswith(("device ", "progress "))]
        idle = f", and {', '.join(changes)} alone gives it nothing to do" if changes else ""
        print(f"{run_dir.path} is completed{idle}. To extend it, give a larger budget, e.g. {_budget(now)}=…")
        return run_dir.summary()
    return runner.resume(run_dir, command, changes=changes, which=checkpoint)


def _changed(config: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """The config with overrides. Loggers hold no state, so they are the one group of which others can be chosen."""
    refuse_kept(config, overrides)
    choices = [each for each in overrides if each.partition("=")[0] == "logger"]
    if choices:
        config = copy.deepcopy(config)
        value = parse_override(choices[-1])[1]
        names = [] if value is None else value if isinstance(value, list) else [value]
        chosen = compose([f"logger=[{','.join(map(str, names))}]"])["logger"]
        kept = _settings(config.get("logger"))
        config["logger"] = {name: kept.get(name, node) for name, node in chosen.items()}
    return apply_overrides(config, [each for each in overrides if each not in choices])


def _budget(trainer: dict[str, Any]) -> str:
    if trainer.get("total_epochs") is not None:
        return "trainer.total_epochs"
    return "trainer.total_updates" if "total_updates" in trainer else "trainer.total_steps"


def _settings(node: Any) -> dict[str, Any]:
    """A node of a config that nobody has checked yet."""
    return node if isinstance(node, dict) else {}
