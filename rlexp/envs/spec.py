"""What an environment takes and gives, as plain frozen values that models, buffers and checkpoints read.

Observations are one array or a flat dict of arrays (see :mod:`rlexp.tree`), actions one array; both in the canonical
form described by :class:`Leaf` and :class:`ActionSpec`. Free of torch, and of Gymnasium until ``spec_of`` is called.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import gymnasium as gym

MASK = "action_mask"  # the leaf that says which actions are possible: 1 or 0 for each
ACHIEVED, DESIRED = "achieved_goal", "desired_goal"  # leaves of a goal environment, beside its `observation`
OBS_FLAGS = ("masked", "achieved_unseen")  # of ObsSpec; checkpoints of earlier versions do not have them
LEAF_KINDS = ("box", "discrete", "multi_discrete", "multi_binary")
ACTION_KINDS = ("discrete", "continuous", "multi_discrete", "multi_binary")


def channels_first(shape: tuple[int, ...]) -> bool:
    """Whether the last three axes of an image's shape are (channels, height, width)."""
    return shape[-3] <= shape[-1]


@dataclass(frozen=True)
class Leaf:
    """One array of an observation."""

    kind: str  # box, discrete, multi_discrete or multi_binary
    shape: tuple[int, ...]  # of one observation: discrete (), multi_discrete and multi_binary (k,), box its own
    dtype: str  # delivered and stored as: "uint8" or "float32" (box), "int64" (discrete kinds), "int8" (multi_binary)
    nvec: tuple[int, ...] = ()  # sizes of the discrete kinds
    low: float | None = None  # box: the bound when it is the same for all elements, else None
    high: float | None = None
    stack: int = 1  # box: the first axis holds so many of the newest frames, the oldest first; 1: it is no stack

    def __post_init__(self) -> None:
        dtypes = {"box": ("uint8", "float32"), "multi_binary": ("int8",)}.get(self.kind, ("int64",))
        sizes = {"discrete": 1, "multi_discrete": math.prod(self.shape)}.get(self.kind, 0)
        ranks = {"discrete": 0, "multi_discrete": 1, "multi_binary": 1}
        _require(self.kind in LEAF_KINDS, f"unknown kind {self.kind!r}")
        _require(min(self.shape, default=0) >= 0, f"shape {self.shape} has a negative size")
        _require(self.dtype in dtypes, f"a {self.kind} leaf has dtype {' or '.join(dtypes)}, not {self.dtype!r}")
        _require(len(self.shape) == ranks.get(self.kind, len(self.shape)), f"{self.kind} cannot have {self.shape}")
        _require(len(self.nvec) == sizes and min(self.nvec, default=1) > 0, f"{self.kind} cannot have {self.nvec}")
        _require(self.stack == 1 or self.shape[:1] == (self.stack,), f"{self.shape} is no stack of {self.stack}")


@dataclass(frozen=True)
class ObsSpec:
    """The arrays of an observation by name; a bare array (``single``) is the leaf named ``""``."""

    leaves: dict[str, Leaf]
    single: bool
    masked: bool = False  # the leaf ``action_mask`` says which actions are possible; networks do not see it
    achieved_unseen: bool = False  # networks do not see the leaf ``achieved_goal`` either

    def __post_init__(self) -> None:
        _require(len(self.leaves) > 0, "an observation needs at least one array")
        _require(not self.single or list(self.leaves) == [""], "a bare array is one leaf named ''")

    def __hash__(self) -> int:
        return hash((tuple(self.leaves.items()), self.single, self.masked, self.achieved_unseen))

    @property
    def form(self) -> str:
        """For people: ``float32 (3,)``, or the same of each entry."""
        entries = [f"{name} {leaf.dtype} {leaf.shape}".strip() for name, leaf in self.leaves.items()]
        return ", ".join(entries)

    def mask_in(self, obs: Any) -> Any:
        """The action mask of an observation, or None."""
        return obs[MASK] if self.masked else None

    @property
    def has_goals(self) -> bool:
        """Whether this is the observation of a goal environment: `observation`, `achieved_goal`, `desired_goal`.

        Both goals are one array of the same form, so that what was achieved can take the place of what was desired.
        """
        achieved, desired = self.leaves.get(ACHIEVED), self.leaves.get(DESIRED)
        same = achieved is not None and desired is not None and _form(achieved) == _form(desired)
        return same and any(name.partition("/")[0] == "observation" for name in self.leaves)

    @property
    def seen(self) -> dict[str, Leaf]:
        """The leaves that networks are given."""
        unseen = {MASK} if self.masked else set()
        unseen |= {ACHIEVED} if self.achieved_unseen else set()
        return {name: leaf for name, leaf in self.leaves.items() if name not in unseen}


