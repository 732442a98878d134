"""Between Gymnasium's spaces and the canonical arrays of :mod:`rlexp.envs.spec`. Free of torch.

An observation space is a tree of Dict and Tuple over Box, Discrete, MultiDiscrete and MultiBinary; an action space is
one of those four. Native ``start`` offsets, dtypes and shapes end here: nothing behind this file sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from rlexp.envs.spec import ActionSpec, Leaf, ObsSpec
from rlexp.errors import EnvError
from rlexp.tree import ArrayTree, tree_map

_NO_BOUND = float(np.finfo(np.float32).max)  # spaces write "unbounded" as ±inf or as the largest float


@dataclass(frozen=True)
class Port:
    """Where one leaf sits in a native observation, and what turns it into its canonical array."""

    name: str
    path: tuple[Any, ...]  # keys and indices from the root of the native observation
    space: spaces.Space
    leaf: Leaf
    convert: Callable[[Any], Any] | None  # None: assigning it to the array is all that is needed


class ObsCodec:
    """Native observations of one space to canonical arrays."""

    def __init__(self, space: spaces.Space) -> None:
        self.space = space
        self.spec = observation_spec(space)
        self._ports = list(ports(space))
        # A bare observation that array assignment converts by itself: the hot path of `SyncVecEnv.step`.
        self.direct = self.spec.single and self._ports[0].convert is None

    def encode(self, obs: Any) -> ArrayTree:
        """One native observation as canonical arrays of its own."""
        out = self.empty(1)
        self.write(obs, out, 0)
        return tree_map(lambda array: np.array(array[0]), out)

    def empty(self, n: int) -> ArrayTree:
        """Uninitialised arrays [n, ...] for ``n`` observations."""
        if self.spec.single:
            leaf = self._ports[0].leaf
            return np.empty((n, *leaf.shape), leaf.dtype)
        return {name: np.empty((n, *leaf.shape), leaf.dtype) for name, leaf in self.spec.leaves.items()}

    def write(self, obs: Any, out: Any, row: int) -> None:
        """Put one native observation into row ``row`` of arrays [N, ...]."""
        if self.direct:
            out[row] = obs
            return
        for port in self._ports:
            value = obs
            for key in port.path:
                value = value[key]
            array = out if self.spec.single else out[port.name]
            array[row] = value if port.convert is None else port.convert(value)

    def encode_many(self, obs: Any) -> ArrayTree:
        """Native observations stacked leaf by leaf, as datasets keep them, as canonical arrays [T, …]."""
        leaves = {}
        for port in self._ports:
            value = obs
            for key in port.path:
                value = value[key]
            array = np.asarray(value)
            if port.leaf.kind in ("discrete", "multi_discrete"):
                start: Any = getattr(port.space, "start", 0)
                array = array.astype(np.int64) - np.asarray(start, np.int64)
            leaves[port.name] = array.astype(port.leaf.dtype, copy=False).reshape(len(array), *port.leaf.shape)
        return leaves[""] if self.spec.single else leaves

    def decode_many(self, obs: ArrayTree) -> Any:
        """The inverse of :meth:`encode_many`."""

        def native(space: spaces.Space, path: tuple[Any, ...]) -> Any:
            if isinstance(space, spaces.Dict):
                return {key: native(part, (*path, key)) for key, part in space.spaces.items()}
            if isinstance(space, spaces.Tuple):
                return tuple(native(part, (*path, index)) for index, part in enumerate(space.spaces))
            array = obs[names[path]] if isinstance(obs, dict) else obs
            array = array.reshape(len(array), *(space.shape or ()))
            start = np.asarray(getattr(space, "start", 0))
            return (array + start if start.any() else array).astype(space.dtype, copy=False)

        names = {port.path: port.name for port in self._ports}
        return native(self.space, ())

    def check(self, obs: Any, env_id: str) -> None:
        """Raise EnvError unless ``obs`` has the structure, shapes and kinds of number that the space declares."""
        for port in self._ports:
            value, where = obs, "observation"
            for key in port.path:
                where = f"{where}[{key!r}]"
                try:
                    value = value[key]
                except (KeyError, IndexError, TypeError):
                    raise EnvError(f"{env_id}: reset() returned no {where}, which {self.space} promises.") from None
            if problem := _misfit(port.space, value):
                raise EnvError(
                    f"{env_id}: the {where} returned by reset() {problem}, but its space is {port.space}. "
                    "Correct the environment's observation_space or convert its observations with a wrapper."
                )


def observation_spec(space: spaces.Space) -> ObsSpec:
    """The canonical form of an observation space; EnvError for a space that has none."""
    leaves: dict[str, Leaf] = {}
    for port in ports(space):
        if port.name in leaves:
            raise EnvError(f"Two parts of the observation space are called {port.name!r}; rename one with a wrapper.")
        leaves[port.name] = port.leaf
    if not leaves:
        raise EnvError(f"The observation space {space} is empty; an agent needs something to observe.")
    return ObsSpec(leaves, single=not isinstance(space, (spaces.Dict, spaces.Tuple)))


def ports(space: spaces.Space, path: tuple[Any, ...] = ()) -> Iterator[Port]:
    """The leaves of a native observation space, in the order of their arrays."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from ports(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from ports(part, (*path, index))
    else:
        leaf, convert = _leaf(space)
        yield Port("/".join(map(str, path)), path, space, leaf, convert)


