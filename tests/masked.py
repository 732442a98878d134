"""An environment that forbids actions, and fails when a forbidden one is taken."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SIZES = (3, 4)  # of the multi-discrete form
MASKED = "rlexp-tests/Masked-v0"


class Masked(gym.Env):
    """Which actions are possible changes at random with every step; episodes last seven steps, the third one is cut.

    ``tells``: where the mask is found: method, info or obs. ``multi``: two variables instead of one.
    """

    def __init__(self, tells: str = "info", multi: bool = False) -> None:
        self.tells, self.multi = tells, multi
        self.sizes = SIZES if multi else (5,)
        self.action_space = spaces.MultiDiscrete(SIZES) if multi else spaces.Discrete(5, start=2)
        self.observation_space = spaces.Box(-1, 1, (3,))
        if tells == "obs":
            mask = spaces.Box(0, 1, (sum(self.sizes),), np.int8)
            self.observation_space = spaces.Dict({"place": self.observation_space, "action_mask": mask})  # type: ignore[assignment]
        if tells == "method":
            self.action_masks = lambda: self.mask

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe()

    def step(self, action: Any) -> Any:
        taken = np.atleast_1d(action) - (0 if self.multi else 2)
        for part, choice in zip(np.split(self.mask, np.cumsum(self.sizes)[:-1]), taken, strict=True):
            assert part[choice], f"{choice} is not possible: {part}"
        self.steps += 1
        obs, info = self._observe()
        return obs, 1.0, self.steps == 7, self.steps == 3 and self.np_random.random() < 0.3, info

    def _observe(self) -> Any:
        self.mask = self.np_random.random(sum(self.sizes)) < 0.4
        for start, size in zip(np.cumsum([0, *self.sizes[:-1]]), self.sizes):
            self.mask[start + self.np_random.integers(size)] = True
        place = self.observation_space["place"] if self.tells == "obs" else self.observation_space  # type: ignore[index]
        obs = self.np_random.uniform(-1, 1, place.shape).astype(np.float32)
        info = {"action_mask": self.mask.copy()} if self.tells == "info" else {}
        return ({"place": obs, "action_mask": self.mask.astype(np.int8)} if self.tells == "obs" else obs), info


if MASKED not in gym.registry:
    gym.register(MASKED, Masked)
