"""Wrappers that Gymnasium does not have. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium as gym
import numpy as np

from rlexp.errors import EnvError


class SelectObservation(gym.ObservationWrapper):
    """Shows only some numbers of a vector: ``indices`` of a Box observation with one axis, in their order."""

    def __init__(self, env: gym.Env, indices: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise EnvError(f"SelectObservation needs a vector, a Box with one axis, not {space}.")
        size = space.shape[0]
        known = all(type(index) is int and 0 <= index < size for index in indices)
        if not indices or not known or len(set(indices)) < len(indices):
            raise EnvError(
                f"SelectObservation.indices must be different numbers from 0 to {size - 1}, not {list(indices)}."
            )
        self.indices = np.asarray(indices)
        low, high = space.low[self.indices], space.high[self.indices]
        self.observation_space = gym.spaces.Box(low, high, dtype=space.dtype.type)  # type: ignore[union-attr]

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """The chosen numbers."""
        return observation[self.indices]
