"""Playing episodes to keep them: whoever acts, transitions come out, in time order and in environment units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

import numpy as np
import torch

from rlexp.datasets.transitions import Transitions
from rlexp.envs import GymEnv
from rlexp.envs.spec import EnvSpec
from rlexp.policy import Policy
from rlexp.seeding import derive_seed, numpy_generator
from rlexp.tree import ArrayTree, tree_leaves

FIRST_ROWS = 4096  # room made at first; doubled when it is full


class Manner(Enum):
    """How a trained policy acts while it is recorded."""

    deterministic = "deterministic"  # the greedy action
    stochastic = "stochastic"  # as it explored in training
    epsilon = "epsilon"  # the greedy action, but with probability epsilon a random one


class Actor(Protocol):
    """Who acts in an episode, one environment at a time."""

    def reset(self) -> None:
        """A new episode begins."""

    def __call__(self, obs: ArrayTree) -> np.ndarray:
        """The action [1, …] in environment units for the observation [1, …]."""


class RandomActor:
    """Draws every action uniformly, of those that are possible."""

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        self.spec, self.rng = spec, numpy_generator(seed, "collect", "random")

    def reset(self) -> None:
        """Remembers nothing."""

    def __call__(self, obs: ArrayTree) -> np.ndarray:
        """Any action."""
        return self.spec.action.sample(1, self.rng, self.spec.obs.mask_in(obs))


class PolicyActor:
    """A trained policy."""

    def __init__(self, policy: Policy, manner: Manner, epsilon: float, seed: int) -> None:
        self.policy, self.manner, self.epsilon = policy, manner, epsilon
        self.generator = torch.Generator(policy.device).manual_seed(derive_seed(seed, "collect", "actions"))
        self.other = RandomActor(policy.spec, seed)
        self.rng = numpy_generator(seed, "collect", "epsilon")
        self.carry: Any = None

    def reset(self) -> None:
        """Forget the episode before."""
        self.carry = None

    def __call__(self, obs: ArrayTree) -> np.ndarray:
        """What the policy does, or with probability epsilon any action; it remembers the observation either way."""
        policy = self.policy
        seen = policy.normalized(policy.tensor(obs))
        act = policy.act(seen, self.carry, explore=self.manner is Manner.stochastic, generator=self.generator)
        self.carry = act.carry
        if self.manner is Manner.epsilon and self.rng.random() < self.epsilon:
            return self.other(obs)
        return policy.env_action(act.action)


def record(
    env: GymEnv,
    actors: Sequence[Actor],
    *,
    weights: Sequence[float] | None = None,
    steps: int | None = None,
    episodes: int | None = None,
    seed: int = 0,
    tick: Callable[[int, int], None] = lambda steps, episodes: None,
) -> Transitions:
    """``episodes`` whole episodes, or so many ``steps``; an episode that is cut by their number has no end.

    Each episode is played by one of the actors, drawn with probabilities in proportion to ``weights`` (equal ones).
    """
    spec = env.spec()
    chance = np.asarray(weights or [1.0] * len(actors)) / np.sum(weights or [1.0] * len(actors))
    rng = numpy_generator(seed, "collect", "actor")
    rows = _Rows(spec, steps or FIRST_ROWS)
    finished = 0
    envs = env.build(derive_seed(seed, "collect", "env"), num_envs=1)
    try:
        obs = envs.reset()
        actor = actors[rng.choice(len(actors), p=chance)]
        actor.reset()
        while rows.count < (steps or np.inf) and finished < (episodes or np.inf):
            action = actor(obs)
            step = envs.step(action)
            rows.add(obs, taken(action, spec), step)
            obs = step.obs
            if step.terminated[0] or step.truncated[0]:
                finished += 1
                tick(rows.count, finished)
                actor = actors[rng.choice(len(actors), p=chance)]
                actor.reset()
    finally:
        envs.close()
    return rows.transitions()


def taken(action: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """The environment clips to its bounds; what is kept is what was done."""
    return np.clip(action, *spec.action.bounds) if spec.action.kind == "continuous" else action


class _Rows:
    """Transitions in arrays that grow."""

    def __init__(self, spec: EnvSpec, size: int) -> None:
        self.count, self._single = 0, spec.obs.single
        leaves = spec.obs.leaves.items()
        self._arrays: dict[tuple[str, str], np.ndarray] = {
            (part, name): np.empty((size, *leaf.shape), leaf.dtype)
            for part in ("obs", "next_obs")
            for name, leaf in leaves
        }
        self._arrays["action", ""] = np.empty((size, *spec.action.shape), spec.action.dtype)
        self._arrays["reward", ""] = np.empty(size, np.float32)
        self._arrays["terminated", ""] = np.empty(size, bool)
        self._arrays["truncated", ""] = np.empty(size, bool)

    def add(self, obs: ArrayTree, action: np.ndarray, step: Any) -> None:
        if self.count == len(self._arrays["reward", ""]):
            self._arrays = {key: np.concatenate([array, np.empty_like(array)]) for key, array in self._arrays.items()}
        for part, tree in (("obs", obs), ("next_obs", step.next_obs)):
            for name, leaf in tree_leaves(tree):
                self._arrays[part, name][self.count] = leaf[0]
        for part, value in (("action", action), ("reward", step.reward), ("terminated", step.terminated)):
            self._arrays[part, ""][self.count] = value[0]
        self._arrays["truncated", ""][self.count] = step.truncated[0]
        self.count += 1

    def transitions(self) -> Transitions:
        parts: dict[str, Any] = {}
        for (part, name), array in self._arrays.items():
            if name or (part in ("obs", "next_obs") and not self._single):
                parts.setdefault(part, {})[name] = array[: self.count]
            else:
                parts[part] = array[: self.count]
        return Transitions(**parts)
