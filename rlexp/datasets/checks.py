"""Whether arrays are a dataset: D4RL's keys, columns of the same rows, and what the environment has.

Every refusal names the key, what is wrong with it and what would be right.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlexp.datasets.repairs import loose_bounds
from rlexp.errors import DataError
from rlexp.tree import ArrayTree, tree_first, tree_leaves

if TYPE_CHECKING:
    from rlexp.envs.spec import ActionSpec, EnvSpec, Leaf

REQUIRED_KEYS = ("observations", "actions", "rewards", "terminals")
OPTIONAL_KEYS = ("timeouts", "next_observations")
_KEYS = (*REQUIRED_KEYS, *OPTIONAL_KEYS)
_OTHER_NAMES = {  # what others call them
    "obs": "observations",
    "next_obs": "next_observations",
    "terminated": "terminals",
    "terminations": "terminals",
    "truncated": "timeouts",
    "truncations": "timeouts",
}
_CHUNK = 65536  # rows compared at a time, to keep temporaries small


def check_keys(names: Iterable[str], source: str) -> None:
    """Refuse data without one of D4RL's required keys, or with a mistyped one, which would be left unread."""
    present = {name.split("/")[0]: None for name in names}  # a set would lose the order
    for key in _KEYS:
        if key in present:
            continue
        other = next((name for name in present if name not in _KEYS and _resembles(name, key)), None)
        if other is not None:
            raise DataError(f"{source} has no {key}, but {other}. Rename it to {key}.")
        if key in REQUIRED_KEYS:
            raise DataError(missing_key(present, key, source))


def misfits(obs: ArrayTree, action: np.ndarray, spec: EnvSpec) -> list[str]:
    """What some rows have otherwise than the environment: entries, shapes and kinds; the same words as on loading."""
    found = []

    def attempt(check: Callable[..., Any], *given: Any) -> None:
        try:
            check(*given)
        except DataError as error:
            found.append(str(error).removeprefix(": "))

    count = len(action)
    attempt(check_entries, obs, spec, "")
    if not found:
        for name, leaf in tree_leaves(obs):
            attempt(_fit_form, leaf, spec.obs.leaves[name], f"observations/{name}".rstrip("/"), count, "", spec)
    attempt(_fit_action_form, action, spec.action, count, "", spec.id)
    return found


def check_shapes(arrays: Mapping[str, Any], source: str) -> None:
    """Refuse what are not columns of the same rows, before anything compares them; datasets of an open file will do."""
    for key, array in arrays.items():
        if not array.shape:
            raise DataError(f"{source}: {key} is a single number. Save one row per transition.")
    count = arrays["rewards"].shape[0]
    for key, array in arrays.items():
        if array.shape[0] != count:
            raise DataError(
                f"{source}: {key} has {array.shape[0]} rows but rewards has {count}. Save one row per transition."
            )
        if key in ("rewards", "terminals", "timeouts") and array.shape[1:] not in ((), (1,)):
            raise DataError(f"{source}: {key} is {array.dtype} {array.shape}. Save one number per transition.")
    here, following = (
        {name[len(key) :]: array.shape[1:] for name, array in arrays.items() if name.split("/")[0] == key}
        for key in ("observations", "next_observations")
    )
    if not here:
        raise DataError(missing_key(arrays, "observations", source))  # an empty group
    if following and set(here) != set(following):
        raise DataError(f"{source}: next_observations has other entries than observations. Save both alike.")
    for name in following:
        if here[name] != following[name]:
            raise DataError(
                f"{source}: rows of next_observations{name} have the shape {following[name]}, those of "
                f"observations{name} {here[name]}. Save both alike."
            )


def _resembles(name: str, key: str) -> bool:
    plain = name.lower().replace("-", "_")
    return _OTHER_NAMES.get(plain) == key or difflib.SequenceMatcher(None, plain, key).ratio() > 0.85


def read_observations(arrays: Mapping[str, np.ndarray], key: str, source: str) -> ArrayTree | None:
    """One array, or those of all entries; None where there are none."""
    leaves = {name[len(key) + 1 :]: read_array(arrays, name, source) for name in arrays if name.startswith(f"{key}/")}
    if key in arrays and leaves:
        raise DataError(f"{source} has both {key} and {key}/{next(iter(leaves))}. Keep one of the two forms.")
    if key in arrays:
        return read_array(arrays, key, source)
    return leaves or None


def read_array(arrays: Mapping[str, np.ndarray], key: str, source: str) -> np.ndarray:
    """The numbers under a key."""
    if key not in arrays:
        raise DataError(missing_key(arrays, key, source))
    array = np.asarray(arrays[key])
    if array.dtype.kind not in "biuf":
        raise DataError(f"{source}: {key} holds {array.dtype} values. Save plain numbers.")
    if array.ndim == 0:
        raise DataError(f"{source}: {key} is a single number. Save one row per transition.")
    return array


def missing_key(arrays: Iterable[str], key: str, source: str) -> str:
    """What is said where a key is not there."""
    found = ", ".join(sorted(arrays)) or "nothing"
    return f"{source} has no {key} (it has {found}). Save D4RL's keys: {', '.join(REQUIRED_KEYS)}."


def as_vector(array: np.ndarray, key: str, source: str, kinds: str) -> np.ndarray:
    """[B] or [B, 1] as [B]."""
    if array.shape[1:] not in ((), (1,)) or array.dtype.kind not in kinds:
        raise DataError(f"{source}: {key} is {array.dtype} {array.shape}. Save one number per transition.")
    return array.reshape(-1)


