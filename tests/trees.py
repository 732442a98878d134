"""Comparing trees of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlexp.tree import tree_leaves


def tree_equal(left: Any, right: Any) -> bool:
    """Bit-equality of two trees of arrays."""
    if isinstance(left, dict) != isinstance(right, dict):
        return False
    if isinstance(left, dict) and left.keys() != right.keys():
        return False
    pairs = zip(tree_leaves(left), tree_leaves(right), strict=True)
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for (_, a), (_, b) in pairs)
