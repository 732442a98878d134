"""The spaces that data alone tell of, where there is no environment to ask. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rlexp.envs.from_dataset import NAME
from rlexp.envs.spec import ActionSpec, EnvSpec, Leaf, ObsSpec
from rlexp.errors import DataError

_ROWS = 65536  # read at a time


def spaces_of(arrays: Mapping[str, Any], limit: float | None, source: str) -> EnvSpec:
    """Of arrays with D4RL's names, or datasets of an open file; only actions and whole numbers are read."""
    key = "observations"
    if key in arrays:
        obs = ObsSpec({"": _leaf(arrays[key])}, single=True)
    else:
        names = [name for name in arrays if name.startswith(f"{key}/")]
        obs = ObsSpec({name[len(key) + 1 :]: _leaf(arrays[name]) for name in names}, single=False)
    actions = arrays["actions"]
    if not len(actions):
        raise DataError(f"{source} holds no transitions, so it has no spaces.")
    low, high = _range(actions)
    if actions.dtype.kind == "f":
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise DataError(f"{source}: actions hold NaN or infinity, so their bounds are unknown. Mend them.")
        size = int(np.prod(actions.shape[1:]))
        bounds = low.reshape(size), high.reshape(size)
        spec = ActionSpec("continuous", (size,), low=_floats(bounds[0]), high=_floats(bounds[1]))
    elif actions.shape[1:] in ((), (1,)):
        spec = ActionSpec("discrete", (), nvec=(int(high.max()) + 1,))
    else:
        sizes = tuple(int(each) + 1 for each in high)
        spec = ActionSpec("multi_discrete", (len(sizes),), nvec=sizes)
    return limited(EnvSpec(NAME, obs, spec), limit)


def limited(spec: EnvSpec, limit: float | None) -> EnvSpec:
    """The spec with continuous actions in ± ``limit``, if there is one."""
    spec = replace(spec, id=NAME, max_episode_steps=None, reward_threshold=None)
    if limit is None or spec.action.kind != "continuous":
        return spec
    dim = spec.action.dim
    return replace(spec, action=replace(spec.action, low=(-limit,) * dim, high=(limit,) * dim))


def widened(specs: list[EnvSpec]) -> EnvSpec:
    """One spec that the actions of all fit in."""
    first = specs[0]
    if any(other.obs.leaves != first.obs.leaves or other.action.kind != first.action.kind for other in specs[1:]):
        raise DataError("The sources have different spaces, so they cannot be put together.")
    if any(other.action.shape != first.action.shape for other in specs[1:]):
        raise DataError("The sources have actions of different shapes, so they cannot be put together.")
    if first.action.kind != "continuous":
        nvec = tuple(max(sizes) for sizes in zip(*(spec.action.nvec for spec in specs)))
        return replace(first, action=replace(first.action, nvec=nvec))
    low = tuple(min(each) for each in zip(*(spec.action.low or () for spec in specs)))
    high = tuple(max(each) for each in zip(*(spec.action.high or () for spec in specs)))
    return replace(first, action=replace(first.action, low=low, high=high))


def _leaf(array: Any) -> Leaf:
    shape = tuple(array.shape[1:])
    if array.dtype.kind in "iu" and array.dtype != np.uint8 and shape == ():
        return Leaf("discrete", (), "int64", (int(_range(array)[1].max()) + 1,))
    return Leaf("box", shape, "uint8" if array.dtype == np.uint8 else "float32")


def _range(array: Any) -> tuple[np.ndarray, np.ndarray]:
    parts = [np.asarray(array[start : start + _ROWS]) for start in range(0, len(array), _ROWS)]
    return np.min([part.min(0) for part in parts], 0), np.max([part.max(0) for part in parts], 0)


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(np.float32(value)) for value in values)
