"""The ``checkpoints`` folder of a run: which to keep, which is last and best, which is whole.

    step_000000010000/  step_000000020000/  last -> step_000000020000  best -> step_000000010000

The links are relative and move only once the checkpoint they will point at is on disk, so that a crash at any moment
leaves a whole checkpoint to be found. One process writes (the one that holds the run's lock); any may read.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from rlexp import files
from rlexp.checkpoint import (
    Checkpoint,
    Segments,
    load_checkpoint,
    read_counters,
    save_checkpoint,
    verify_checkpoint,
)
from rlexp.errors import CheckpointError
from rlexp.state_tree import Tree

T = TypeVar("T")
_STEP = re.compile(r"step_(\d{12,18})")
_SET_ASIDE = re.compile(r"\.old-(step_\d{12,18})")
_LEFTOVER = re.compile(r"\.tmp-.*")
_log = logging.getLogger(__name__)


class CheckpointStore:
    """Saves, finds and prunes the checkpoints of one run."""

    def __init__(self, path: Path, owner: str | None = None) -> None:
        self.path = path
        self.owner = owner  # id of the run
        self._base: Path | None = None  # the checkpoint the present state grew from: its segments can be linked

    def save(
        self, step: int, tree: Tree, config: dict[str, Any], segments: Segments | None, *, best: bool, keep: int
    ) -> Path:
        """Write the checkpoint of ``step``, move the links to it, and drop what is no longer needed."""
        name = f"step_{step:012d}"
        self._recover()
        self._base = save_checkpoint(
            self.path / name, tree, config, segments=segments, previous=self._base, run=self.owner
        )
        self._point("last", name)
        if best:
            self._point("best", name)
        self._prune(step, keep)
        return self._base

    def find(self, which: Path | str = "last") -> Path | None:
        """A verified checkpoint. None: there is none of that kind yet; CheckpointError: there is, but it is not whole.

        A damaged ``last`` is reported, and the newest whole one taken instead.
        """
        return self._first_whole(which, _verified)

    def load(self, which: Path | str = "last") -> Checkpoint | None:
        """Like :meth:`find`, but loaded, and thus verified only once."""
        return self._first_whole(which, self._load_own)

    def go_on_from(self, which: Path | str = "last") -> Checkpoint | None:
        """Load the checkpoint that the run now goes on from. It becomes ``last``; newer ones belong to the past."""
        self._recover()
        checkpoint = self.load(which)
        if checkpoint is not None:
            path = checkpoint.path.resolve()
            if path.parent != self.path.resolve() or not _STEP.fullmatch(path.name):
                raise CheckpointError(
                    f"{path} is not one of the checkpoints in {self.path}, so the run cannot go on from it. "
                    f"There are {self._listing()}."
                )
            self._point("last", path.name)
            self._base = path
        return checkpoint

    def mark_best(self, path: Path) -> None:
        """Let ``best`` point at a checkpoint that was the best when it was saved, should a kill have prevented it."""
        self._point("best", path.resolve().name)

    def steps(self) -> list[int]:
        """The steps of which there is a checkpoint, whole or not, in order."""
        return sorted(int(match[1]) for name in self._names() if (match := _STEP.fullmatch(name)))

    def counters(self) -> dict[str, Any]:
        """How far the run had come at its newest readable checkpoint, unverified; empty where that cannot be told."""
        with suppress(CheckpointError):  # whoever wants to use one is told
            for path in self._candidates("last"):
                with suppress(CheckpointError):
                    _refuse_link(path)
                    return read_counters(path)
        return {}

    # -- finding

    def _first_whole(self, which: Path | str, attempt: Callable[[Path], T]) -> T | None:
        if which not in ("last", "best"):
            try:
                return attempt(self._named(which))
            except CheckpointError as error:
                raise CheckpointError(f"{error} Leave out checkpoint=… to use the newest whole one.") from error
        candidates = self._candidates(str(which))
        problems: list[str] = []
        while candidates:
            path, *others = candidates
            try:
                found = attempt(path)
            except CheckpointError as error:
                candidates = self._candidates(str(which))
                if path not in candidates:  # a running writer has moved on and dropped it: look again
                    problems = []
                    continue
                problems.append(str(error))
                candidates = others
                continue
            for problem in problems:
                _log.warning("%s Using %s instead.", problem, path.name)
            return found
        if problems:
            instead = ", or use checkpoint=last" if which == "best" else ""
            raise CheckpointError(
                f"The checkpoint '{which}' in {self.path} cannot be used:\n- "
                + "\n- ".join(problems)
                + f"\nRestore it from a copy of the run{instead}."
            )
        return None

    def _load_own(self, path: Path) -> Checkpoint:
        _refuse_link(path)
        checkpoint = load_checkpoint(path)
        if self.owner is not None and checkpoint.run is not None and checkpoint.run != self.owner:
            raise CheckpointError(
                f"The checkpoint {path} is of another run ({checkpoint.run[:20]!r}; run.json says {self.owner!r}). "
                "Put back what belongs here."
            )
        return checkpoint

    def _candidates(self, link: str) -> list[Path]:
        """``best``: what it points at. ``last``: what it points at, then the others from the newest on."""
        paths = {name: self.path / name for name in self._names() if _STEP.fullmatch(name)}
        for name in self._names():  # a crash came between setting it aside and putting the new one in its place
            if (match := _SET_ASIDE.fullmatch(name)) and match[1] not in paths:
                paths[match[1]] = self.path / name
        newest = [paths[name] for name in sorted(paths, reverse=True)] if link == "last" else []
        try:
            first = self._linked(link)
        except CheckpointError as error:
            if not newest:
                raise
            _log.warning("%s", error)
            first = None
        if first is None or (first.name == "last" and newest):  # a copy of the run that turned links into folders
            return newest
        first = paths.get(first.name, first)
        return [first, *(path for path in newest if path != first)]

    def _linked(self, link: str) -> Path | None:
        """What ``last`` or ``best`` stands for; only ever a checkpoint of this run."""
        path = self.path / link
        if not os.path.lexists(path):
            return None
        if path.is_symlink():
            target = os.readlink(path)
            if not _STEP.fullmatch(target):
                raise CheckpointError(f"{path} leads to {target!r}, which is not a checkpoint of this run. Remove it.")
            return self.path / target
        return path

    def _named(self, which: Path | str) -> Path:
        inside = self.path / which  # an absolute path stays what it is
        if os.path.isdir(inside):
            return inside
        if os.path.isdir(which):
            return Path(which)
        raise CheckpointError(f"There is no checkpoint {which} in {self.path}; there are {self._listing()}.")

    def _listing(self) -> str:
        return ", ".join(name for name in sorted(self._names()) if not name.startswith(".")) or "none"

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {files.reason(error)}.") from None

    # -- keeping order

    def _recover(self) -> None:
        """Put back a checkpoint that a crash left set aside."""
        for name in self._names():
            match = _SET_ASIDE.fullmatch(name)
            if match and not os.path.lexists(self.path / match[1]):
                os.rename(self.path / name, self.path / match[1])

    def _point(self, link: str, name: str) -> None:
        path = self.path / link
        if path.is_dir() and not path.is_symlink():
            self._discard(path)
        files.point_link(path, name)

    def _prune(self, step: int, keep: int) -> None:
        """Keep the newest ``keep``, ``last`` and ``best``; newer steps are of a past that this run has left."""
        wanted = {f"step_{kept:012d}" for kept in [s for s in self.steps() if s <= step][-max(keep, 1) :]}
        for link in ("last", "best"):
            try:
                target = self._linked(link)
            except CheckpointError:
                continue  # reported when somebody asks for it
            wanted |= {target.name} if target else set()
        for name in self._names():
            if (_STEP.fullmatch(name) or _SET_ASIDE.fullmatch(name)) and name not in wanted:
                self._discard(self.path / name)
            elif _LEFTOVER.fullmatch(name):
                shutil.rmtree(self.path / name, ignore_errors=True)

    def _discard(self, path: Path) -> None:
        """Rename first, so that a half-deleted checkpoint is never met under the name of a whole one."""
        trash = path.with_name(f".tmp-removed-{path.name}")
        shutil.rmtree(trash, ignore_errors=True)
        os.rename(path, trash)
        shutil.rmtree(trash, ignore_errors=True)


def _verified(path: Path) -> Path:
    verify_checkpoint(path)
    return path


def _refuse_link(path: Path) -> None:
    if path.is_symlink() and _STEP.fullmatch(path.name):
        raise CheckpointError(f"The checkpoint {path} is a symbolic link, which could lead anywhere. Remove it.")
