"""Bit flipping: the smallest environment in which sparse rewards defeat ordinary replay. Free of torch."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class BitFlip(gym.Env):
    """Turn ``n`` bits into a goal, one flip at a time (Andrychowicz et al., 2017, arXiv:1707.01495, section 3.1).

    State and goal are drawn uniformly, and differ. Action i flips bit i. The reward is −1, and 0 when the goal is
    reached, which ends the episode; after ``n`` steps it is truncated. Chance finds one goal in 2ⁿ.
    """

    def __init__(self, n: int = 15) -> None:
        if type(n) is not int or n < 1:
            raise ValueError(f"n must be a whole number from 1, not {n!r}")
        self.n = n
        bits = spaces.MultiBinary(n)
        self.observation_space = spaces.Dict({"observation": bits, "achieved_goal": bits, "desired_goal": bits})
        self.action_space = spaces.Discrete(n)
        self._bits, self._goal = np.zeros(n, np.int8), np.ones(n, np.int8)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """New bits and another goal."""
        super().reset(seed=seed)
        self._bits = self.np_random.integers(0, 2, self.n, np.int8)
        self._goal = self.np_random.integers(0, 2, self.n, np.int8)
        while np.array_equal(self._goal, self._bits):
            self._goal = self.np_random.integers(0, 2, self.n, np.int8)
        self._steps = 0
        return self._observe(), {"is_success": False}

    def step(self, action: Any) -> Any:
        """Flip one bit."""
        self._bits[action] ^= 1
        self._steps += 1
        reached = bool(self.compute_terminated(self._bits, self._goal, {}))
        reward = float(self.compute_reward(self._bits, self._goal, {}))
        return self._observe(), reward, reached, self._steps >= self.n and not reached, {"is_success": reached}

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        """−1 for each row [..., n] in which a bit differs, else 0."""
        return -(achieved_goal != desired_goal).any(-1).astype(np.float64)

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        """Whether the rows [..., n] are equal."""
        return (achieved_goal == desired_goal).all(-1)

    def _observe(self) -> dict[str, np.ndarray]:
        return {
            "observation": self._bits.copy(),
            "achieved_goal": self._bits.copy(),
            "desired_goal": self._goal.copy(),
        }


gym.register("BitFlip-v0", entry_point="rlexp.envs.bit_flip:BitFlip")
