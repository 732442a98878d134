"""Any dataset in pieces, as it is: to look at one that is larger than memory, or that no loader would accept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlexp.datasets.checks import check_shapes, flags
from rlexp.datasets.files import hdf5_arrays, kind_of, read_npz
from rlexp.datasets.minari import is_minari, minari_episodes, open_minari, there_are
from rlexp.datasets.replay import read_memories, run_folders
from rlexp.datasets.transitions import Transitions
from rlexp.errors import DataError
from rlexp.runs import run_path
from rlexp.tree import ArrayTree, tree_map

if TYPE_CHECKING:
    from rlexp.envs.spec import ActionSpec

ROWS = 65536  # in a piece


@dataclass
class Piece:
    """Consecutive rows of a dataset."""

    obs: ArrayTree
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    next_obs: ArrayTree | None = None  # None: the file has none
    source: str = ""  # where they come from, if not all do from the same place
    gaps: np.ndarray | None = None  # rows that others of the same episode are missing before or after; None: unknown

    def __len__(self) -> int:
        return len(self.reward)


@dataclass
class Stream:
    """A dataset to be read once, from beginning to end."""

    kind: str  # what it is, for people
    pieces: Iterator[Piece]
    has_timeouts: bool = True
    has_next_obs: bool = True
    action: ActionSpec | None = None  # where the dataset itself says what actions there are
    notes: list[str] = field(default_factory=list)  # what was left out, known when all has been read


def open_stream(path: str) -> Stream:
    """A file with D4RL's keys, a run (or its name) or folder of runs, or the id of a Minari dataset."""
    place = run_path(path)
    if place.is_file():
        if (kind := kind_of(place)) == "npz":
            return _of_arrays("NumPy archive", read_npz(place), place)
        if kind == "hdf5":
            return _of_hdf5(place)
        raise DataError(f"{place} is neither a NumPy archive (.npz) nor an HDF5 file.")
    if place.is_dir() and (runs := run_folders(place)):
        kind, notes = "replay memory of runs" if len(runs) > 1 else "replay memory of a run", list[str]()
        return Stream(kind, _of_runs(place, notes.append), notes=notes)
    if is_minari(path):
        return _of_minari(path)
    problem = "holds no run"
    if not place.exists():
        problem = f"does not exist, and is no id of a local Minari dataset, like pendulum/random-v0.{_others()}"
    raise DataError(f"{path} {problem.rstrip('.')}. Give a .npz or .hdf5 file, a run directory, or a Minari id.")


def _others() -> str:
    try:
        return there_are()
    except DataError:  # Minari is not installed
        return ""


def _of_runs(folder: Path, report: Callable[[str], None]) -> Iterator[Piece]:
    for data in read_memories(folder, report):
        yield from pieces_of(data)


def pieces_of(data: Transitions) -> Iterator[Piece]:
    """Transitions in memory, cut."""
    for start in range(0, len(data), ROWS):
        rows = slice(start, start + ROWS)
        yield Piece(
            tree_map(lambda leaf, rows=rows: leaf[rows], data.obs),
            data.action[rows],
            data.reward[rows],
            data.terminated[rows],
            data.truncated[rows],
            tree_map(lambda leaf, rows=rows: leaf[rows], data.next_obs),
            source=data.source,
            gaps=None if data.gaps is None else data.gaps[rows],
        )


def _of_minari(dataset_id: str) -> Stream:
    from rlexp.envs.spaces import action_spec

    dataset = open_minari(dataset_id)

    def pieces() -> Iterator[Piece]:
        for episode in minari_episodes(dataset):
            yield from pieces_of(episode)

    return Stream(f"Minari dataset {dataset_id}", pieces(), action=action_spec(dataset.action_space))


def _of_hdf5(path: Path) -> Stream:
    def pieces() -> Iterator[Piece]:
        with hdf5_arrays(path) as arrays:
            yield from _cut(arrays, path)

    with hdf5_arrays(path) as arrays:
        names = {name.split("/")[0] for name in arrays}
    return Stream("HDF5 file", pieces(), "timeouts" in names, "next_observations" in names)


def _of_arrays(kind: str, arrays: Mapping[str, Any], path: Path) -> Stream:
    names = {name.split("/")[0] for name in arrays}
    return Stream(kind, _cut(arrays, path), "timeouts" in names, "next_observations" in names)


def _cut(arrays: Mapping[str, Any], path: Path) -> Iterator[Piece]:
    """Arrays, or datasets of an open file, in pieces of so many rows."""
    check_shapes(arrays, str(path))
    for start in range(0, len(arrays["rewards"]), ROWS):
        part = {name: np.asarray(array[start : start + ROWS]) for name, array in arrays.items()}
        ended = [
            flags(part[name], name, str(path)) if name in part else np.zeros(len(part["rewards"]), bool)
            for name in ("terminals", "timeouts")
        ]
        yield Piece(
            _tree(part, "observations"),
            part["actions"],
            part["rewards"].reshape(-1),
            ended[0],
            ended[1] & ~ended[0],
            _tree(part, "next_observations") if any(name.startswith("next_observations") for name in part) else None,
        )


def _tree(part: Mapping[str, np.ndarray], key: str) -> ArrayTree:
    if key in part:
        return part[key]
    return {name[len(key) + 1 :]: array for name, array in part.items() if name.startswith(f"{key}/")}
