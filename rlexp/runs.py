"""Finding runs on disk, and choosing among them. Reads only; free of torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rlexp.comparing import flat_config
from rlexp.config.compose import choice_file
from rlexp.config.messages import suggest
from rlexp.config.naming import component_name
from rlexp.errors import ConfigError, RlexpError, RunError
from rlexp.loggers.format import outcome
from rlexp.run_dir import RunDir

MAX_DEPTH = 3  # outputs/NAME, outputs/SWEEP/JOB
STATES = ("running", "completed", "interrupted", "failed", "killed", "pruned", "damaged")
# What runs are asked for beside settings.
FILTERS: tuple[str, ...] = ("status", "algo", "env", "name", "group", "since", "limit", "sort")
AGES = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def run_path(given: Path | str) -> Path:
    """A folder or file as it was given; where there is none, that of the run below outputs/ that has this name."""
    path = Path(given).expanduser()
    named = Path("outputs") / path
    return named if not path.exists() and not path.is_absolute() and named.is_dir() else path


def find_runs(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """One entry for each run below some folders: path, state, config and, where there is one, its summary."""
    return [_entry(path) for path in run_folders(folders)]


def run_folders(folders: Sequence[Path]) -> list[Path]:
    """The run directories among and below some folders, each once, ``job 2`` before ``job 10``."""
    return list(dict.fromkeys(path for folder in folders for path in _below(folder, MAX_DEPTH)))


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if RunDir.is_run(folder):
        yield folder
    elif depth and folder.is_dir() and not folder.is_symlink():
        try:
            children = sorted(folder.iterdir(), key=lambda child: natural(child.name))
        except OSError:  # another user's
            return
        for child in children:
            yield from _below(child, depth - 1)


def natural(text: str) -> list[tuple[int, int, str]]:
    """A key that sorts numbers in names by their value."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d{1,18})", text)]


def existing_places(names: Sequence[str]) -> list[Path]:
    """The folders that names stand for; of a run below outputs/ its name alone will do."""
    places = []
    for name in names:
        path = run_path(name)
        if not path.exists():
            raise RunError(f"There is no folder {name}. `rlexp list runs` shows the runs there are.")
        places.append(path)
    return places


# ---- what is known of one


def _entry(path: Path) -> dict[str, Any]:
    try:
        run = RunDir.open(path)
        state: str = run.state()
        summary = _so_far(run) if state in ("running", "killed") else run.summary()
        for key in ("eval", "best_eval"):
            if summary.get(key) is not None:
                _check_evaluation(summary[key])
        if summary:
            _check_numbers(summary, ("env_steps", "updates", "wall_time_s"))
        if state == "completed" and summary.get("stop_reason") == "pruned":  # by the search it belongs to
            state = "pruned"
        known = {"created": run.info.get("created"), "group": run.info.get("group"), "config": run.config}
        seed = {"seed": run.config.get("seed")}
        return {**seed, **summary, **known, "progress": _progress(run, summary), "name": str(path), "status": state}
    except (RlexpError, ValueError, OSError) as error:
        return {"name": str(path), "status": "damaged", "problem": str(error)}


def _so_far(run: RunDir) -> dict[str, Any]:
    """What is known of a run that has not come to its end: a summary, if there is one, is from before a resume."""
    parts = {name: node for name, node in run.config.items() if isinstance(node, dict)}
    row: dict[str, Any] = {"env_steps": 0, "updates": 0, "time_s": 0.0}
    for each in run.latest_rows():
        row |= each
    _check_numbers(row, ("env_steps", "updates", "time_s"), "metrics.jsonl")
    saved = run.checkpoints.counters()  # there may be one before the first row
    if saved and (saved["env_steps"], saved["updates"]) > (row["env_steps"], row["updates"]):
        row |= saved
    evaluated = {name.removeprefix("eval/"): value for name, value in row.items() if name.startswith("eval/")}
    return {
        "algo": component_name(parts.get("algo", {})),
        "env": parts.get("env", {}).get("id") or parts.get("env", {}).get("game", ""),
        "env_steps": row["env_steps"],
        "updates": row["updates"],
        "wall_time_s": row["time_s"],
        "eval": evaluated if outcome(evaluated) else None,
    }


def _progress(run: RunDir, summary: Mapping[str, Any]) -> float | None:
    """The share of its budget that a run has used."""
    trainer = run.config.get("trainer")
    trainer = trainer if isinstance(trainer, dict) else {}
    pretraining = trainer.get("offline_pretrain_updates") or 0  # of a mixed run, spent before its steps
    for total, done in (("total_steps", "env_steps"), ("total_updates", "updates")):
        budget = trainer.get(total)
        if isinstance(budget, int | float) and budget > 0 and done in summary:
            spent = summary[done]
            if done == "env_steps" and isinstance(pretraining, int) and pretraining > 0:
                spent, budget = spent + min(summary.get("updates", 0), pretraining), budget + pretraining
            return float(min(spent / budget, 1.0))
    return None


def _check_evaluation(result: Any) -> None:
    found = outcome(result) if isinstance(result, dict) else None
    if found is None:
        raise ValueError("summary.json has an evaluation without a result")
    name, value, std = found
    _check_numbers({f"return {name}": value, "return deviation": std}, (f"return {name}", "return deviation"))


def _check_numbers(values: Any, names: Iterable[str], file: str = "summary.json") -> None:
    """A summary may be a stranger's, and what it holds is shown as numbers; a return may be NaN."""
    for name in names:
        value = values.get(name) if isinstance(values, dict) else None
        if not isinstance(value, int | float) or not (abs(value) < 1e15 or (value != value and "return" in name)):
            raise ValueError(f"{file} has no {name} that can be shown")


