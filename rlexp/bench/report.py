"""What a measurement leaves behind: a table for the reader, JSON for whoever wants to check it."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlexp.bench.peers import PEERS
from rlexp.loggers.tables import print_table
from rlexp.machine import cpu_model
from rlexp.provenance import provenance

FORMAT = 1
BUSY = 0.5  # running processes per core, before we start any, from which on figures mean little


def document(command: str, options: dict[str, Any], results: Any) -> dict[str, Any]:
    """Results with everything they depend on: versions, commit, machine, options."""
    origin = provenance()
    peers = {name: version for peer in PEERS.values() for name, version in peer.versions().items()}
    return {
        "format": FORMAT,
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": origin["versions"] | peers,
        "git": origin["git"],
        "options": options,
        "results": results,
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a document, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """The processor, and how busy it is."""
    return {
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def warn_if_busy(load: float | None = None, cores: int | None = None) -> None:
    """Say that others are using the machine: no statistics mends that."""
    load = os.getloadavg()[0] if load is None else load
    cores = cores or os.cpu_count() or 1
    if load > BUSY * cores:
        say(f"The machine is busy (load {load:.1f} on {cores} cores): figures taken now will mostly be noise.")


def say(text: str) -> None:
    """Progress, for the reader; results go to standard output."""
    print(text, file=sys.stderr, flush=True)


def number(value: float) -> str:
    """Three digits or more: 12.3, 123, 1,234."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def times(ratio: float | None) -> str:
    """A ratio: 4.1×."""
    return "" if ratio is None else f"{ratio:.2g}×" if ratio < 10 else f"{ratio:.0f}×"


def verdict(ratio: float | None, least: float | None, aim: float | None) -> str:
    """Whether a target was reached."""
    if ratio is None or least is None:
        return ""
    if aim is not None and ratio >= aim:
        return "aim reached"
    return "enough" if ratio >= least else "missed"


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, text_columns: int = 1
) -> None:
    """Print a table; the first ``text_columns`` columns hold text, the others figures."""
    print_table(columns, list(rows), title=title, right=set(columns[text_columns:]))
