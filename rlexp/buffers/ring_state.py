"""Saving the replay ring: what never changes again goes into segments, the rest into the state.

A row becomes immutable when the next one is added: until then ``cut`` may still mark it as truncated. So segments hold
rows below ``stable_rows``, and the state holds the newest row and the observation after it. Rows have absolute numbers,
counted from the first ever added, so that a segment stays valid however often the ring wraps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import numpy as np

from rlexp.buffers.final_obs import FinalObs
from rlexp.errors import CheckpointError, counted
from rlexp.seeding import generator_state, restore_generator

_COUNTERS = ("rows", "first_end", "next_end", "num_envs", "max_rows")


class RingState:
    """The half of :class:`~rlexp.buffers.ring.ReplayBuffer` that saves and restores it."""

    _num_envs: int
    _max_rows: int
    _ring: int
    _rows: int
    _cursor: int
    _missing: int
    _obs_names: list[str]
    _obs_rows: list[np.ndarray]
    _heads: list[int]  # the leaves that are stacks of frames
    _first_heads: list[np.ndarray]
    _action_rows: np.ndarray
    _reward_rows: np.ndarray
    _flag_rows: np.ndarray
    _end_rows: np.ndarray
    _extra_rows: dict[str, np.ndarray]
    _final: FinalObs
    _generator: np.random.Generator

    @property
    def oldest_row(self) -> int:
        """The oldest row still stored; with stacks of frames that is some rows before the oldest that is sampled."""
        return max(self._rows - self._ring + 1, 0)

    @property
    def oldest_sampled(self) -> int:
        """The oldest row that can be sampled."""
        return max(self._rows - self._max_rows, 0)

    @property
    def stable_rows(self) -> int:
        """Rows below this number never change again."""
        return max(self._rows - 1, 0)

    def state_dict(self, rows: bool = True) -> dict[str, Any]:
        """Generator, counters and the newest row; with ``rows`` also all others that are stored."""
        state: dict[str, Any] = {
            "rows": self._rows,
            "first_end": self._final.first,
            "next_end": self._final.next,
            "num_envs": self._num_envs,
            "max_rows": self._max_rows,
            "generator": generator_state(self._generator),
            "newest_row": self.rows_between(self.stable_rows, self._rows),
            "next_obs": {key: leaf[self._cursor].copy() for key, leaf in self._obs_items("obs", self._obs_rows)},
        }
        if self._heads:
            state["first_frames"] = dict(zip(self._head_names("first_frames"), self._first_heads))
        if rows:
            state["older_rows"] = self.rows_between(self.oldest_row, self.stable_rows)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back a state. One taken with ``rows=False`` must be completed by :meth:`load_rows`.

        Rows that are in place already (a dataset loaded again) need not be loaded.
        """
        rows, first_end, next_end = self._read_counters(state)
        in_place = (rows, first_end, next_end) == (self._rows, self._final.first, self._final.next)
        if not in_place:
            self._flag_rows[:] = 0
            self._final = FinalObs([(leaf.shape[1:], leaf.dtype.name) for leaf in self._final.leaves])
            self._final.reserve(first_end, next_end)
            self._final.first, self._final.next = first_end, next_end
        self._rows, self._cursor = rows, rows % self._ring
        self._missing = 0 if in_place else self.stable_rows - self.oldest_row
        try:
            restore_generator(self._generator, state["generator"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"The replay buffer's random generator cannot be restored ({error}).") from None
        self._load(self.stable_rows, _section(state, "newest_row"))
        newest = _section(state, "next_obs")
        for key, leaf in self._obs_items("obs", self._obs_rows):
            leaf[self._cursor] = _column(newest, key, leaf.shape[1:], leaf.dtype)
        if self._heads:
            first = _section(state, "first_frames")
            names = self._head_names("first_frames")
            self._first_heads = [
                _column(first, key, had.shape, had.dtype) for key, had in zip(names, self._first_heads)
            ]
        if "older_rows" in state:
            self.load_rows(self.oldest_row, _section(state, "older_rows"))
        elif not in_place and not self._missing:
            self._derive_again()

    def rows_between(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """The absolute rows ``start`` to ``stop`` (exclusive) as arrays [rows, N, …].

        ``final_obs`` [E, …] are the final observations of the E episodes that ended there, in the order of the flags
        read row by row; ``end`` [E] are their numbers. Of stacks they are the newest frames, and ``older_frames``
        [E, k − 1, …] are those that the following episodes began with.
        """
        if not self.oldest_row <= start <= stop <= self._rows:
            raise ValueError(f"rows {start} to {stop} are not all stored ({self.oldest_row} to {self._rows} are)")
        place = np.arange(start, stop) % self._ring
        flag = self._flag_rows[place]
        end = self._end_rows[place][flag != 0]
        arrays = {key: leaf[place] for key, leaf in self._columns()}
        arrays |= {"terminated": flag == 1, "truncated": flag == 2, "end": end}
        for i, key in enumerate(self._final_names()):
            arrays[key] = self._final.take(i, end)
        return arrays

    def load_rows(self, start: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Put back rows taken by :meth:`rows_between` from row ``start`` on; those overwritten since are skipped."""
        if isinstance(start, bool) or not isinstance(start, int) or not 0 <= start < 2**62:
            raise CheckpointError(f"A replay segment begins at row {start!r}. The checkpoint is damaged.")
        self._missing -= self._load(start, arrays)
        if not self._missing:
            self._derive_again()

    def _require_all_rows(self) -> None:
        if self._missing:
            lost = counted(self._missing, "row")
            raise CheckpointError(f"The checkpoint lacks {lost} of the replay buffer. Use an older one.")

    def _derive_again(self) -> None:
        """Compute what is derived from the rows, which are complete."""
        raise NotImplementedError

    def _load(self, start: int, arrays: Mapping[str, Any]) -> int:
        """Check and write rows; the number of rows written."""
        reward = arrays.get("reward")
        if not isinstance(reward, np.ndarray) or reward.ndim != 2:
            raise CheckpointError("A replay segment has no rewards. The checkpoint is damaged.")
        shape = (len(reward), self._num_envs)
        if start + len(reward) > self._rows:
            raise CheckpointError(f"A replay segment ends at row {start + len(reward)} of {self._rows}.")
        columns = [(leaf, _column(arrays, key, (*shape, *leaf.shape[2:]), leaf.dtype)) for key, leaf in self._columns()]
        terminated, truncated = (_column(arrays, key, shape, np.dtype(bool)) for key in ("terminated", "truncated"))
        flag = np.where(terminated, 1, 2 * truncated.astype(np.uint8))
        row, env = flag.nonzero()
        end = _column(arrays, "end", (len(row),), np.dtype(np.int64))
        leaves = zip(self._final_names(), self._final.leaves)
        final = [_column(arrays, key, (len(row), *leaf.shape[1:]), leaf.dtype) for key, leaf in leaves]

        skip = max(self.oldest_row - start, 0)  # rows that the ring has overwritten since
        kept = row >= skip
        row, env, end = row[kept], env[kept], end[kept]
        if len(end) and not (self._final.first <= end.min() and end.max() < self._final.next):
            raise CheckpointError("A replay segment has ends of episodes that its checkpoint does not know.")
        place = np.arange(start + skip, start + len(reward)) % self._ring
        for leaf, column in columns:
            leaf[place] = column[skip:]
        self._flag_rows[place] = flag[skip:]
        self._end_rows[(start + row) % self._ring, env] = end
        self._final.put(end, start + row, [leaf[kept] for leaf in final])
        return len(place)

    def _columns(self) -> list[tuple[str, np.ndarray]]:
        """The arrays that are stored as they are, with the names they are saved under."""
        columns = self._obs_items("obs", self._obs_rows)
        columns += [("action", self._action_rows), ("reward", self._reward_rows)]
        return columns + [(f"extra.{quote(name, safe='')}", rows) for name, rows in self._extra_rows.items()]

    def _obs_items(self, prefix: str, leaves: list[np.ndarray]) -> list[tuple[str, np.ndarray]]:
        """Keys without "/": a bare observation is ``obs``, the leaf a/b of a dict is ``obs.a%2Fb``."""
        names = [f"{prefix}.{quote(name, safe='')}" if name else prefix for name in self._obs_names]
        return list(zip(names, leaves))

    def _final_names(self) -> list[str]:
        """The names under which the leaves of the side store are saved."""
        return [key for key, _ in self._obs_items("final_obs", self._obs_rows)] + self._head_names("older_frames")

    def _head_names(self, prefix: str) -> list[str]:
        names = [key for key, _ in self._obs_items(prefix, self._obs_rows)]
        return [names[i] for i in self._heads]

    def _read_counters(self, state: Mapping[str, Any]) -> tuple[int, int, int]:
        counters = [state.get(name) for name in _COUNTERS]
        if any(isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62 for value in counters):
            raise CheckpointError("The replay buffer's counters are missing or damaged.")
        rows, first_end, next_end, num_envs, max_rows = (int(value) for value in counters)  # type: ignore[arg-type]
        if (num_envs, max_rows) != (self._num_envs, self._max_rows):
            raise CheckpointError(
                f"The checkpoint's replay buffer has {counted(max_rows, 'row')} of {counted(num_envs, 'environment')}, "
                f"this run's has {self._max_rows} of {self._num_envs}. Resume with buffer.capacity and env.num_envs "
                "as they were."
            )
        if not 0 <= next_end - first_end <= min(rows, self._ring - 1) * num_envs:
            raise CheckpointError("The replay buffer's counters contradict each other. The checkpoint is damaged.")
        return rows, first_end, next_end


def _section(state: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = state.get(name)
    if not isinstance(section, Mapping):
        raise CheckpointError(f"The replay buffer's state has no {name!r}. The checkpoint is damaged.")
    return section


def _column(arrays: Mapping[str, Any], name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    array = arrays.get(name)
    if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype:
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else "nothing"
        raise CheckpointError(
            f"The replay buffer's {name!r} should be {dtype} {shape}, but the checkpoint has {found}."
        )
    return array
