"""Acting outside of a run: native observations in, native actions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rlexp.envs import ActionCodec, GymEnv, ObsCodec
from rlexp.envs.spec import ACHIEVED
from rlexp.errors import DataError
from rlexp.policy import Policy
from rlexp.seeding import derive_seed


class Predictor:
    """A policy behind the environment's own spaces: what ``env.step`` takes for what ``env.reset`` gave.

    A recurrent policy remembers the observations since the last :meth:`reset`, which begins a new episode. Several
    observations at once are so many episodes side by side; another number of them begins all anew.
    """

    def __init__(self, env: GymEnv, policy: Policy, seed: int = 0) -> None:
        made = env.make()
        self.space: gym.Space = made.observation_space
        self.obs_codec = ObsCodec(made.observation_space)
        self.action_codec = ActionCodec(made.action_space, policy.spec.action)
        self.unseen = {ACHIEVED} if policy.spec.obs.achieved_unseen else set[str]()  # what may be left out
        made.close()
        self.policy = policy
        self.carry: Tensor | None = None  # what a recurrent policy remembers of the episodes
        self.generator = torch.Generator(policy.device).manual_seed(derive_seed(seed, "predict"))

    def __call__(self, obs: Any, *, deterministic: bool = True) -> Any:
        """The action for one observation, or a list of actions for several (a list, or an array with one more axis)."""
        single, many = self._read(obs)
        batch = self.obs_codec.empty(len(many))
        for row, each in enumerate(many):
            self.obs_codec.write(each, batch, row)
        self._check_masks(batch)
        tensor = self.policy.normalized(self.policy.tensor(batch))
        if self.carry is not None and len(self.carry) != len(many):
            self.reset()
        act = self.policy.act(tensor, self.carry, explore=not deterministic, generator=self.generator)
        self.carry = act.carry
        actions = list(self.action_codec.decode(self.policy.env_action(act.action))[1])
        return actions[0] if single else actions

    def reset(self) -> None:
        """Begin new episodes: forget what a recurrent policy remembers."""
        self.carry = None

    def _check_masks(self, batch: Any) -> None:
        """Refuse an action mask under which nothing can be done."""
        mask = self.policy.spec.obs.mask_in(batch)
        if mask is not None:
            sizes = self.policy.spec.action.nvec
            if not np.logical_or.reduceat(mask != 0, np.cumsum([0, *sizes[:-1]]), axis=1).all():
                raise DataError("The action mask leaves no action possible.")

    def _read(self, obs: Any) -> tuple[bool, list[Any]]:
        try:
            return True, [native(self._completed(obs), self.space)]
        except ValueError as problem:
            is_list = isinstance(obs, (Sequence, np.ndarray)) and not isinstance(obs, str) and len(obs) > 0
            if is_list:
                try:
                    return False, [native(self._completed(each), self.space) for each in obs]
                except ValueError:
                    pass
            raise DataError(f"The observation does not fit the environment: {problem}.") from None

    def _completed(self, obs: Any) -> Any:
        """The observation with something in place of what networks do not see, where it was left out."""
        if not isinstance(obs, Mapping) or not isinstance(self.space, spaces.Dict):
            return obs
        missing = {name for name in self.unseen if name not in obs}
        return {**obs, **{name: np.zeros(self.space[name].shape or (), np.float32) for name in missing}}


def native(value: Any, space: gym.Space) -> Any:
    """A value (as JSON has it, or already native) as an element of ``space``; ValueError if it is none."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or set(value) != set(space.spaces):
            raise ValueError(f"it needs the keys {', '.join(space.spaces)}")
        return {key: _part(key, value[key], child) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != len(space.spaces):
            raise ValueError(f"it needs {len(space.spaces)} parts")
        return tuple(_part(str(i), each, child) for i, (each, child) in enumerate(zip(value, space.spaces)))
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError("its rows have different lengths") from error
    if array.dtype.kind not in "biuf":
        raise ValueError("it is not an array of numbers")
    if array.shape != (space.shape or ()):
        raise ValueError(f"its shape is {list(array.shape)} instead of {list(space.shape or ())}")
    if not np.isfinite(array).all():
        raise ValueError("it holds NaN or infinite values")
    if isinstance(space, spaces.Box):
        return array.astype(space.dtype)
    whole = array.astype(np.int64)
    if not np.array_equal(whole, array):
        raise ValueError("it holds fractions where whole numbers are needed")
    element = whole.astype(space.dtype) if space.shape else space.dtype.type(whole)  # type: ignore[union-attr]
    if not space.contains(element):
        raise ValueError(f"{array.tolist()} is not in it")
    return element


def _part(name: str, value: Any, space: gym.Space) -> Any:
    try:
        return native(value, space)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
