"""What the vector-environment tests share: running a backend, and what a counting run must give."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlexp.envs import GymEnv, VecEnv
from rlexp.seeding import numpy_generator
from tests.counting import COUNTING, START, episode_length, episode_seed, offset
from tests.trees import tree_equal

BACKENDS = ("sync", "subprocess")
WORKERS = {"sync": None, "subprocess": 2}


def counting(backend: str = "sync", num_envs: int = 3, **kwargs: Any) -> GymEnv:
    workers = WORKERS[backend]
    return GymEnv(id=COUNTING, kwargs=kwargs, num_envs=num_envs, vectorization=backend, workers=workers)


def random_actions(env: VecEnv, steps: int, seed: int = 0) -> np.ndarray:
    """Canonical actions [steps, N, ...]; continuous ones also beyond their bounds."""
    rng, spec = numpy_generator(seed, "test actions"), env.spec.action
    shape = (steps, env.num_envs, *spec.shape)
    if spec.kind == "continuous":
        return rng.normal(0, 3, shape).astype(np.float32)
    return rng.integers(0, np.array(spec.nvec if spec.shape else spec.nvec[0]), shape)


def play(env: VecEnv, actions: np.ndarray) -> list[Any]:
    return [env.step(action) for action in actions]


def same_steps(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(
        tree_equal(a.obs, b.obs)
        and tree_equal(a.next_obs, b.next_obs)
        and tree_equal(a.reward, b.reward)
        and tree_equal(a.terminated, b.terminated)
        and tree_equal(a.truncated, b.truncated)
        and a.episodes == b.episodes
        for a, b in zip(left, right)
    )


class ExpectedEnv:
    """One counting environment with discrete actions, told by arithmetic."""

    def __init__(self, seed: int, index: int, length: int, stagger: int, end: str) -> None:
        self.seed, self.index, self.length, self.stagger, self.end = seed, index, length, stagger, end
        self.episode, self.t, self.total = 0, 0, 0

    def obs(self) -> list[float]:
        return [offset(self._seed()), self.t, self.total]

    def _seed(self) -> int:
        return episode_seed(self.seed, self.index, self.episode)

    def step(self, action: int) -> dict[str, Any]:
        self.t += 1
        self.total += action + START
        last, reward, seed = self.obs(), self.t, self._seed()
        ended = self.t == episode_length(seed, self.length, self.stagger)
        terminated = ended and (self.end == "terminated" or (self.end == "mixed" and seed % 2 == 0))
        result = {"next_obs": last, "reward": reward, "terminated": terminated, "truncated": ended and not terminated}
        if ended:
            result["episode"] = (self.index, self.t * (self.t + 1) / 2, self.t, {"is_success": float(terminated)})
            self.episode, self.t, self.total = self.episode + 1, 0, 0
        return result | {"obs": self.obs()}
