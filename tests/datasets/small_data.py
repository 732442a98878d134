"""Small datasets and the environments they fit."""

from __future__ import annotations

import numpy as np

from rlexp.datasets.transitions import Transitions
from rlexp.envs.spec import ActionSpec, EnvSpec, Leaf, ObsSpec

BOX = ActionSpec("continuous", (2,), low=(-2.0, -1.0), high=(2.0, float("inf")))
VECTOR = EnvSpec("Vector-v0", ObsSpec({"": Leaf("box", (3,), "float32")}, single=True), BOX)
LEAVES = {
    "arm/joint": Leaf("box", (2,), "float32"),
    "image": Leaf("box", (2, 2), "uint8"),
    "room": Leaf("discrete", (), "int64", (9,)),
    "keys": Leaf("multi_binary", (3,), "int8"),
}
DICT = EnvSpec("Dict-v0", ObsSpec(LEAVES, single=False), ActionSpec("multi_discrete", (2,), nvec=(3, 5)))


class FixedEnv:
    """As much of an environment as a file needs."""

    def __init__(self, spec: EnvSpec) -> None:
        self._spec = spec

    def spec(self) -> EnvSpec:
        """What was given."""
        return self._spec


def vector_data(count: int = 12, seed: int = 0) -> Transitions:
    """One chain, cut into episodes: terminated in row 3, truncated in row 7."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(count, 3)).astype(np.float32)
    next_obs = np.concatenate([obs[1:], rng.normal(size=(1, 3)).astype(np.float32)])
    terminated, truncated = np.arange(count) == 3, np.arange(count) == 7
    next_obs[terminated | truncated] += 1
    action = rng.uniform(-1, 1, (count, 2)).astype(np.float32)
    return Transitions(obs, action, rng.normal(size=count).astype(np.float32), next_obs, terminated, truncated)


def dict_data(count: int = 6, seed: int = 0) -> Transitions:
    """Dict observations and two discrete actions."""
    rng = np.random.default_rng(seed)

    def observe() -> dict[str, np.ndarray]:
        return {
            "arm/joint": rng.normal(size=(count, 2)).astype(np.float32),
            "image": rng.integers(0, 256, (count, 2, 2)).astype(np.uint8),
            "room": rng.integers(0, 9, count),
            "keys": rng.integers(0, 2, (count, 3)).astype(np.int8),
        }

    flags = np.zeros(count, bool)
    action = np.stack([rng.integers(0, 3, count), rng.integers(0, 5, count)], 1)
    return Transitions(observe(), action, rng.normal(size=count).astype(np.float32), observe(), flags, flags)
