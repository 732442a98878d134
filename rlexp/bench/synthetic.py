"""An environment and data with the shapes of a MuJoCo locomotion task (17 observations, 6 actions) but no physics.

Offline updates cost the same whatever the numbers mean, so nobody needs MuJoCo to measure them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

OBSERVATIONS, ACTIONS, EPISODE = 17, 6, 1000
NAME = "rlexp/Synthetic-v0"
ENV_ID = f"{__name__}:{NAME}"


class Synthetic(gym.Env):
    """Observations and rewards are noise."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (OBSERVATIONS,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (ACTIONS,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Begin an episode."""
        super().reset(seed=seed)
        return self._noise(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """One step; episodes are ended by the time limit."""
        return self._noise(), float(self.np_random.standard_normal()), False, False, {}

    def _noise(self) -> np.ndarray:
        return self.np_random.standard_normal(OBSERVATIONS, np.float32)


def write_data(path: Path, size: int, seed: int = 0) -> None:
    """``size`` transitions under D4RL's names, in episodes that end by timeout."""
    rng = np.random.default_rng(seed)
    chain = rng.standard_normal((size + 1, OBSERVATIONS), np.float32)
    timeouts = np.zeros(size, bool)
    timeouts[EPISODE - 1 :: EPISODE] = True
    timeouts[-1] = True
    next_obs = chain[1:].copy()
    next_obs[timeouts] = rng.standard_normal((int(timeouts.sum()), OBSERVATIONS), np.float32)  # not the next beginning
    np.savez(
        path,
        observations=chain[:-1],
        next_observations=next_obs,
        actions=rng.uniform(-1, 1, (size, ACTIONS)).astype(np.float32),
        rewards=rng.standard_normal(size, np.float32),
        terminals=np.zeros(size, bool),
        timeouts=timeouts,
    )


if NAME not in gym.registry:
    gym.register(NAME, entry_point=f"{__name__}:Synthetic", max_episode_steps=EPISODE)
