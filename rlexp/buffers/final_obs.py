"""The true final observations of ended episodes, kept beside a ring whose rows hold what came after the reset."""

from __future__ import annotations

import numpy as np

_FIRST_SIZE = 16  # a power of two, so that a place is found by a mask


class FinalObs:
    """A queue of observations numbered in the order in which episodes ended.

    Ends leave in the order they came, as the ring overwrites its oldest row, so places are recycled by counting:
    number ``e`` lies at ``e`` modulo the size, and the size doubles when the queue is full.
    """

    def __init__(self, leaves: list[tuple[tuple[int, ...], str]]) -> None:
        self.first = 0  # number of the oldest end kept
        self.next = 0  # number of the next end to come
        self.size = _FIRST_SIZE
        self.rows = np.zeros(self.size, np.int64)  # the ring row (absolute) at which the episode ended
        self.leaves = [np.zeros((self.size, *shape), dtype) for shape, dtype in leaves]

    def __len__(self) -> int:
        return self.next - self.first

    @property
    def first_row(self) -> int:
        """The row of the oldest end; there must be one."""
        return int(self.rows[self.first & (self.size - 1)])

    def reserve(self, first: int, following: int) -> None:
        """Make room for the numbers ``first`` to ``following``; those kept already keep their numbers."""
        size = self.size
        while size < following - first:
            size *= 2
        if size == self.size:
            return
        kept = np.arange(self.first, self.next)
        old, new = kept & (self.size - 1), kept & (size - 1)
        for i, leaf in enumerate(self.leaves):
            self.leaves[i] = np.zeros((size, *leaf.shape[1:]), leaf.dtype)
            self.leaves[i][new] = leaf[old]
        rows, self.rows, self.size = self.rows, np.zeros(size, np.int64), size
        self.rows[new] = rows[old]

    def append(self, rows: int | np.ndarray, leaves: list[np.ndarray], count: int) -> np.ndarray:
        """Keep ``count`` final observations of the given rows; returns their numbers [count]."""
        number = self.next
        self.reserve(self.first, number + count)
        self.next = number + count
        numbers = np.arange(number, number + count)
        self.put(numbers, rows, leaves)
        return numbers

    def put(self, numbers: np.ndarray, rows: int | np.ndarray, leaves: list[np.ndarray]) -> None:
        """Write observations under numbers for which room was reserved."""
        place = numbers & (self.size - 1)
        self.rows[place] = rows
        for mine, leaf in zip(self.leaves, leaves, strict=True):
            mine[place] = leaf

    def replace(self, number: int, first_leaf: int, leaves: list[np.ndarray]) -> None:
        """Write other values [1, …] of the leaves from ``first_leaf`` on under a number that is kept."""
        for mine, leaf in zip(self.leaves[first_leaf:], leaves, strict=True):
            mine[number & (self.size - 1)] = leaf[0]

    def take(self, leaf: int, numbers: np.ndarray) -> np.ndarray:
        """The observations (one leaf) with these numbers."""
        return self.leaves[leaf].take(numbers & (self.size - 1), 0)
