"""Opening what a run left behind: a run directory, one of its checkpoints, or a checkpoint saved elsewhere.

Nothing of the loaded config is executed unless it is rlexp's own or of a package the user named as trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlexp.checkpoint import Checkpoint
from rlexp.config.check import build
from rlexp.config.component import target_of
from rlexp.config.compose import compose
from rlexp.config.overrides import apply_overrides, refuse_kept
from rlexp.config.trust import Trust, without_strangers
from rlexp.datasets.repairs import out_of_bounds
from rlexp.envs import DatasetEnv, GymEnv
from rlexp.envs.spec import OBS_FLAGS, EnvSpec, same_form
from rlexp.errors import CheckpointError, ConfigError
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
    env: GymEnv  # to play in: the run's own, or the chosen one, where a run that learned from data alone has none


def load(
    path: Path | str,
    *,
    which: str = "last",
    overrides: Iterable[str] = (),
    trust: Trust,
    env_factory: Callable[[], gym.Env] | None = None,
    playing: bool = False,
) -> Loaded:
    """Open a run or checkpoint to act. Callbacks and loggers, which do not run then, need no trust.

    ``playing``: for a run without an environment, overrides may choose one: ``env=NAME env.key=value``.
    """
    path = Path(path)
    run_dir, checkpoint = find_checkpoint(path, which)
    if not isinstance(checkpoint.tree.get("policy"), dict):
        raise CheckpointError(f"The checkpoint {checkpoint.path} holds no policy. Use one that rlexp wrote.")
    overrides, chosen = list(overrides), list[str]()
    if playing and _from_dataset(checkpoint.config) and any(each.startswith("env=") for each in overrides):
        chosen = [each for each in overrides if each.lstrip("+").startswith(("env=", "env."))]
        overrides = [each for each in overrides if each not in chosen]
    refuse_kept(checkpoint.config, overrides)
    config = apply_overrides(checkpoint.config, overrides)
    runner = Runner(without_strangers(config, trust), trust=trust, env_factory=env_factory)
    if runner.spec.to_dict() != checkpoint.tree.get("spec"):
        check_same_spaces(runner, checkpoint)
    env = _chosen_env(chosen, runner.spec) if chosen else runner.env
    return Loaded(path, runner, checkpoint, run_dir, env)


def _from_dataset(config: dict[str, Any]) -> bool:
    env = config.get("env")
    return isinstance(env, dict) and env.get("_target_") == target_of(DatasetEnv)


def _chosen_env(overrides: list[str], spec: EnvSpec) -> GymEnv:
    """The environment that the user chooses for a policy with these spaces, if they agree."""
    env: GymEnv = build("env", compose(overrides)["env"])
    if env.normalize_obs or env.normalize_reward:
        raise ConfigError("A trained policy normalises as it has learned to: leave out env.normalize_obs and _reward.")
    theirs = env.spec()
    if not same_form(theirs.obs, spec.obs):
        raise ConfigError(
            f"{theirs.id} has other observations ({theirs.obs.form}) than the data that the policy was trained on "
            f"({spec.obs.form}). Choose the environment that the data was collected in."
        )
    if (theirs.action.kind, theirs.action.shape, theirs.action.nvec) != (
        spec.action.kind,
        spec.action.shape,
        spec.action.nvec,
    ):
        raise ConfigError(
            f"{theirs.id} takes other actions ({theirs.action.form}) than the data has that the policy was trained on "
            f"({spec.action.form}). Choose the environment that the data was collected in."
        )
    if spec.action.kind == "continuous" and out_of_bounds(np.stack(spec.action.bounds), theirs.action).any():
        raise ConfigError(
            f"The policy acts in {spec.action.form}, but {theirs.id} takes {theirs.action.form}. Train it again on the "
            "data, within the limits of the environment: env.action_limit=…"
        )
    return env


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
