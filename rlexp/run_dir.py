"""The directory of one run: what it is, where it came from, how it stands, and everything it wrote. Free of torch.

    config.yaml     the resolved config             metrics.jsonl   one row per logged point
    run.json        identity and provenance         checkpoints/    see checkpoint_store
    status.json     how it stands                   summary.json    the result, at the end
    .lock           held by the process that writes; the kernel lets go of it even after kill -9

Reading needs no lock. A directory from a stranger is only ever data: bounded, never followed through links, never
resolved (config) and never unpickled.
"""

from __future__ import annotations

import difflib
import errno
import fcntl
import hashlib
import os
import re
import socket
import time
import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from rlexp import files
from rlexp.checkpoint import Checkpoint, Segments
from rlexp.checkpoint_store import CheckpointStore
from rlexp.config.migrating import migrated
from rlexp.errors import RunError, counted
from rlexp.files import write_json_atomic as write_json_atomic
from rlexp.metrics_file import MetricsFile
from rlexp.provenance import provenance, versions
from rlexp.state_tree import Tree

FORMAT_VERSION = 1
STATUSES = ("running", "completed", "interrupted", "failed")
State = Literal["running", "completed", "interrupted", "failed", "killed"]

CONFIG, RUN, STATUS, METRICS, SUMMARY = "config.yaml", "run.json", "status.json", "metrics.jsonl", "summary.json"
CHECKPOINTS, LOCK = "checkpoints", ".lock"
VIDEOS = "videos"
WRITTEN_FOLDERS = (CHECKPOINTS, "tensorboard", "wandb", VIDEOS)
_RUN_ID = re.compile(r"[0-9a-f]{12}")
_LOCK_TRIES = 20  # 50 ms apart: another process that only looks whether the run is alive holds the lock for an instant


