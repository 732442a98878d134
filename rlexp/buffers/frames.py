"""Stacks of frames from frames stored once: [k, …] at a row is its own frame and those of the k − 1 rows before it.

A stack ends where its episode began. What lies before the first frame of an episode (zeros, the frame repeated, or the
frames of the life before) is whatever the environment showed then; the buffer keeps it for each episode.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rlexp.envs.spec import EnvSpec


def whole_stacks(spec: EnvSpec) -> EnvSpec:
    """The same spec, its stacks of frames not marked as such: each is one array."""
    leaves = {name: replace(leaf, stack=1) for name, leaf in spec.obs.leaves.items()}
    return replace(spec, obs=replace(spec.obs, leaves=leaves))


def split(leaves: list[np.ndarray], depth: list[int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Observations [B, k, …] as what is stored of each, and the older frames [B, k − 1, …] of those that are stacks."""
    newest = [leaf if k == 1 else leaf[:, -1] for leaf, k in zip(leaves, depth)]
    return newest, [leaf[:, :-1] for leaf, k in zip(leaves, depth) if k > 1]


def stack_back(
    frames: np.ndarray, flag: np.ndarray, place: np.ndarray, depth: int, num_envs: int, row: np.ndarray
) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
    """The frames at ``place`` [B] and before it, [B, depth, …], and where they must be replaced.

    ``frames`` [T·N, …] and ``flag`` [T·N] are the ring as one axis, ``row`` [B] the absolute rows of the places.
    The second result says for ``back`` = 0, 1, …: in the stacks ``rows``, the frame ``back`` before the newest is the
    first of its episode, so that all older ones belong to another.
    """
    size = len(frames)
    places = (place[:, None] - num_envs * np.arange(depth - 1, -1, -1)) % size
    stacks = frames.take(places, 0)  # [B, depth, …]
    begun: list[tuple[int, np.ndarray]] = []
    going = np.ones(len(place), bool)
    for back in range(depth - 1):
        first = going & ((flag.take(places[:, depth - 2 - back]) != 0) | (row == back))
        if first.any():
            begun.append((back, np.flatnonzero(first)))
            going &= ~first
    return stacks, begun
