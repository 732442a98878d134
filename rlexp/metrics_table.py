"""The metrics of many runs as one table: a row for each logged point, with what its run was. Free of torch."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any

from rlexp import files
from rlexp.comparing import SEED, differing, flat_config
from rlexp.errors import ConfigError, RlexpError, RunError
from rlexp.run_dir import RunDir

SUFFIXES = {".csv": "csv", ".parquet": "parquet"}
AXES = {"env_steps": int, "updates": int, "time_s": float}
ENTRY = ("run", "status", "algo", "env", SEED)  # the first columns
MAX_COLUMNS = 5_000  # a stranger's rows may all have other names


class Table:
    """What to write: the runs, their settings, and the metrics that any of them has."""

    def __init__(self, runs: Sequence[Mapping[str, Any]], patterns: Sequence[str], config: str) -> None:
        self.runs: list[Mapping[str, Any]] = []
        self.problems: list[str] = []
        names: dict[str, None] = {}
        for run in runs:
            try:
                if run["status"] == "damaged":
                    raise RunError(f"{run['name']}: {run['problem']}")
                names |= _metric_names(run["name"])
            except RlexpError as error:
                self.problems.append(str(error))
            else:
                self.runs.append(run)
        flats = [flat_config(run["config"]) for run in self.runs]
        keys = {
            "differing": differing(flats),
            "all": list(dict.fromkeys(k for flat in flats for k in flat)),
            "none": [],
        }
        if config not in keys:
            raise ConfigError(f"config={config}: it is differing, all or none.")
        self.settings = [key for key in keys[config] if key not in ENTRY]
        self.first = [self._first(run, flat) for run, flat in zip(self.runs, flats)]
        self.metrics = self._chosen([name for name in sorted(names) if name not in AXES], patterns)
        self.columns = [*ENTRY, *self.settings, *AXES, *self.metrics]

    def _first(self, run: Mapping[str, Any], flat: Mapping[str, Any]) -> dict[str, Any]:
        """The columns that are the same in all rows of a run."""
        values = {"run": run["name"], **{key: run.get(key) for key in ENTRY[1:]}}
        return values | {key: _plain(flat.get(key)) for key in self.settings}

    @staticmethod
    def _chosen(found: list[str], patterns: Sequence[str]) -> list[str]:
        if not patterns:
            return found
        chosen = [name for name in found if any(fnmatchcase(name, pattern) for pattern in patterns)]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in found):
                known = ", ".join(found[:20]) + (", …" if len(found) > 20 else "")
                raise ConfigError(f"metrics={pattern}: none of the runs has such a metric. There are: {known}.")
        return chosen

    def rows(self) -> Iterator[list[dict[str, Any]]]:
        """The rows of each run that have any of the metrics."""
        wanted = (*AXES, *self.metrics)
        for run, first in zip(self.runs, self.first):
            rows = []
            for row in RunDir.open(run["name"]).metrics():
                values = {name: row[name] for name in wanted if _is_number(row.get(name))}
                if any(name in values for name in self.metrics):
                    rows.append(first | values)
            yield rows


def _metric_names(run: str) -> dict[str, None]:
    names: dict[str, None] = {}
    for row in RunDir.open(run).metrics():
        names |= dict.fromkeys(name for name, value in row.items() if _is_number(value))
        if len(names) > MAX_COLUMNS:
            raise RunError(f"{run} has rows of more than {MAX_COLUMNS} different metrics.")
    return names


def write_table(table: Table, to: str) -> int:
    """Write the table to ``to`` (.csv or .parquet, ``-``: CSV to standard output); the number of its rows."""
    if to == "-":
        return _write_csv(table, sys.stdout)
    path = Path(to).expanduser().absolute()
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".csv":
            with open(temporary, "w", encoding="utf-8", newline="") as file:
                count = _write_csv(table, file)
        else:
            count = _write_parquet(table, temporary)
        files.sync_file(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}.") from error
    except OverflowError as error:
        raise RunError(f"{path} cannot be written: a run has numbers too large for it. A .csv takes them.") from error
    finally:
        if path.parent.is_dir():
            temporary.unlink(missing_ok=True)
    return count


def check_target(to: str) -> None:
    """Before anything is read, refuse what could not be written."""
    path = Path(to).expanduser()
    if to != "-" and path.suffix not in SUFFIXES:
        raise ConfigError(f"to={to}: a table is written to a .csv or .parquet file, or to - (CSV, standard output).")
    if path.suffix == ".parquet":
        _pyarrow()
    if to != "-" and os.path.lexists(path):
        raise ConfigError(f"{path} exists already. Choose another name, or delete it.")


def _write_csv(table: Table, file: IO[str]) -> int:
    writer = csv.DictWriter(file, table.columns, restval="", lineterminator="\n")
    writer.writeheader()
    count = 0
    for rows in table.rows():
        writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
        count += len(rows)
    return count


def _write_parquet(table: Table, path: Path) -> int:
    """One row group for each run."""
    arrow, parquet = _pyarrow()
    kinds = {int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_(), str: arrow.string()}
    types = {name: _column_type([first[name] for first in table.first]) for name in (*ENTRY, *table.settings)}
    types |= AXES | dict.fromkeys(table.metrics, float)
    schema = arrow.schema([(name, kinds[types[name]]) for name in table.columns])
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for rows in table.rows():
            columns = {name: [_as(types[name], row.get(name)) for row in rows] for name in table.columns}
            writer.write_table(arrow.table(columns, schema=schema))
            count += len(rows)
    return count


def _column_type(values: Sequence[Any]) -> type:
    """The narrowest type that holds all values of a setting."""
    found = {type(value) for value in values if value is not None}
    if found <= {bool}:
        return bool if found else str
    if found <= {int} and all(value is None or abs(value) < 2**63 for value in values):
        return int
    return float if found <= {int, float} else str


def _as(kind: type, value: Any) -> Any:
    return None if value is None else kind(value)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise RlexpError("A .parquet file needs pyarrow: pip install 'rlexp[parquet]', or write a .csv.") from error
    return pyarrow, parquet