class RunDir:
    """One run on disk. ``create`` and ``lock`` make this process its writer until ``close``."""

    def __init__(self, path: Path, config: dict[str, Any], info: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self.info = info  # run.json
        self.checkpoints = CheckpointStore(path / CHECKPOINTS, info.get("run_id"))
        self._lock: int | None = None  # file descriptor
        self._metrics = MetricsFile(path / METRICS)

    # -- making and opening

    @classmethod
    def create(
        cls,
        path: Path | str,
        config: dict[str, Any],
        command: Sequence[str] = (),
        *,
        decisions: Mapping[str, Any] | None = None,
        group: str | None = None,
        origin: Mapping[str, Any] | None = None,
    ) -> Self:
        """Start a run in ``path``, which may hold other things (Hydra's) but no run. The lock is held on return.

        ``origin`` is where its agent comes from, if it does not begin with an untrained one.
        """
        path = Path(path).absolute()
        text = files.config_bytes(config)
        run = cls(path, config, {})
        with _accessing(path):
            path.mkdir(parents=True, exist_ok=True)
        run.lock()
        try:
            found = [name for name in (RUN, CONFIG, STATUS, METRICS, CHECKPOINTS) if os.path.lexists(path / name)]
            if found:
                raise RunError(
                    f"{path} already holds a run ({found[0]}). Continue it with `rlexp resume {path}`, "
                    "or choose another name or directory."
                )
            run_id = uuid.uuid4().hex[:12]
            run.info = {
                "format_version": FORMAT_VERSION,
                "run_id": run_id,
                "group": group,
                "created": _now(),
                "command": list(command),
                "seed": config.get("seed"),
                "config_sha256": _sha256(text),
                "wandb_id": run_id if "wandb" in (config.get("logger") or {}) else None,
                "decisions": dict(decisions or {}),
                "resumes": [],
                **({} if origin is None else {"init_from": dict(origin)}),
                **provenance(),
            }
            run.checkpoints.owner = run_id
            with _accessing(path):
                files.write_atomic(path / CONFIG, text)
                run.set_status("running")
                write_json_atomic(path / RUN, run.info)  # last: from here on it is a run
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """An existing run, for reading: its directory, or a path in its ``checkpoints``."""
        path = Path(path).absolute()
        for place in (path, path.parent):
            if place.name == CHECKPOINTS and not os.path.lexists(path / RUN):
                path = place.parent
                break
        if not os.path.isdir(path):
            raise RunError(
                f"There is no run directory at {path}{_instead(path)} `rlexp list runs` shows the runs there are."
            )
        if not os.path.lexists(path / RUN):
            raise RunError(
                f"{path} is not a run directory: it has no {RUN}. `rlexp list runs` shows the runs there are."
            )
        info = _read_json(path / RUN)
        if info.get("format_version") != FORMAT_VERSION:
            raise RunError(
                f"{path / RUN} has format {info.get('format_version')!r}, and this rlexp reads {FORMAT_VERSION}. "
                "Use the rlexp version that wrote it."
            )
        right = isinstance(info.get("decisions"), dict) and isinstance(info.get("resumes"), list)
        if not right or not _RUN_ID.fullmatch(str(info.get("run_id"))):
            raise RunError(f"{path / RUN} does not hold what rlexp writes. Restore it from a copy of the run.")
        try:
            data = files.read_bounded(path / CONFIG, files.MAX_CONFIG_BYTES)
            if _sha256(data) not in (info.get("config_sha256"), info.get("next_config_sha256")):
                raise RunError(
                    f"{path / CONFIG} was changed after the run was started, so it no longer says what was run. "
                    "Put the file back, and pass what should be different as overrides: "
                    f"`rlexp resume {path} key=value`."
                )
            return cls(path, migrated(files.parse_config(data)), info)
        except (OSError, ValueError) as error:
            raise RunError(f"{path / CONFIG} {files.reason(error)}. Restore it from a copy of the run.") from None

    @staticmethod
    def is_run(path: Path | str) -> bool:
        """Whether a directory holds a run."""
        return os.path.isfile(Path(path) / RUN)

    # -- one writer

    def lock(self) -> Self:
        """Become the writer of this run until ``close`` (or the end of the process, however it ends)."""
        if self._lock is None:
            for name in WRITTEN_FOLDERS:
                if os.path.islink(self.path / name):
                    raise RunError(
                        f"{self.path / name} is a symbolic link: a run from elsewhere could have its results written "
                        "over something of yours. Put a folder there, or link the whole run."
                    )
            with _accessing(self.path / LOCK):
                descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                with _accessing(self.path / LOCK):
                    self._acquire(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            self._lock = descriptor
            _LOCKED.add(self)
        return self

    def _acquire(self, descriptor: int) -> None:
        for attempt in range(_LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt + 1 == _LOCK_TRIES:
                    owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "unknown"
                    raise RunError(
                        f"The run {self.path} is still running (pid {owner}). Wait until it ends, or stop that process."
                    ) from None
                time.sleep(0.05)
            except OSError as error:
                raise RunError(f"{self.path} cannot be locked: {files.reason(error)}. Use a local disk.") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def close(self) -> None:
        """Let go of the lock. The run can still be read."""
        self._metrics.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_lock(self) -> None:
        if self._lock is None:
            raise RuntimeError("Only the process that holds the run's lock may write to it: call lock() first.")

    def _is_locked(self) -> bool:
        if self._lock is not None:
            return True
        try:
            descriptor = os.open(self.path / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in (errno.EWOULDBLOCK, errno.EAGAIN)
        finally:
            os.close(descriptor)
        return False

    # -- identity and status

    def update_info(self, **changes: Any) -> None:
        """Change entries of run.json, such as ``wandb_id`` or ``decisions``."""
        self._require_lock()
        self.info = self.info | changes
        with _accessing(self.path / RUN):
            write_json_atomic(self.path / RUN, self.info)

    def record_resume(self, command: Sequence[str], config: dict[str, Any] | None = None) -> None:
        """Note a resume in run.json and, where overrides changed the config, make that the config of the run."""
        text = files.config_bytes(self.config if config is None else config)
        entry = {"time": _now(), "command": list(command), "versions": versions(), "config_sha256": _sha256(text)}
        # Both hashes are valid until config.yaml has been replaced, so that a crash in between leaves a run that opens.
        self.update_info(next_config_sha256=_sha256(text))
        with _accessing(self.path / CONFIG):
            files.write_atomic(self.path / CONFIG, text)
        self.config = files.parse_config(text)
        self.info.pop("next_config_sha256")
        wandb_id = self.info["run_id"] if "wandb" in (self.config.get("logger") or {}) else self.info.get("wandb_id")
        self.update_info(config_sha256=_sha256(text), resumes=[*self.info["resumes"], entry], wandb_id=wandb_id)

    def set_status(self, status: str, **details: Any) -> None:
        """Write status.json: one of ``STATUSES``, since when, and ``details`` such as the reason."""
        if status not in STATUSES:
            raise ValueError(f"{status!r} is not a status; there are {', '.join(STATUSES)}.")
        self._write_status({"status": status, "time": _now(), "pid": os.getpid(), **details}, self._recorded_rows())

    def status(self) -> dict[str, Any]:
        """status.json as it is; empty if the run was killed before it was first written."""
        return _read_json(self.path / STATUS) if os.path.lexists(self.path / STATUS) else {}

    def state(self) -> State:
        """How the run stands. It says ``running`` in status.json, but nobody holds the lock: it was killed."""
        status = self.status().get("status", "running")
        if status == "running":
            return "running" if self._is_locked() else "killed"
        if status not in STATUSES:
            raise RunError(f"{self.path / STATUS} says {str(status)[:40]!r}, which is not a status. Remove the file.")
        return status  # type: ignore[no-any-return]

    def _write_status(self, status: dict[str, Any], rows: int) -> None:
        self._require_lock()
        with _accessing(self.path / STATUS):
            write_json_atomic(self.path / STATUS, status | {"rows_high_water": rows})

    def _recorded_rows(self) -> int:
        recorded = self.status().get("rows_high_water", 0)
        return recorded if isinstance(recorded, int) else 0

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        self._require_lock()
        with _accessing(self.path / SUMMARY):
            write_json_atomic(self.path / SUMMARY, dict(summary))

    def summary(self) -> dict[str, Any]:
        """summary.json, which is written when a run ends; empty before."""
        return _read_json(self.path / SUMMARY) if os.path.lexists(self.path / SUMMARY) else {}

    # -- metrics

    @property
    def rows(self) -> int:
        """The number of complete rows in metrics.jsonl."""
        with _accessing(self.path / METRICS):
            return self._metrics.rows

    @property
    def high_water(self) -> int:
        """The largest number of rows there ever was: loggers that cannot be rewound have those already."""
        return max(self._recorded_rows(), self.rows)

    def latest_rows(self) -> list[dict[str, Any]]:
        """The last rows of metrics.jsonl, as far as they are quickly read."""
        with _accessing(self.path / METRICS):
            return self._metrics.latest()

    def metrics(self) -> Iterator[dict[str, Any]]:
        """All rows of metrics.jsonl, one at a time."""
        with _accessing(self.path / METRICS):
            yield from self._metrics

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row to metrics.jsonl. Call it before telling any logger that cannot be rewound."""
        self._require_lock()
        with _accessing(self.path / METRICS):
            self._metrics.append(row)

    def video_path(self, number: int) -> Path:
        """Where the video of a moment lies; ``number`` as in the name of a checkpoint."""
        return self.path / VIDEOS / f"step_{number:012d}.mp4"

    def truncate(self, rows: int) -> None:
        """Keep the first ``rows`` rows: those that were there when the checkpoint to go on from was written."""
        self._require_lock()
        if rows > self.rows:
            raise RunError(
                f"{self.path / METRICS} has {counted(self.rows, 'row')}, but the checkpoint was written after {rows}. "
                "Put the whole file back, or go on from an older checkpoint with checkpoint=…."
            )
        self._write_status(self.status(), self.high_water)  # first: afterwards nobody could tell
        with _accessing(self.path / METRICS):
            self._metrics.truncate(rows)

    # -- checkpoints

    def save(
        self, step: int, tree: Tree, segments: Segments | None = None, *, best: bool = False, keep: int = 2
    ) -> Path:
        """Write a checkpoint, make it ``last`` (and ``best``), and keep the newest ``keep`` besides these two."""
        self._require_lock()
        with _accessing(self.path / CHECKPOINTS):
            self._metrics.sync()  # the rows that the checkpoint counts must outlive a power cut, too
            return self.checkpoints.save(step, tree, self.config, segments, best=best, keep=keep)

    def find(self, which: Path | str = "last") -> Path | None:
        """A verified checkpoint: ``last``, ``best``, the name of one, or a path. See ``CheckpointStore.find``."""
        return self.checkpoints.find(which)

    def load(self, which: Path | str = "last") -> Checkpoint | None:
        """A checkpoint to look at or evaluate."""
        return self.checkpoints.load(which)

    def go_on_from(self, which: Path | str = "last") -> Checkpoint | None:
        """The checkpoint to resume from. Restore it, then ``truncate`` to the rows it counts."""
        self._require_lock()
        with _accessing(self.path / CHECKPOINTS):
            return self.checkpoints.go_on_from(which)

    def mark_best(self, path: Path) -> None:
        """Let ``best`` point at this checkpoint."""
        self._require_lock()
        with _accessing(self.path / CHECKPOINTS):
            self.checkpoints.mark_best(path)


_LOCKED: weakref.WeakSet[RunDir] = weakref.WeakSet()


def _instead(path: Path) -> str:
    """What to say of a run that is not there: whether outputs/ was searched for its name, and what is nearest to it."""
    outputs = Path("outputs").absolute()
    names = list[str]()
    if path.parent in (outputs, outputs.parent):
        with suppress(OSError):
            names = sorted(each.name for each in outputs.iterdir() if each.is_dir())
    searched = ", nor in outputs/" if path.parent == outputs.parent and path.name not in names else ""
    if near := difflib.get_close_matches(path.name, names, n=3):
        return f"{searched}. Did you mean {' or '.join(near)}?"
    return f"{searched}. Check the path;"


def _let_go_in_child() -> None:
    """A forked worker inherits the lock, and would keep it after its parent was killed."""
    for run in list(_LOCKED):
        if run._lock is not None:
            os.close(run._lock)
            run._lock = None


os.register_at_fork(after_in_child=_let_go_in_child)


@contextmanager
def _accessing(path: Path) -> Iterator[None]:
    """A full disk or a missing permission is the user's to mend, so it is told without a traceback."""
    try:
        yield
    except OSError as error:
        system = error.errno is not None  # otherwise it is what files.py found
        advice = "Check free space and permissions." if system else "Restore it from a copy of the run."
        raise RunError(f"{path} cannot be read or written: {files.reason(error)}. {advice}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = files.parse_json(files.read_bounded(path, files.MAX_JSON_BYTES))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} {files.reason(error)}. Restore it from a copy of the run.") from None
    if not isinstance(value, dict):
        raise RunError(f"{path} does not hold a JSON object. Restore it from a copy of the run.")
    return value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
