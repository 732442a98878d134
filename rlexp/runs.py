"""Finding runs on disk. Reads only; free of torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlexp.errors import RlexpError
from rlexp.run_dir import SUMMARY, RunDir

MAX_DEPTH = 3  # outputs/NAME, outputs/SWEEP/JOB


def find_runs(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """One entry for each run below some folders: its path, state and, where there is one, its summary."""
    return [_entry(path) for folder in folders for path in _run_folders(folder, MAX_DEPTH)]


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    if RunDir.is_run(folder):
        yield folder
    elif depth and folder.is_dir() and not folder.is_symlink():
        for child in sorted(folder.iterdir()):
            yield from _run_folders(child, depth - 1)


def _entry(path: Path) -> dict[str, Any]:
    try:
        run = RunDir.open(path)
        summary = json.loads((path / SUMMARY).read_text()) if (path / SUMMARY).exists() else {}
        return {"seed": run.config.get("seed"), **summary, "name": str(path), "status": run.state()}
    except (RlexpError, ValueError, OSError) as error:
        return {"name": str(path), "status": "damaged", "problem": str(error)}