def flags(array: np.ndarray, key: str, source: str) -> np.ndarray:
    """Zeros and ones of any type as booleans [B]."""
    vector = as_vector(array, key, source, "biuf")
    if vector.dtype.kind != "b" and not ((vector == 0) | (vector == 1)).all():
        raise DataError(f"{source}: {key} holds values other than 0 and 1. Save booleans.")
    return vector.astype(bool, copy=False)


def check_finite(array: np.ndarray, key: str, source: str) -> None:
    """Refuse NaN and infinity, and say in which row."""
    for start in range(0, len(array), _CHUNK):
        rows = array[start : start + _CHUNK]
        if not np.isfinite(rows).all():
            row = start + int(np.argwhere(~np.isfinite(rows))[0, 0])
            raise DataError(
                f"{source}: {key} is NaN, infinite or too large in row {row}. Mend such rows, or leave them out with "
                "dataset.repair=[drop_nan]."
            )


def leaves_like(tree: ArrayTree, spec: EnvSpec) -> Any:
    """The spec's leaves in the form of ``tree``."""
    return spec.obs.leaves if isinstance(tree, dict) else tree_first(spec.obs.leaves)


def check_entries(obs: ArrayTree, spec: EnvSpec, source: str) -> None:
    """Refuse observations that have other entries than the environment's."""
    names = set(dict(tree_leaves(obs)))
    if isinstance(obs, dict) == spec.obs.single or names != set(spec.obs.leaves):
        wanted = "one array" if spec.obs.single else f"the entries {sorted(spec.obs.leaves)}"
        found = f"the entries {sorted(names)}" if isinstance(obs, dict) else "one array"
        raise DataError(f"{source}: observations are {found}, but {spec.id} has {wanted}. Choose its own dataset.")


def _fit_form(leaf: np.ndarray, like: Leaf, key: str, count: int, source: str, spec: EnvSpec) -> np.ndarray:
    """The leaf in the shape that the environment has, if it is of its kind."""
    leaf = _fit_shape(leaf, like.shape, key, count, source, spec.id)
    if like.kind == "box":
        if like.dtype == "uint8" and leaf.dtype != np.uint8:
            raise DataError(f"{source}: {key} is {leaf.dtype}, but {spec.id} has uint8 images. Save them as uint8.")
        return leaf
    return _whole(leaf, key, source, spec.id)


def fit_obs(leaf: np.ndarray, like: Leaf, key: str, count: int, source: str, spec: EnvSpec) -> np.ndarray:
    """The leaf in the environment's shape and dtype."""
    leaf = _fit_form(leaf, like, key, count, source, spec)
    if like.kind == "box":
        with np.errstate(over="ignore"):  # reported below
            leaf = leaf.astype(like.dtype, copy=False)
        if leaf.dtype.kind == "f":
            check_finite(leaf, key, source)
        return leaf
    return _fit_choice(leaf, like.nvec or (2,), like.dtype, key, source, spec.id)


def _fit_action_form(action: np.ndarray, spec: ActionSpec, count: int, source: str, env_id: str) -> np.ndarray:
    action = _fit_shape(action, spec.shape, "actions", count, source, env_id)
    return action if spec.kind == "continuous" else _whole(action, "actions", source, env_id)


def fit_action(action: np.ndarray, spec: ActionSpec, count: int, source: str, env_id: str) -> np.ndarray:
    """Actions in the environment's shape and dtype, and within its bounds."""
    action = _fit_action_form(action, spec, count, source, env_id)
    if spec.kind != "continuous":
        return _fit_choice(action, spec.nvec, spec.dtype, "actions", source, env_id)
    with np.errstate(over="ignore"):  # reported below
        action = action.astype(spec.dtype, copy=False)
    check_finite(action, "actions", source)
    low, high = spec.bounds
    lowest, highest = loose_bounds(spec)
    least, most = action.min(0), action.max(0)
    outside = (least < lowest) | (most > highest)
    if outside.any():
        i = int(np.flatnonzero(outside)[0])
        raise DataError(
            f"{source}: actions[:, {i}] lies in [{least[i]:g}, {most[i]:g}], but {env_id} takes "
            f"[{low[i]:g}, {high[i]:g}]. Rescale the actions to the environment's units, or clip them with "
            "dataset.repair=[clip_actions]."
        )
    return action if (least >= low).all() and (most <= high).all() else np.clip(action, low, high)


def _fit_shape(array: np.ndarray, shape: tuple[int, ...], key: str, count: int, source: str, env_id: str) -> np.ndarray:
    if array.shape == (count, *shape):
        return array
    if len(array) == count and shape in ((), (1,)) and array.shape[1:] in ((), (1,)):  # [B] and [B, 1] are the same
        return array.reshape(count, *shape)
    raise DataError(
        f"{source}: {key} has shape {array.shape}, but {count} transitions of {env_id} have {(count, *shape)}. "
        "Choose the environment that the data was collected in."
    )


def _whole(array: np.ndarray, key: str, source: str, env_id: str) -> np.ndarray:
    if array.dtype.kind not in "biu":
        raise DataError(f"{source}: {key} is {array.dtype}, but {env_id} has whole numbers there. Save integers.")
    return array


def _fit_choice(array: np.ndarray, nvec: tuple[int, ...], dtype: str, key: str, source: str, env_id: str) -> np.ndarray:
    """Whole numbers from 0 to n − 1, each column with its own n."""
    least, most = array.min(0), array.max(0)  # () or [k]
    if (least < 0).any() or (most >= np.array(nvec)).any():
        raise DataError(
            f"{source}: {key} goes from {int(least.min())} to {int(most.max())}, but {env_id} counts from 0 to below "
            f"{nvec if len(nvec) > 1 else nvec[0]}. Shift or filter the values."
        )
    return array.astype(dtype, copy=False)
