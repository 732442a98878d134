"""No environment at all: the spaces are those of the data, and nobody can be evaluated in them. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlexp.config.component import component
from rlexp.config.fields import Positive
from rlexp.envs.gym_env import GymEnv
from rlexp.envs.spec import OBS_FLAGS, ActionSpec, EnvSpec, Leaf, ObsSpec, with_unseen
from rlexp.errors import ConfigError, EnvError

NAME = "from_dataset"


@component("env", NAME)
@dataclass(eq=False, kw_only=True)
class DatasetEnv(GymEnv):
    """The spaces of the dataset, for offline learning where there is no environment; evaluation is off."""

    id: str = field(init=False, default=NAME)
    kwargs: dict[str, Any] = field(init=False, default_factory=dict)
    wrappers: list[Any] = field(init=False, default_factory=list)
    num_envs: int = field(init=False, default=1)
    vectorization: Any = field(init=False, default="sync")
    workers: int | None = field(init=False, default=None)
    max_episode_steps: int | None = field(init=False, default=None)
    action_repeat: int = field(init=False, default=1)
    frame_stack: int = field(init=False, default=1)
    normalize_reward: bool = field(init=False, default=False)
    reference_returns: list[float] | None = field(init=False, default=None)
    action_limit: Positive | None = None  # continuous actions lie in ± this; null: the dataset's bounds, or its range
    spaces: dict[str, Any] = field(
        default_factory=dict
    )  # filled in when the run begins, so that it needs no data to act

    def fill(self, dataset: Any) -> None:
        """Take the spaces from the dataset, unless an earlier start of the run has done so."""
        if self.spaces:
            return
        if dataset is None:
            raise ConfigError("env=from_dataset takes its spaces from a dataset, but dataset is null. Choose one.")
        if not hasattr(dataset, "spaces"):
            raise ConfigError(
                f"Without an environment the spaces are those of the data, but {type(dataset).__name__} needs one. "
                "Choose an environment (env=…), or data in files: dataset=hdf5 dataset.path=…"
            )
        spec = dataset.spaces(self.action_limit)
        self.spaces = replace(spec, obs=with_unseen(spec.obs, spec.action, self.show_achieved_goal)).to_dict()

    def spec(self) -> EnvSpec:
        """The spaces as they were found."""
        if self._spec is None:
            self._spec = spec_from(self.spaces)
        return self._spec

    def make(self, render_mode: str | None = None) -> gym.Env:
        """Something that has the spaces, and nothing else: a trained policy can be asked, but not played with."""
        return SpacesOnly(self.spec())

    def build(self, seed: int, num_envs: int | None = None, render_mode: str | None = None) -> NoReturn:
        """There is nothing to step."""
        _refuse()


class SpacesOnly(gym.Env):
    """Spaces made from a spec."""

    def __init__(self, spec: EnvSpec) -> None:
        leaves = {name: _space(leaf) for name, leaf in spec.obs.leaves.items()}
        self.observation_space = leaves[""] if spec.obs.single else spaces.Dict(leaves)
        action = spec.action
        if action.kind == "continuous":
            self.action_space: Any = spaces.Box(*action.bounds)
        else:
            self.action_space = (
                spaces.Discrete(action.n) if not action.shape else spaces.MultiDiscrete(list(action.nvec))
            )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> NoReturn:
        """There is nothing to reset."""
        _refuse()

    def step(self, action: Any) -> NoReturn:
        """There is nothing to step."""
        _refuse()


def _space(leaf: Leaf) -> spaces.Space:
    if leaf.kind == "discrete":
        return spaces.Discrete(leaf.nvec[0])
    if leaf.kind == "multi_discrete":
        return spaces.MultiDiscrete(list(leaf.nvec))
    if leaf.kind == "multi_binary":
        return spaces.MultiBinary(leaf.shape[0])
    low, high = (0, 255) if leaf.dtype == "uint8" else (-np.inf, np.inf)
    return spaces.Box(low, high, leaf.shape, np.dtype(leaf.dtype).type)


def _refuse() -> NoReturn:
    raise EnvError("env=from_dataset knows spaces only: there is no environment to play in. Choose one with env=NAME.")


def spec_from(values: Any) -> EnvSpec:
    """The inverse of ``EnvSpec.to_dict`` for what a config, possibly a stranger's, holds."""
    try:
        leaves = {
            str(leaf["name"]): Leaf(
                leaf["kind"],
                tuple(map(int, leaf["shape"])),
                leaf["dtype"],
                tuple(map(int, leaf["nvec"])),
                _number(leaf["low"]),
                _number(leaf["high"]),
            )
            for leaf in values["obs"]["leaves"]
        }
        action = values["action"]
        bounds = [None if action[key] is None else tuple(map(float, action[key])) for key in ("low", "high")]
        nvec, shape = tuple(map(int, action["nvec"])), tuple(map(int, action["shape"]))
        flags = {flag: bool(values["obs"].get(flag, False)) for flag in OBS_FLAGS}
        obs = ObsSpec(leaves, bool(values["obs"]["single"]), **flags)
        return EnvSpec(NAME, obs, ActionSpec(action["kind"], shape, nvec, *bounds))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"env.spaces cannot be read ({error}). Leave it out: the dataset fills it in.") from None


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
