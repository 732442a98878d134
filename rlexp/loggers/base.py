"""What a logger is told about a run, and the things it does. Loggers read rows; they never touch training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]  # env_steps, updates, time_s and slash-named floats; read-only, shared by all loggers


@dataclass(kw_only=True)
class RunInfo:
    """The run as a logger sees it."""

    path: Path  # the run directory
    name: str  # how the run is shown
    config: dict[str, Any]  # resolved, plain values
    algo: str
    env: str
    seed: int
    run_id: str  # unique and stable: kept in run.json, the same after a resume
    group: str | None = None  # the sweep this run belongs to
    resumed: bool = False
    skip_rows: int = 0  # rows below this index were logged before the resume and are not sent again
    step_key: str | None = None  # the x-axis: env_steps, updates or step; None: told from the first row that counts

    def axis(self, row: Row) -> str | None:
        """The key that serves as x-axis, once known: updates where no environment is stepped (offline)."""
        if self.step_key is None:
            if row.get("env_steps"):
                self.step_key = "env_steps"
            elif row.get("updates"):
                self.step_key = "updates"
        return self.step_key


class Logger:
    """Sends rows somewhere. Raise ``RlexpError`` from ``open`` with the fix; anything later only switches it off."""

    def rows_held(self, info: RunInfo) -> int:
        """How many rows this logger has from before a resume; asked before ``open``."""
        return info.skip_rows

    def open(self, info: RunInfo) -> None:
        """Start, or go on after a resume."""

    def log(self, index: int, row: Row) -> None:
        """One row of metrics; ``index`` counts the rows of the run."""

    def video(self, index: int, row: Row, gif: bytes) -> None:
        """One row of metrics on an episode, and a GIF of it. A logger that shows no pictures takes the row."""
        self.log(index, row)

    def close(self, status: str, summary: Mapping[str, Any] | None) -> None:
        """Finish with ``completed``, ``interrupted`` or ``failed``; ``summary`` as in summary.json."""

    def where(self) -> str | None:
        """What a person opens or types to look at what was logged."""
        return None


def flatten(tree: Mapping[str, Any], separator: str) -> dict[str, Any]:
    """Nested dicts as one dict with joined keys; values that are None are left out."""
    flat = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update({f"{key}{separator}{name}": leaf for name, leaf in flatten(value, separator).items()})
        elif value is not None:
            flat[str(key)] = value
    return flat
