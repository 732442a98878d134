"""State trees as JSON and arrays, and back, without loss. Free of torch until it meets a tensor.

A state tree is nested dicts with string keys and lists, whose leaves are arrays, tensors, int, float, str, bool and
None. Each array is replaced in the JSON by a marker that says what it was; its name is its path in the tree.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

Tree = dict[str, Any]
Arrays = dict[str, np.ndarray]

_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
DTYPES = frozenset({"bool", "float16", "float32", "float64"} | _INTEGERS)  # what safetensors and NumPy both know
_ARRAY = "@array"  # the key of the marker that stands in the JSON for an array
# NumPy has no name for these: they are stored as integers of their size, and the marker says what they were.
_TORCH_ONLY = {
    "bfloat16": np.uint16,
    "float8_e4m3fn": np.uint8,
    "float8_e4m3fnuz": np.uint8,
    "float8_e5m2": np.uint8,
    "float8_e5m2fnuz": np.uint8,
}
_MAX_DEPTH = 64
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def encode_tree(tree: Tree) -> tuple[Tree, dict[str, Arrays]]:
    """The tree with a marker in place of each array, and the arrays: top-level key -> path -> array."""
    groups: dict[str, Arrays] = {}
    for key in tree:
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise ValueError(f"A top-level key of a state tree names a file, and cannot be {key!r}.")
    document = {key: _encode(tree[key], (key,), groups.setdefault(key, {})) for key in tree}
    return document, {key: group for key, group in groups.items() if group}


def decode_tree(document: Tree, arrays: Arrays) -> Tree:
    """The inverse of :func:`encode_tree`, with the groups of arrays merged; ValueError if the two do not fit."""
    rest = dict(arrays)
    tree = {key: _decode(value, (key,), rest) for key, value in document.items()}
    if rest:
        raise ValueError(f"nothing refers to the array {min(rest)!r}")
    return tree


def _name(path: Iterable[str]) -> str:
    """The name of an array in its file: the keys above it, '/' and '~' in them written as in a JSON pointer."""
    return "/".join(key.replace("~", "~0").replace("/", "~1") for key in path)


def _encode(value: Any, path: tuple[str, ...], arrays: Arrays) -> Any:
    if type(value) in (int, float, str, bool, type(None)):
        return value
    if len(path) > _MAX_DEPTH:
        raise ValueError(f"The state tree is nested more than {_MAX_DEPTH} deep at {_name(path[:4])}/….")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or key == _ARRAY:
                raise TypeError(f"The state tree has the key {key!r} at {_name(path)}; keys must be strings.")
        return {key: _encode(child, (*path, key), arrays) for key, child in value.items()}
    if type(value) is list:
        return [_encode(child, (*path, str(index)), arrays) for index, child in enumerate(value)]
    marker, array = _array_of(value)
    if array is None or array.dtype.name not in DTYPES:
        what = type(value).__name__ if array is None else f"array of {array.dtype}"
        raise TypeError(f"The state tree holds a {what} at {_name(path)}, which would not come back as it was.")
    arrays[_name(path)] = array
    return {_ARRAY: marker}


def _array_of(value: Any) -> tuple[str, np.ndarray | None]:
    """What the JSON says about an array, and the array as NumPy stores it."""
    if isinstance(value, np.generic):  # np.float32(1) calculates differently from the float 1.0, so the type is kept
        return "scalar", np.asarray(value)
    if isinstance(value, np.ndarray):
        return "numpy", value
    torch = sys.modules.get("torch")  # not imported: then it cannot be a tensor
    if torch is None or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return "", None
    tensor = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype in _TORCH_ONLY:
        integers = getattr(torch, np.dtype(_TORCH_ONLY[dtype]).name)
        return f"torch.{dtype}", tensor.view(integers).numpy()
    return "torch", tensor.numpy()


def _decode(value: Any, path: tuple[str, ...], arrays: Arrays) -> Any:
    if len(path) > _MAX_DEPTH and isinstance(value, (dict, list)):
        raise ValueError("the state is nested too deeply")
    if isinstance(value, list):
        return [_decode(child, (*path, str(index)), arrays) for index, child in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if _ARRAY not in value:
        return {key: _decode(child, (*path, key), arrays) for key, child in value.items()}
    array = arrays.pop(_name(path), None)
    if array is None:
        raise ValueError(f"the array {_name(path)!r} is missing")
    return _leaf_of(value[_ARRAY], array)


def _leaf_of(marker: Any, array: np.ndarray) -> Any:
    if marker == "numpy":
        return array
    if marker == "scalar" and array.shape == ():
        return array[()]
    library, _, dtype = marker.partition(".") if isinstance(marker, str) else ("", "", "")
    if library != "torch" or (dtype and not (dtype in _TORCH_ONLY and array.dtype == _TORCH_ONLY[dtype])):
        raise ValueError(f"{str(marker)[:40]!r} is not a kind of array")
    import torch

    tensor = torch.from_numpy(array)
    return tensor.view(getattr(torch, dtype)) if dtype else tensor
