"""Several loggers as one. A logger that fails while the run goes on is switched off; training never notices."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlexp.errors import RlexpError
from rlexp.loggers.base import Logger, Row, RunInfo


class LoggerSet:
    """Fans rows out to ``loggers``; ``warn`` is told, once each, of those that had to be switched off."""

    def __init__(self, loggers: Mapping[str, Logger], warn: Callable[[str], None]) -> None:
        self._loggers = dict(loggers)
        self._warn = warn
        self._active: dict[str, Logger] = {}
        self._held: dict[str, int] = {}  # rows each logger has from before a resume

    def open(self, info: RunInfo) -> None:
        """Open all of them, or none: what cannot start is an error before training starts.

        A logger that joins at a resume is first given the rows the run already has.
        """
        for name, logger in self._loggers.items():
            try:
                self._held[name] = logger.rows_held(info)
                logger.open(info)
            except BaseException as error:
                self.close("failed", None)
                if isinstance(error, RlexpError) or not isinstance(error, Exception):
                    raise
                raise RlexpError(
                    f"The {name} logger could not start: {_reason(error)}. Mend that, or leave it out of logger=[…]."
                ) from error
            self._active[name] = logger
        if any(held < info.skip_rows for held in self._held.values()):
            known = list(itertools.islice(_rows(info.path / "metrics.jsonl"), info.skip_rows))
            for index, row in enumerate(known):
                self.log(index, row)
            self._held = {name: max(held, len(known)) for name, held in self._held.items()}

    def log(self, index: int, row: Row) -> None:
        """Send one row to every logger that does not have it yet."""
        self._send(index, lambda logger: logger.log(index, row))

    def video(self, index: int, row: Row, path: Path) -> None:
        """Send one row with the video of its episode, an MP4 file."""
        from rlexp.video import gif_of  # listings need not wait for what it imports

        gif = functools.cache(gif_of)
        self._send(index, lambda logger: logger.video(index, row, gif(path)))

    def _send(self, index: int, send: Callable[[Logger], None]) -> None:
        for name, logger in list(self._active.items()):
            if index >= self._held[name]:
                try:
                    send(logger)
                except Exception as error:
                    # Not closed: closing what just failed may hang (wandb waits for its network).
                    del self._active[name]
                    self._warn(f"the {name} logger failed and is switched off: {_reason(error)}. Training goes on.")

    def close(self, status: str, summary: Mapping[str, Any] | None) -> None:
        """Close those still active."""
        for name, logger in self._active.items():
            try:
                logger.close(status, summary)
            except Exception as error:
                self._warn(f"the {name} logger could not be closed: {_reason(error)}.")
        self._active = {}

    def where(self) -> dict[str, str]:
        """What to open or type to see what each active logger holds; ask before ``close``."""
        places = {}
        for name, logger in self._active.items():
            if place := logger.where():
                places[name] = place
        return places


def _reason(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of metrics.jsonl, up to a line that a crash has left half-written."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                return
            if not isinstance(row, dict):
                return
            yield row
