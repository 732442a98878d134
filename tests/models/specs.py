"""Specs by hand, so that these tests need no environment."""

from __future__ import annotations

from rlexp.envs.spec import ActionSpec, EnvSpec, Leaf, ObsSpec

DISCRETE = ActionSpec("discrete", (), (3,))


def box(*shape: int) -> Leaf:
    return Leaf("box", shape, "float32")


def image(*shape: int) -> Leaf:
    return Leaf("box", shape, "uint8", low=0.0, high=255.0)


def discrete(n: int) -> Leaf:
    return Leaf("discrete", (), "int64", (n,))


def multi_discrete(*nvec: int) -> Leaf:
    return Leaf("multi_discrete", (len(nvec),), "int64", nvec)


def obs_spec(leaf: Leaf | None = None, **leaves: Leaf) -> ObsSpec:
    return ObsSpec(leaves, single=False) if leaf is None else ObsSpec({"": leaf}, single=True)


def env_spec(leaf: Leaf | None = None, **leaves: Leaf) -> EnvSpec:
    return EnvSpec("test", obs_spec(leaf, **leaves), DISCRETE)