# ---- choosing among them


@dataclass
class Query:
    """Which runs are meant: ``status=failed algo=ppo,a2c env=cartpole algo.gamma=0.9 since=2d sort=-return``."""

    where: dict[str, list[str]] = field(default_factory=dict)  # key: any of these values
    since: str | None = None
    sort: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if "env" in self.where:
            self.where["env"] = [*self.where["env"], *_env_ids(self.where["env"])]
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit must be at least 1, not {self.limit}.")

    def __call__(self, runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of the runs, in their order."""
        flats = [self._values(run) for run in runs]
        known = dict.fromkeys(key for flat in flats for key in flat)
        if runs:
            self._check_keys(known, len(runs))
        for value in self.where.get("status", []):
            if not any(_fits(state, [value]) for state in STATES):
                raise ConfigError(f"status={value}: no run can be that.{suggest(value, STATES)}")
        chosen = [
            (run, flat) for run, flat in zip(runs, flats) if all(_fits(flat.get(k), v) for k, v in self.where.items())
        ]
        if self.since is not None:
            start = parse_since(self.since)
            chosen = [
                (run, flat) for run, flat in chosen if (_created(run) or datetime.min.replace(tzinfo=UTC)) >= start
            ]
        if self.sort is not None:
            chosen = self._sorted(chosen)
        return [run for run, _ in chosen[: self.limit]]

    def _check_keys(self, known: Iterable[str], runs: int) -> None:
        """Refuse what no run has. Settings are near a hundred: named is what there is beside them."""
        asked = [(key, key, FILTERS, "algo.gamma=…") for key in self.where]
        if self.sort is not None:
            asked.append((f"sort={self.sort}", self.sort.lstrip("-"), COLUMNS, "algo.gamma"))
        for said, key, beside, example in asked:
            names = dict.fromkeys((*known, *beside))
            if key not in names:
                there = f"There are {', '.join(beside)}, and any setting of a config ({example})."
                likely = suggest(key, names, otherwise=there)
                raise ConfigError(f"{said}: none of the {runs} runs has such a setting.{likely}")

    def _values(self, run: Mapping[str, Any]) -> dict[str, Any]:
        flat = flat_config(run.get("config") or {})
        return flat | {key: run.get(key) for key in ("status", "algo", "env", "name", "group") if key in run}

    def _sorted(self, chosen: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[tuple[dict[str, Any], Any]]:
        """In the order of a column or setting; runs without it come last."""
        assert self.sort is not None
        key, down = self.sort.lstrip("-"), self.sort.startswith("-")
        value = SORTED_BY.get(key, lambda run: None)
        pairs = [(value(run) if key in SORTED_BY else flat.get(key), run, flat) for run, flat in chosen]
        have = [pair for pair in pairs if pair[0] is not None and pair[0] == pair[0]]
        have.sort(key=lambda pair: _order(pair[0]), reverse=down)
        return [(run, flat) for _, run, flat in have] + [
            (run, flat) for value, run, flat in pairs if value is None or value != value
        ]


def _env_ids(names: Sequence[str]) -> list[str]:
    """The ids behind the choices of ``env=``: cartpole is CartPole-v1."""
    files = [path for name in names if (path := choice_file("env", name)) is not None]
    found = [re.search(r"^id: (\S+)", path.read_text(encoding="utf-8"), re.MULTILINE) for path in files]
    return [each[1] for each in found if each]


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _result(evaluation: Mapping[str, Any] | None) -> float | None:
    found = outcome(evaluation) if evaluation else None
    return found[1] if found else None


SORTED_BY: dict[str, Any] = {
    "name": lambda run: run["name"],
    "created": lambda run: run.get("created"),
    "status": lambda run: run["status"],
    "done": lambda run: run.get("progress"),
    "steps": lambda run: run.get("env_steps"),
    "updates": lambda run: run.get("updates"),
    "time": lambda run: run.get("wall_time_s"),
    "return": lambda run: _result(run.get("eval")),
    "best": lambda run: _result(run.get("best_eval") or run.get("eval")),
}
COLUMNS: tuple[str, ...] = (*SORTED_BY, "algo", "env", "seed")  # what runs are sorted by beside settings


def _order(value: Any) -> tuple[int, float, list[tuple[int, int, str]]]:
    number = _number(value)
    return (0, number, []) if number is not None else (1, 0.0, natural(str(value)))


def _fits(value: Any, wanted: Sequence[str]) -> bool:
    """Whether a value is one of those: numbers by value, other things by their text, in which * stands for anything."""
    text = setting_text(value)
    for each in wanted:
        number = _number(value)
        if number is not None:
            try:
                if float(each.replace("_", "")) == number:
                    return True
            except ValueError:
                pass
        if fnmatchcase(text.lower().replace(" ", ""), each.lower().replace(" ", "").replace("[", "[[]")):
            return True
    return False


def setting_text(value: Any) -> str:
    """A setting as it is typed: null, true, [16,16]."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"[{','.join(map(setting_text, value))}]" if isinstance(value, list) else str(value)


def _created(run: Mapping[str, Any]) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(run.get("created")))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_since(text: str) -> datetime:
    """``90m``, ``12h``, ``3d`` or ``2w`` ago, or a date such as 2025-03-01."""
    try:
        if found := re.fullmatch(r"(\d{1,6})([mhdw])", text):
            return datetime.now(UTC) - timedelta(**{AGES[found[2]]: int(found[1])})
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):  # 999999w is before the year 1
        raise ConfigError(f"since={text}: write how long ago, 90m, 12h, 3d or 2w, or a date, 2025-03-01.") from None
    return moment if moment.tzinfo else moment.astimezone()
