"""The directory of a sweep: sweep.json says what was planned, the run directories say how it went. Free of torch.

    sweep.json      the plan: how jobs are made and run, and each job with its resolved config
    0/ 1/ …         the runs          optuna.log      what a search has tried, if it is one
    .lock           held by the process that runs the sweep

A sweep from a stranger is only ever data: its configs are plain values, its folders lie inside it, links are refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Self

from rlexp import files
from rlexp.config.migrating import migrated
from rlexp.config.trust import EVERYTHING, Trust
from rlexp.errors import RunError, UntrustedError
from rlexp.loggers.format import short_path
from rlexp.run_dir import RunDir
from rlexp.sweeps.job import Job

FORMAT_VERSION = 1
PLAN, STUDY = "sweep.json", "optuna.log"
_KEYS = {"created": str, "command": list, "sweep": dict, "launcher": dict, "arguments": list, "config_folders": list,
         "jobs": list}  # fmt: skip


class SweepDir:
    """A sweep on disk. ``lock`` makes this process the one that runs it until ``close``."""

    def __init__(self, path: Path, info: dict[str, Any]) -> None:
        self.path = path
        self.info = info  # sweep.json
        self._lock = RunDir(path, {}, {})  # locked as a run is, by the same kind of file

    @classmethod
    def create(cls, path: Path, command: Sequence[str], **plan: Any) -> Self:
        """Begin a sweep in ``path``. The lock is held on return."""
        sweep = cls(path, {})
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{path} cannot be made: {files.reason(error)}. Choose another folder.") from error
        sweep.lock()
        if cls.is_sweep(path):
            sweep.close()
            raise RunError(taken(path))
        created = datetime.now(UTC).isoformat(timespec="seconds")
        sweep.info = {"format_version": FORMAT_VERSION, "created": created, "command": list(command), **plan}
        sweep.save()
        return sweep

    @classmethod
    def open(cls, path: Path) -> Self:
        """A sweep that was begun, possibly a stranger's."""
        path = path.absolute()
        try:
            info = files.parse_json(files.read_bounded(path / PLAN, files.MAX_JSON_BYTES))
        except (OSError, ValueError) as error:
            raise RunError(f"{path / PLAN} {files.reason(error)}. Restore it from a copy of the sweep.") from None
        if not isinstance(info, dict) or info.get("format_version") != FORMAT_VERSION:
            found = info.get("format_version") if isinstance(info, dict) else None
            raise RunError(f"{path / PLAN} has format {found!r}, and this rlexp reads {FORMAT_VERSION}.")
        if not all(isinstance(info.get(key), kind) for key, kind in _KEYS.items()):
            raise RunError(f"{path / PLAN} does not hold what rlexp writes. Restore it from a copy of the sweep.")
        for number, entry in enumerate(info["jobs"]):
            _check_job(path, number, entry)
        for text in (*info["arguments"], *info["config_folders"], *info["command"]):
            if not isinstance(text, str):
                raise RunError(f"{path / PLAN} does not hold what rlexp writes. Restore it from a copy of the sweep.")
        return cls(path, info)

    @staticmethod
    def is_sweep(path: Path | str) -> bool:
        """Whether a directory holds a sweep."""
        return os.path.isfile(Path(path) / PLAN) and not os.path.isfile(Path(path) / "run.json")

    def save(self) -> None:
        """Write sweep.json."""
        try:
            files.write_json_atomic(self.path / PLAN, self.info)
        except OSError as error:
            raise RunError(f"{self.path / PLAN} cannot be written: {files.reason(error)}. Check free space.") from error

    def lock(self) -> Self:
        """Become the one process that runs this sweep."""
        self._lock.lock()
        return self

    def close(self) -> None:
        """Let others run it."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- jobs

    def add(self, job: Job) -> None:
        """Plan one more job; nothing is written before ``save``."""
        self.info["jobs"].append(
            {
                "folder": job.path.relative_to(self.path).as_posix(),
                "label": job.label,
                "overrides": list(job.overrides),
                "config": job.config,
            }
        )

    def jobs(self, trust: Trust = EVERYTHING) -> list[Job]:
        """What was planned so far."""
        return [
            Job(
                number=number,
                label=entry["label"],
                path=self.path / entry["folder"],
                config=migrated(entry["config"]),
                overrides=tuple(entry["overrides"]),
                group=self.path.name,
                trust=trust,
            )
            for number, entry in enumerate(self.info["jobs"])
        ]


def taken(path: Path) -> str:
    """What to say where a sweep was to begin in the folder of another."""
    return (
        f"{short_path(path)} already holds a sweep. Continue it with `rlexp resume {short_path(path, quoted=True)}`, "
        "or choose another name=… or hydra.sweep.dir=…"
    )


def _check_job(path: Path, number: int, entry: Any) -> None:
    """Refuse an entry that rlexp would not have written."""
    right = (
        isinstance(entry, dict)
        and isinstance(entry.get("label"), str)
        and isinstance(entry.get("config"), dict)
        and entry["config"].get("progress") in ("auto", "rich", "plain", "none")
        and isinstance(entry.get("overrides"), list)
        and all(isinstance(each, str) for each in entry["overrides"])
        and isinstance(entry.get("folder"), str)
    )
    if not right:
        raise RunError(f"Job {number} in {path / PLAN} is damaged. Restore it from a copy of the sweep.")
    folder = PurePosixPath(entry["folder"])
    if folder.is_absolute() or ".." in folder.parts or not folder.parts:
        raise UntrustedError(f"Job {number} in {path / PLAN} would write to {entry['folder']}, outside of the sweep.")
    place = path
    for part in folder.parts:
        place = place / part
        if os.path.islink(place):
            raise UntrustedError(f"{place} is a symbolic link: the sweep would be written over something of yours.")
