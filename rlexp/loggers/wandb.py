"""Weights & Biases. The wandb package is imported when a run opens this logger, and nowhere else."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from rlexp.config.component import component
from rlexp.errors import RlexpError
from rlexp.loggers.base import Logger, Row, RunInfo, flatten
from rlexp.loggers.format import short_path


class WandbMode(Enum):
    """Where a run's data goes."""

    online = "online"
    offline = "offline"
    disabled = "disabled"


@component("logger", "wandb")
@dataclass(eq=False, kw_only=True)
class WandbLogger(Logger):
    """One wandb run for each run, continued under the same id when the run is resumed."""

    project: str = "rlexp"  # project the run is filed under
    entity: str | None = None  # user or team; null: the one you are logged in as
    mode: WandbMode = WandbMode.online  # offline: kept in the run directory for `wandb sync`; WANDB_MODE is obeyed
    name: str | None = None  # shown in the run table; null: the run's own name
    group: str | None = None  # runs shown as one; null: the sweep the run belongs to
    job_type: str | None = None  # sorts runs within a group; null: the algorithm's name
    tags: list[str] = field(default_factory=list)  # labels to filter by
    notes: str | None = None  # a sentence on what the run is for

    _info: Any = field(init=False, default=None, repr=False)
    _run: Any = field(init=False, default=None, repr=False)
    _has_axis: bool = field(init=False, default=False, repr=False)

    def rows_held(self, info: RunInfo) -> int:
        """None, if this run had no wandb before it was resumed."""
        return info.skip_rows if _folders(info) else 0

    def open(self, info: RunInfo) -> None:
        """Start the wandb run, or take it up again."""
        wandb = _import_wandb()
        self._info = info
        try:
            with _no_prompt():
                self._run = wandb.init(
                    project=self.project,
                    entity=self.entity,
                    # wandb's own default is online; leaving it out lets WANDB_MODE decide.
                    mode=None if self.mode is WandbMode.online else self.mode.value,
                    id=info.run_id,
                    resume="allow" if info.resumed else None,
                    name=self.name or info.name,
                    group=self.group or info.group,
                    job_type=self.job_type or info.algo,
                    tags=self.tags or None,
                    notes=self.notes,
                    dir=str(info.path),  # wandb adds the folder `wandb`
                    config={**info.config, "algo_name": info.algo, "env_name": info.env},
                    reinit="create_new",  # a run the user has open is neither returned nor ended
                    # Capturing stdout would record, and disturb, the progress display.
                    settings=wandb.Settings(silent=True, console="off"),
                )
        except Exception as error:
            raise RlexpError(
                f"wandb could not start: {str(error).strip().rstrip('.')}. An account is named with `wandb login`; "
                "without one, or without a network, logger.wandb.mode=offline keeps the data in the run directory."
            ) from error

    def log(self, index: int, row: Row) -> None:
        """Send a row. Its index is wandb's step, so that a row sent twice is dropped by wandb itself."""
        self._send(index, row)

    def video(self, index: int, row: Row, gif: bytes) -> None:
        """A row with the video."""
        self._send(index, {**row, "video": _import_wandb().Video(io.BytesIO(gif), format="gif")})

    def _send(self, index: int, row: Row) -> None:
        if not self._has_axis and (axis := self._info.axis(row)):
            self._define_axis(axis)
        self._run.log({key: value for key, value in row.items() if value is not None}, step=index, commit=True)

    def close(self, status: str, summary: Mapping[str, Any] | None) -> None:
        """End the wandb run: failed with exit code 1; an interrupted one ends cleanly and can be taken up again."""
        final = {f"final/{key}": value for key, value in flatten(summary or {}, "/").items()}
        self._run.summary.update({**final, "status": status})
        self._run.finish(exit_code=1 if status == "failed" else 0)

    def where(self) -> str | None:
        """The address of the run, or the command that uploads it."""
        if self._run.disabled:
            return None
        if self._run.offline:
            folders = _folders(self._info)  # one for each process of the run; wandb sends them in order of time
            return f"wandb sync {short_path(folders[0] if len(folders) == 1 else folders[0].parent, quoted=True)}"
        return str(self._run.url)

    def _define_axis(self, axis: str) -> None:
        # Panels fall into sections by what stands before the slash, in order: eval, loss, …, rollout, time. Counters
        # have no slash and would fill a section of their own in front; they are axes, so they are not drawn.
        for counter in ("env_steps", "updates", "time_s"):
            self._run.define_metric(counter, hidden=True)
        self._run.define_metric("*", step_metric=axis)
        for key in ("eval/return_mean", "eval/fqe_value", "eval/initial_value", "rollout/return_mean"):
            self._run.define_metric(key, step_metric=axis, summary="last,max")
        self._has_axis = True


def _folders(info: RunInfo) -> list[Path]:
    return list((info.path / "wandb").glob(f"*run-*-{info.run_id}"))


def _import_wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise RlexpError('logger=wandb needs the wandb package: pip install "rlexp[wandb]"') from error
    if not hasattr(wandb, "init"):
        # Without the package, a folder ./wandb left by earlier runs is importable as an empty namespace.
        raise RlexpError('logger=wandb needs the wandb package: pip install "rlexp[wandb]"')
    return wandb


@contextlib.contextmanager
def _no_prompt() -> Iterator[None]:
    """wandb asks for a key where stdin is a terminal, and a sweep left alone would wait for ever: make it an error."""
    stdin = sys.stdin
    with open(os.devnull) as sys.stdin:
        try:
            yield
        finally:
            sys.stdin = stdin
