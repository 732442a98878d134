"""Where the rows of a run go: metrics.jsonl first, then the external loggers, then the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlexp.loggers import Console, LoggerSet
from rlexp.run_dir import RunDir


class Recorder:
    """One row in, every destination served. metrics.jsonl comes first: it is what a resume counts by."""

    def __init__(self, run_dir: RunDir, loggers: LoggerSet, console: Console, unit: str) -> None:
        self.run_dir, self.loggers, self.console, self.unit = run_dir, loggers, console, unit

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return self.run_dir.rows

    def write(self, row: dict[str, Any]) -> None:
        """One row of metrics."""
        index = self.run_dir.rows
        self.run_dir.append(row)
        self.loggers.log(index, row)
        self.console.log(row)

    def video(self, row: dict[str, Any], path: Path) -> None:
        """One row of metrics on an episode, and the video of it."""
        index = self.run_dir.rows
        self.run_dir.append(row)
        self.loggers.video(index, row, path)
        self.console.log(row)

    def tick(self, done: int, total: int) -> None:
        """Progress, for the terminal."""
        self.console.tick(done, total, self.unit)

    def warn(self, message: str) -> None:
        """Something the user should know, above the progress bar."""
        self.console.warn(message)
