"""Opening what a run left behind: a run directory, one of its checkpoints, or a checkpoint saved elsewhere.

Nothing of the loaded config is executed unless it is rlexp's own or of a package the user named as trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym

from rlexp.checkpoint import Checkpoint
from rlexp.config.overrides import apply_overrides, refuse_kept
from rlexp.config.trust import Trust, without_strangers
from rlexp.envs.spec import OBS_FLAGS
from rlexp.errors import CheckpointError
from rlexp.run_dir import RunDir
from rlexp.runner import Runner
from rlexp.starting import find_checkpoint


@dataclass
class Loaded:
    """A trained run: what it was made of, and its state at one checkpoint."""

    path: Path
    runner: Runner
    checkpoint: Checkpoint
    run_dir: RunDir | None  # None: a checkpoint that lies outside of a run directory


def load(
    path: Path | str,
    *,
    which: str = "last",
    overrides: Iterable[str] = (),
    trust: Trust,
    env_factory: Callable[[], gym.Env] | None = None,
) -> Loaded:
    """Open a run or checkpoint to act. Callbacks and loggers, which do not run then, need no trust."""
    path = Path(path)
    run_dir, checkpoint = find_checkpoint(path, which)
    if not isinstance(checkpoint.tree.get("policy"), dict):
        raise CheckpointError(f"The checkpoint {checkpoint.path} holds no policy. Use one that rlexp wrote.")
    overrides = list(overrides)
    refuse_kept(checkpoint.config, overrides)
    config = apply_overrides(checkpoint.config, overrides)
    runner = Runner(without_strangers(config, trust), trust=trust, env_factory=env_factory)
    if runner.spec.to_dict() != checkpoint.tree.get("spec"):
        check_same_spaces(runner, checkpoint)
    return Loaded(path, runner, checkpoint, run_dir)


def check_same_spaces(runner: Runner, checkpoint: Checkpoint) -> None:
    """The environment of now must look like the one the networks were built for."""
    saved, now = checkpoint.tree.get("spec"), runner.spec.to_dict()
    for part in ("obs", "action"):
        was = saved.get(part) if isinstance(saved, dict) else None
        if not isinstance(was, dict) or was != {k: v for k, v in now[part].items() if k in was or k not in OBS_FLAGS}:
            raise CheckpointError(
                f"{runner.spec.id} has other {'observations' if part == 'obs' else 'actions'} now than when "
                f"{checkpoint.path} was trained. Leave out the overrides of env, or train anew."
            )