def _leaf(space: spaces.Space) -> tuple[Leaf, Callable[[Any], Any] | None]:
    if isinstance(space, spaces.Box):
        dtype = "uint8" if space.dtype == np.uint8 else "float32"
        return Leaf("box", space.shape, dtype, low=_uniform(space.low), high=_uniform(space.high)), None
    if isinstance(space, spaces.Discrete):
        first = int(space.start)
        leaf = Leaf("discrete", (), "int64", nvec=(int(space.n),))
        return leaf, (lambda value: int(value) - first) if first else None
    if isinstance(space, spaces.MultiDiscrete):
        start, sizes = space.start.astype(np.int64), tuple(map(int, space.nvec.ravel()))
        plain = space.nvec.ndim == 1 and not start.any()
        leaf = Leaf("multi_discrete", (len(sizes),), "int64", nvec=sizes)
        return leaf, None if plain else (lambda value: (np.asarray(value, np.int64) - start).ravel())
    if isinstance(space, spaces.MultiBinary):
        leaf = Leaf("multi_binary", (int(np.prod(space.shape)),), "int8")
        return leaf, None if len(space.shape) == 1 else np.ravel
    raise _unsupported("observation", space, "Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these")


def _uniform(bound: np.ndarray) -> float | None:
    return float(bound.flat[0]) if bound.size and (bound == bound.flat[0]).all() else None


def _misfit(space: spaces.Space, value: Any) -> str | None:
    """What is wrong with a native value, or None. Box values outside their bounds are common and harmless."""
    try:
        array = np.asarray(value)
    except ValueError:
        return "is ragged"
    if array.shape != space.shape:
        return f"has shape {array.shape}"
    if isinstance(space, spaces.Box):
        wanted = "u" if space.dtype == np.uint8 else "fiub"
        exact = space.dtype != np.uint8 or array.dtype == np.uint8
        return None if array.dtype.kind in wanted and exact else f"has dtype {array.dtype}"
    if array.dtype.kind not in "iub":
        return f"has dtype {array.dtype}"
    start = getattr(space, "start", 0)
    size = 2 if isinstance(space, spaces.MultiBinary) else getattr(space, "nvec", getattr(space, "n", 2))
    outside = (array < start) | (array.astype(np.int64) >= np.asarray(start, np.int64) + np.asarray(size, np.int64))
    return f"holds {value}" if outside.any() else None


