"""An environment that counts, so that every number a loop, buffer or loss computes from it is known in closed form.

Use it as ``GymEnv(id=COUNTING, kwargs={...})``, in this process and in workers. In an episode reset with ``seed``:

- ``offset(seed) = seed % 1000`` marks the episode; its length is ``length + seed % (stagger + 1)``.
- step t = 1, 2, … has reward t, so the return of a whole episode of length L is L (L + 1) / 2.
- the vector observation after t steps is ``[offset, t, total]``: total is the sum of all native action entries so far.
- at t = L the episode ends as ``end`` says: "terminated", "truncated", "both" flags at once, "mixed" (terminated for
  even seeds, truncated for odd ones) or "never".

``episode_seed`` gives the seed that the framework uses, so tests can say what must come out without running anything.
"""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlexp.seeding import derive_seed

COUNTING = "tests.counting:Counting-v0"
IMAGE_SHAPE = (36, 36, 3)  # the smallest that three Atari convolutions can read
START = -2  # first value of the discrete spaces, which the framework must hide

ACTION_SPACES: dict[str, spaces.Space] = {
    "discrete": spaces.Discrete(3, start=START),
    "continuous": spaces.Box(np.array([-1, -2], np.float32), np.array([1, 4], np.float32)),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,)),
    "multi_discrete": spaces.MultiDiscrete([3, 4], start=[START, 1]),
    "multi_binary": spaces.MultiBinary(3),
}
_VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
_COUNT = spaces.Discrete(1000, start=START)
OBS_SPACES: dict[str, spaces.Space] = {
    "vector": _VECTOR,
    "image": spaces.Box(0, 255, IMAGE_SHAPE, np.uint8),
    "discrete": _COUNT,
    "multi_discrete": spaces.MultiDiscrete([1000, 1000], start=[START, 1]),
    "multi_binary": spaces.MultiBinary(10),
    "tuple": spaces.Tuple([_VECTOR, _COUNT]),
    "dict": spaces.Dict(
        {
            "image": spaces.Box(0, 255, IMAGE_SHAPE, np.uint8),
            "inner": spaces.Dict({"count": _COUNT, "bits": spaces.MultiBinary(10)}),
            "vector": _VECTOR,
        }
    ),
}


def episode_seed(seed: int, env: int, episode: int) -> int:
    """The seed that environment ``env`` of a run with ``seed`` is reset with for its episode number ``episode``."""
    return derive_seed(seed, "episode", env, episode)


def offset(seed: int) -> int:
    """The mark of an episode, its first observation entry."""
    return seed % 1000


def episode_length(seed: int, length: int, stagger: int = 0) -> int:
    """How long the episode with this reset seed lasts."""
    return length + seed % (stagger + 1)


def bits(t: int) -> np.ndarray:
    """The step as ten binary digits, lowest first: the multi_binary observation."""
    return np.array([t >> k & 1 for k in range(10)], np.int8)


def image(seed_offset: int, t: int) -> np.ndarray:
    """The image observation: the step everywhere but in one corner, which holds the offset (modulo 256)."""
    pixels = np.full(IMAGE_SHAPE, t % 256, np.uint8)
    pixels[0, 0] = seed_offset % 256
    return pixels


class CountingEnv(gym.Env):
    """See the module. ``crash_at``: the step that raises ("raise") or ends the process ("exit")."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        length: int = 5,
        end: str = "terminated",
        stagger: int = 0,
        action: str = "discrete",
        obs: str = "vector",
        forgetful: bool = True,  # False: `total` carries over to the next episode, which no seed can restore
        crash_at: int | None = None,
        crash: str = "raise",
        render_mode: str | None = None,
    ) -> None:
        assert end in ("terminated", "truncated", "both", "mixed", "never")
        self.observation_space, self.action_space = OBS_SPACES[obs], ACTION_SPACES[action]
        self.length, self.end, self.stagger, self.kind = length, end, stagger, obs
        self.forgetful, self.crash_at, self.crash, self.render_mode = forgetful, crash_at, crash, render_mode
        self.seed, self.t, self.total = 0, 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seed = self.seed + 1 if seed is None else seed
        self.t = 0
        if self.forgetful:
            self.total = 0.0
        return self._observe(self.kind), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in self.action_space, f"{action!r} is not in {self.action_space}"
        self.t += 1
        if self.t == self.crash_at:
            if self.crash == "exit":
                os._exit(7)
            raise RuntimeError(f"crashed at step {self.t}")
        self.total += float(np.sum(action))
        terminated = truncated = False
        info: dict[str, Any] = {}
        if self.end != "never" and self.t >= episode_length(self.seed, self.length, self.stagger):
            odd = self.seed % 2 == 1
            terminated = self.end in ("terminated", "both") or (self.end == "mixed" and not odd)
            truncated = self.end in ("truncated", "both") or (self.end == "mixed" and odd)
            info["is_success"] = terminated
        return self._observe(self.kind), float(self.t), terminated, truncated, info

    def _observe(self, kind: str) -> Any:
        if kind == "vector":
            return np.array([offset(self.seed), self.t, self.total], np.float32)
        if kind == "image":
            return image(offset(self.seed), self.t)
        if kind == "discrete":
            return self.t + START
        if kind == "multi_discrete":
            return np.array([offset(self.seed) + START, self.t + 1], np.int64)
        if kind == "multi_binary":
            return bits(self.t)
        if kind == "tuple":
            return self._observe("vector"), self._observe("discrete")
        inner = {"count": self._observe("discrete"), "bits": self._observe("multi_binary")}
        return {"image": self._observe("image"), "inner": inner, "vector": self._observe("vector")}

    def render(self) -> np.ndarray:
        return image(offset(self.seed), self.t)


gym.register("Counting-v0", entry_point="tests.counting:CountingEnv")