@dataclass(frozen=True)
class ActionSpec:
    """One action in canonical form: zero-based integers, or a float32 vector in environment units."""

    kind: str  # discrete, continuous, multi_discrete or multi_binary
    shape: tuple[int, ...]  # discrete (), continuous (D,), multi_discrete and multi_binary (k,)
    nvec: tuple[int, ...] = ()  # discrete (n,), multi_discrete its sizes, multi_binary (2,)*k, continuous ()
    low: tuple[float, ...] | None = None  # continuous: D bounds, ±inf where there is none; float32 values
    high: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        continuous, size = self.kind == "continuous", math.prod(self.shape)
        _require(self.kind in ACTION_KINDS, f"unknown kind {self.kind!r}")
        _require(len(self.shape) == (self.kind != "discrete") and size > 0, f"{self.kind} cannot have {self.shape}")
        sizes = 0 if continuous else size
        _require(len(self.nvec) == sizes and min(self.nvec, default=1) > 0, f"{self.kind} cannot have {self.nvec}")
        _require(self.kind != "multi_binary" or set(self.nvec) == {2}, "multi_binary has two values each")
        if not continuous:
            _require(self.low is None and self.high is None, f"{self.kind} has no bounds")
        else:
            bounded = self.low is not None and self.high is not None
            _require(bounded and len(self.low or ()) == len(self.high or ()) == size, f"{size} bounds are needed")
            _require(all(a <= b for a, b in zip(self.low or (), self.high or ())), "low is above high")

    @property
    def form(self) -> str:
        """For people: ``2 numbers from -1 to 1``, or ``one of 3``."""
        if self.kind == "continuous":
            low, high = min(self.low or (0.0,)), max(self.high or (0.0,))
            return f"{self.dim} number{'s' if self.dim != 1 else ''} from {low:g} to {high:g}"
        return f"one of {' and one of '.join(map(str, self.nvec))}"

    @property
    def dtype(self) -> str:
        """NumPy dtype of canonical actions."""
        return "float32" if self.kind == "continuous" else "int64"

    @property
    def n(self) -> int:
        """Number of discrete actions."""
        if self.kind != "discrete":
            raise ValueError(f"{self.kind} actions have no single number of choices")
        return self.nvec[0]

    @property
    def dim(self) -> int:
        """Length of an action vector; 1 for a discrete action."""
        return math.prod(self.shape)

    @cached_property
    def bounded(self) -> bool:
        """Continuous, and every bound is finite."""
        return self.kind == "continuous" and all(map(math.isfinite, (self.low or ()) + (self.high or ())))

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Low and high of a continuous action as read-only float32 arrays [D]."""
        low, high = np.array(self.low, np.float32), np.array(self.high, np.float32)
        low.flags.writeable = high.flags.writeable = False
        return low, high

    def to_env(self, action: Any) -> Any:
        """Agent units [-1, 1] to environment units, for NumPy arrays and torch tensors [..., D].

        Only bounded continuous actions have two units; anything else is returned as it is.
        """
        if not self.bounded:
            return action
        centre, half = self._affine
        return _like(centre, action) + _like(half, action) * action

    def from_env(self, action: Any) -> Any:
        """Environment units to agent units: the inverse of :meth:`to_env`."""
        if not self.bounded:
            return action
        centre, half = self._affine
        return (action - _like(centre, action)) / _like(np.where(half > 0, half, np.float32(1)), action)

    def sample(self, count: int, rng: np.random.Generator, mask: np.ndarray | None = None) -> np.ndarray:
        """Uniform actions [count, …] in environment units, of those that a ``mask`` [count, Σ nvec] allows.

        A continuous dimension without bounds is drawn from the standard normal distribution, one with a single bound
        from the exponential distribution starting there.
        """
        if mask is not None:
            chances = np.where(mask != 0, rng.random(mask.shape), -1.0)
            parts = np.split(chances, np.cumsum(self.nvec)[:-1], axis=1)
            return np.stack([part.argmax(1) for part in parts], 1).reshape(count, *self.shape)
        if self.kind == "discrete":
            return rng.integers(0, self.n, count)
        if self.kind != "continuous":
            return rng.integers(0, np.array(self.nvec), (count, *self.shape))
        action = np.empty((count, *self.shape), np.float32)
        for i, (low, high) in enumerate(zip(self.low or (), self.high or ())):
            if np.isfinite(low) and np.isfinite(high):
                action[:, i] = np.clip(rng.uniform(low, high, count), low, high)
            elif np.isfinite(low):
                action[:, i] = low + rng.exponential(size=count)
            elif np.isfinite(high):
                action[:, i] = high - rng.exponential(size=count)
            else:
                action[:, i] = rng.standard_normal(count)
        return action

    @cached_property
    def _affine(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = (np.array(bound, np.float64) for bound in (self.low, self.high))  # float32 might overflow
        return ((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)


@dataclass(frozen=True)
class EnvSpec:
    """Everything about an environment that an agent is built from."""

    id: str
    obs: ObsSpec
    action: ActionSpec
    max_episode_steps: int | None = None
    reward_threshold: float | None = None  # the return at which the task counts as solved

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values. Leaves are a list because their names may contain ``/``; ±inf is written as text."""
        return {
            "id": self.id,
            "obs": {
                "single": self.obs.single,
                "leaves": [{"name": name, **_plain(leaf)} for name, leaf in self.obs.leaves.items()],
                **{flag: getattr(self.obs, flag) for flag in OBS_FLAGS},
            },
            "action": _plain(self.action),
            "max_episode_steps": self.max_episode_steps,
            "reward_threshold": _to_json(self.reward_threshold),
        }


