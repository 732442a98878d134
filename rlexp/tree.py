"""Observations as trees: one array, or a flat dict of arrays. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

ArrayTree = np.ndarray | dict[str, np.ndarray]


def tree_map(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply ``fn`` to each leaf of ``tree`` (and the leaves at the same place in ``rest``)."""
    if isinstance(tree, dict):
        return {key: fn(leaf, *(other[key] for other in rest)) for key, leaf in tree.items()}
    return fn(tree, *rest)


def tree_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """The leaves with their names; a bare array is the leaf named ``""``."""
    if isinstance(tree, dict):
        yield from tree.items()
    else:
        yield "", tree


def tree_first(tree: Any) -> Any:
    """Any one leaf: what the batch size, device or dtype is read from."""
    return next(leaf for _, leaf in tree_leaves(tree))
