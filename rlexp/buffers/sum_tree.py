"""A sum tree: draws places in proportion to their priorities, and changes priorities, in O(log n), many at once.

Every node has 64 children instead of two, so that a million places are four levels of a few NumPy calls instead of
twenty. Parents are computed anew from their children, never by adding differences: the tree is a function of its
leaves, and a tree rebuilt from a checkpoint has the same bits.
"""

from __future__ import annotations

import numpy as np

FANOUT = 64


class SumTree:
    """Priorities of ``size`` places, at first all zero; a place of priority zero is never drawn."""

    def __init__(self, size: int) -> None:
        self.levels: list[np.ndarray] = []  # [nodes, FANOUT], the leaves first, a single node last
        while True:
            nodes = -(-size // FANOUT)
            self.levels.append(np.zeros((nodes, FANOUT)))
            if nodes == 1:
                break
            size = nodes
        self._leaves = self.levels[0].reshape(-1)

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self.levels[-1].sum())

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        return self._leaves.take(index)

    def update(self, index: np.ndarray, priority: np.ndarray | float) -> None:
        """Set the priorities of places ``index`` [n]; of a place that occurs several times the last one counts."""
        self._leaves[index] = priority
        for children, parents in zip(self.levels, self.levels[1:]):
            index = index // FANOUT  # a parent that occurs twice is computed twice, from the same children
            parents.reshape(-1)[index] = children.take(index, 0).sum(1)

    def find(self, mass: np.ndarray) -> np.ndarray:
        """The places [n] at which the cumulative sum of priorities first exceeds ``mass`` [n], 0 ≤ mass < total."""
        node = np.zeros(len(mass), np.int64)
        for level in reversed(self.levels):
            below = level.take(node, 0).cumsum(1)  # [n, FANOUT]
            # The parent's sum may differ from this one in its last bit; what is left must lie inside of it.
            mass = np.minimum(mass, np.nextafter(below[:, -1], 0.0))
            child = (below <= mass[:, None]).sum(1)
            before = np.take_along_axis(below, np.maximum(child - 1, 0)[:, None], 1)[:, 0]
            mass = mass - np.where(child > 0, before, 0.0)
            node = node * FANOUT + child
        return node