class ActionCodec:
    """Canonical actions to native ones, a batch at a time, and back."""

    def __init__(self, space: spaces.Space, spec: ActionSpec) -> None:
        self.space, self.spec = space, spec
        self._shape = tuple(space.shape or ())
        self._start = np.asarray(getattr(space, "start", 0), np.int64).ravel()
        self._offset = int(self._start[0])
        self._plain = self._offset == 0
        if spec.kind == "continuous":
            self._low, self._high = spec.bounds
            self._clips = bool(np.isfinite(spec.bounds).any())
            self._as_is = space.dtype == np.float32 and len(self._shape) == 1

    def decode(self, actions: np.ndarray) -> tuple[Iterable[Any], Iterable[Any]]:
        """Canonical actions [N, ...] as (the actions taken, the native ones): Box is clipped to its bounds."""
        if self.spec.kind == "discrete":
            # NumPy scalars of the space's dtype, like those of `space.sample()`.
            if self._plain and actions.dtype == self.space.dtype:
                return actions.tolist(), actions
            return actions.tolist(), (actions + self._offset).astype(self.space.dtype)
        if self.spec.kind == "continuous":
            return self._decode_box(actions)
        native = (actions + self._start).astype(self.space.dtype).reshape(-1, *self._shape)
        return actions, native

    def _decode_box(self, actions: np.ndarray) -> tuple[Iterable[Any], Iterable[Any]]:
        taken = actions.astype(np.float32)  # always a copy: an environment may write into its action
        if self._clips:
            np.maximum(taken, self._low, out=taken)
            np.minimum(taken, self._high, out=taken)
        if self._as_is:
            return taken, taken
        assert isinstance(self.space, spaces.Box)
        native = taken.astype(np.float64).reshape(-1, *self._shape)
        if self.space.dtype.kind != "f":
            native = np.rint(native)
        # Again in the native precision: float32(0.1) > 0.1.
        native = np.clip(native, self.space.low, self.space.high).astype(self.space.dtype)
        return taken, native if self._shape else [np.asarray(action) for action in native]

    def encode_many(self, actions: Any) -> np.ndarray:
        """Native actions [T, …] as canonical arrays [T, …]."""
        array = np.asarray(actions)
        if self.spec.kind == "continuous":
            return array.astype(np.float32, copy=False).reshape(len(array), *self.spec.shape)
        flat = array.astype(np.int64).reshape(len(array), -1) - self._start
        return flat.reshape(len(array), *self.spec.shape)

    def encode(self, action: Any) -> np.ndarray:
        """One native action as a canonical array."""
        array = np.asarray(action)
        if self.spec.kind == "continuous":
            return array.astype(np.float32).reshape(self.spec.shape)
        return (array.astype(np.int64).ravel() - self._start).reshape(self.spec.shape)


def action_spec(space: spaces.Space, limit: float | None = None) -> ActionSpec:
    """The canonical form of an action space; ``limit`` bounds the Box dimensions that have no bound."""
    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", (), nvec=(int(space.n),))
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(map(int, space.nvec.ravel()))
        return ActionSpec("multi_discrete", (len(sizes),), nvec=sizes)
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return ActionSpec("multi_binary", (size,), nvec=(2,) * size)
    if isinstance(space, spaces.Box):
        if space.low.size == 0:
            raise EnvError(f"The action space {space} is empty; there is nothing to decide.")
        low, high = (_float32_bounds(bound, limit) for bound in (space.low, space.high))
        if (low > high).any():
            raise EnvError(f"env.action_limit={limit:g} leaves no room in the action space {space}; raise it.")
        return ActionSpec("continuous", low.shape, low=tuple(map(float, low)), high=tuple(map(float, high)))
    raise _unsupported("action", space, "Discrete, Box, MultiDiscrete or MultiBinary")


def _float32_bounds(bound: np.ndarray, limit: float | None) -> np.ndarray:
    flat = np.asarray(bound, np.float64).ravel()
    flat = np.where(np.abs(flat) >= _NO_BOUND, np.copysign(np.inf if limit is None else limit, flat), flat)
    return flat.astype(np.float32)


def _unsupported(role: str, space: spaces.Space, known: str) -> EnvError:
    return EnvError(
        f"The {role} space {type(space).__name__} ({space}) is not supported. Convert it with a wrapper "
        f"(env.wrappers, a gymnasium.Wrapper) to {known}."
    )