def spec_of(env: gym.Env, action_limit: float | None = None, *, show_achieved_goal: bool = False) -> EnvSpec:
    """The spec of a Gymnasium environment; ``action_limit`` bounds the Box action dimensions that have no bound.

    ``show_achieved_goal``: networks see what a goal environment says was achieved.
    """
    from rlexp.envs.spaces import action_spec, observation_spec  # here, so that reading a spec needs no Gymnasium

    registered = env.spec
    threshold = registered.reward_threshold if registered else None
    obs, action = observation_spec(env.observation_space), action_spec(env.action_space, action_limit)
    return EnvSpec(
        id=registered.id if registered else type(env.unwrapped).__name__,
        obs=with_unseen(obs, action, show_achieved_goal),
        action=action,
        max_episode_steps=registered.max_episode_steps if registered else _time_limit(env),
        reward_threshold=None if threshold is None else float(threshold),
    )


def with_unseen(obs: ObsSpec, action: ActionSpec, show_achieved_goal: bool) -> ObsSpec:
    """The observation with what networks are not given: a mask of the actions, and the achieved goal if it is to be."""
    mask = obs.leaves.get(MASK)
    fits = mask is not None and mask.shape == (sum(action.nvec),)
    masked = fits and action.kind in ("discrete", "multi_discrete")
    return replace(obs, masked=masked, achieved_unseen=obs.has_goals and not show_achieved_goal)


def same_form(one: ObsSpec, other: ObsSpec) -> bool:
    """Whether observations have the same arrays, whatever the limits of their values."""
    forms = [{name: _form(leaf) for name, leaf in each.leaves.items()} for each in (one, other)]
    return one.single == other.single and forms[0] == forms[1]


def _form(leaf: Leaf) -> tuple[Any, ...]:
    return leaf.kind, leaf.shape, leaf.dtype, leaf.nvec


def _time_limit(env: Any) -> int | None:
    """The limit of the outermost TimeLimit of an environment that has no registration to read it from."""
    while hasattr(env, "env"):
        if (limit := vars(env).get("_max_episode_steps")) is not None:
            return int(limit)
        env = env.env
    return None


def _like(values: np.ndarray, action: Any) -> Any:
    """``values`` as the array library of ``action``; torch need not be imported to make one of its tensors."""
    return values if isinstance(action, (np.ndarray, np.generic)) else action.new_tensor(values.tolist())


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(f"Malformed environment spec: {problem}.")


def _plain(value: Leaf | ActionSpec) -> dict[str, Any]:
    plain = {field.name: _to_json(getattr(value, field.name)) for field in fields(value)}
    return plain if plain.get("stack") != 1 else {key: each for key, each in plain.items() if key != "stack"}


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value  # "inf", "-inf": not in JSON
