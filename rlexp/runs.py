"""Finding runs on disk. Reads only; free of torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rlexp.config.component import snake_case
from rlexp.errors import RlexpError
from rlexp.loggers.format import outcome
from rlexp.run_dir import RunDir

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
        state = run.state()
        summary = _so_far(run) if state in ("running", "killed") else run.summary()
        for key in ("eval", "best_eval"):
            if summary.get(key) is not None:
                _check_evaluation(summary[key])
        if summary:
            _check_numbers(summary, ("env_steps", "updates", "wall_time_s"))
        return {"seed": run.config.get("seed"), **summary, "name": str(path), "status": state}
    except (RlexpError, ValueError, OSError) as error:
        return {"name": str(path), "status": "damaged", "problem": str(error)}


def _so_far(run: RunDir) -> dict[str, Any]:
    """What is known of a run that has not come to its end: a summary, if there is one, is from before a resume."""
    parts = {name: node for name, node in run.config.items() if isinstance(node, dict)}
    algo = str(parts.get("algo", {}).get("_target_", "")).rpartition(".")[2]
    row: dict[str, Any] = {"env_steps": 0, "updates": 0, "time_s": 0.0}
    for each in run.latest_rows():
        row |= each
    evaluated = {name.removeprefix("eval/"): value for name, value in row.items() if name.startswith("eval/")}
    return {
        "algo": snake_case(algo),
        "env": parts.get("env", {}).get("id", ""),
        "env_steps": row["env_steps"],
        "updates": row["updates"],
        "wall_time_s": row["time_s"],
        "eval": evaluated if outcome(evaluated) else None,
    }


def _check_evaluation(result: Any) -> None:
    found = outcome(result) if isinstance(result, dict) else None
    if found is None:
        raise ValueError("summary.json has an evaluation without a result")
    name, value, std = found
    _check_numbers({f"return {name}": value, "return deviation": std}, (f"return {name}", "return deviation"))


def _check_numbers(values: Any, names: Iterable[str]) -> None:
    """A summary may be a stranger's, and what it holds is shown as numbers; a return may be NaN."""
    for name in names:
        value = values.get(name) if isinstance(values, dict) else None
        if not isinstance(value, int | float) or not (abs(value) < 1e15 or (value != value and "return" in name)):
            raise ValueError(f"summary.json has no {name} that can be shown")
