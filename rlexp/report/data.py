"""What a report shows, as plain data: runs, what varied, who was best, curves and details. Free of torch.

A run may be a stranger's. All that is read from one ends as text or numbers in here, and as text on the page.
"""

from __future__ import annotations

import math
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rlexp.comparing import Flat, differing, flat_config, key_of, seed_groups, tasks, varied
from rlexp.errors import RlexpError, counted
from rlexp.loggers.format import mean_std, outcome
from rlexp.report.curves import read_curves, short
from rlexp.report.labels import group_labels, settings_of, short_names
from rlexp.report.text import clip, listed, text_of
from rlexp.report.videos import Videos
from rlexp.run_dir import RunDir

POINTS = 400  # of a curve
ALL_POINTS = 1_200_000  # of all curves together, about; a page of some ten megabytes
LEAST_POINTS = 60
TYPICAL_METRICS = 15
PREFERRED = ("eval/return_mean", "eval/fqe_value", "eval/initial_value", "rollout/return_mean")
SAID, NAMED = 5, 8  # settings that a sentence has room for: with their numbers of values, by name alone
ALGORITHMS = 6  # that it has room for
TITLES = 3  # runs that a title names


def report_data(runs: Sequence[Mapping[str, Any]], title: str | None, videos: Videos) -> dict[str, Any]:
    """Everything the page needs; ``runs`` are entries of ``find_runs``."""
    entries = [dict(run) for run in runs]
    limit = max(LEAST_POINTS, min(POINTS, ALL_POINTS // (TYPICAL_METRICS * len(entries))))
    root = _common_folder([run["name"] for run in entries])
    thinned = 1
    for entry in entries:
        entry["label"] = os.path.relpath(entry["name"], root) if len(entries) > 1 else Path(entry["name"]).name
        if entry["status"] != "damaged":
            thinned = max(thinned, _read(entry, limit))
    whole = [run for run in entries if run["status"] != "damaged"]
    flats = [flat_config(run["config"]) for run in whole]
    for run, task in zip(whole, tasks(flats, [str(run.get("env") or "") for run in whole])):
        run["env"] = task
    keys, all_keys = varied(flats), differing(flats)
    groups = _groups(whole, flats, keys)
    shown = [_shown(run, position, videos) for position, run in enumerate(entries)]
    places = {id(run): position for position, run in enumerate(entries)}
    for number_, group in enumerate(groups):
        group["runs"] = [places[id(whole[member])] for member in group.pop("members")]
        for position in group["runs"]:
            shown[position]["group"] = number_
    for run, flat in zip(whole, flats):
        shown[places[id(run)]]["values"] = {key: _value(flat[key]) for key in all_keys if key in flat}
        shown[places[id(run)]]["config"] = {key: _value(value) for key, value in flat.items()}
    metrics = sorted({name for run in shown for name in run["curves"]})
    best = _best(groups)
    data: dict[str, Any] = {
        "title": title or root.name or "runs",
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": metadata.version("rlexp"),
        "runs": shown,
        "groups": groups,
        "keys": keys,
        "more_keys": [key for key in all_keys if key not in keys],
        "metrics": metrics,
        "metric": next((name for name in (*PREFERRED, *metrics) if name in metrics), None),
        "axis": _axis(shown),
        "thinned": thinned,
        "best": best,
        "statuses": dict(Counter(run["status"] for run in entries)),
        "time": sum(run.get("wall_time_s") or 0 for run in entries),
    }
    data["headline"] = headline(data, flats)
    return data


def title_of(places: Sequence[Path], runs: int) -> str:
    """What a report is called after what it was asked for: folders or single runs by their names."""
    names = [place.resolve().name for place in places]
    if len(names) <= TITLES:
        return listed(names)
    return f"{counted(runs, 'run')} in {_common_folder([str(place.resolve()) for place in places]).name}"


def _common_folder(names: Sequence[str]) -> Path:
    paths = [Path(name).absolute() for name in names]
    return Path(os.path.commonpath([path.parent for path in paths])) if len(paths) > 1 else paths[0]


def _read(entry: dict[str, Any], limit: int) -> int:
    """Add to an entry its curves and what its run.json says."""
    try:
        run = RunDir.open(entry["name"])
        entry["info"], entry["state"] = run.info, run.status()
        entry["read"], joined = read_curves(run.metrics(), limit)
        return joined
    except (RlexpError, OSError) as error:
        entry |= {"problem": str(error), "read": {}, "info": {}}
        return 1


def _shown(run: Mapping[str, Any], position: int, videos: Videos) -> dict[str, Any]:
    read = run.get("read") or {}
    result, kind = _result(run)
    best, best_spread = _found(run.get("best_eval"))
    return {
        "id": position,
        "name": run["label"],
        "path": str(run["name"]),
        "status": run["status"],
        "algo": str(run.get("algo") or ""),
        "env": str(run.get("env") or ""),
        "seed": _value(run.get("seed")),
        "steps": run.get("env_steps"),
        "updates": run.get("updates"),
        "time": run.get("wall_time_s"),
        "progress": run.get("progress"),
        "created": str(run.get("created") or ""),
        "result": result,
        "spread": _found(run.get("eval"))[1] if kind == "eval" else None,
        "kind": kind,
        "best": best,
        "best_spread": best_spread,
        "group": None,
        "values": {},
        "config": {},
        "problem": _problem(run),
        "grids": read.get("grids", []),
        "curves": read.get("curves", {}),
        "last": read.get("last", {}),
        "details": _details(run),
        "videos": videos.of(Path(run["name"])),
    }


def _found(evaluation: Mapping[str, Any] | None) -> tuple[float | None, float | None]:
    """(what an evaluation found, its deviation): a return, or the value that an evaluator without environment names."""
    found = outcome(evaluation) if evaluation else None
    return (None, None) if found is None else (_finite(found[1]), _finite(found[2]))


def _result(run: Mapping[str, Any]) -> tuple[float | None, str]:
    """(the return a run came to, how it was measured): its last evaluation, or else the last episodes of training."""
    evaluated, _ = _found(run.get("eval"))
    if evaluated is not None:
        return evaluated, "eval"
    return (run.get("read") or {}).get("last", {}).get("rollout/return_mean"), "rollout"


def _problem(run: Mapping[str, Any]) -> str | None:
    """Why a run is not what it should be."""
    told = run.get("problem")
    if told is None and run["status"] in ("failed", "interrupted"):
        told = (run.get("state") or {}).get("reason")
    return None if told is None else clip(told)


def _details(run: Mapping[str, Any]) -> list[list[str]]:
    """What run.json says of where a run comes from, as rows of (name, text)."""
    info = run.get("info") or {}
    command = info.get("command")
    rows = [["command", shlex.join(map(str, command)) if isinstance(command, list) else None]]
    rows += [["started", info.get("created")], ["sweep", info.get("group")], ["machine", info.get("platform")]]
    resumes = info.get("resumes")
    if isinstance(resumes, list) and resumes:
        rows.append(["resumed", f"{len(resumes)} times" if len(resumes) > 1 else "once"])
    for what in ("versions", "decisions"):
        if isinstance(info.get(what), dict):
            rows.append([what, ", ".join(f"{key} {value}" for key, value in list(info[what].items())[:40])])
    checkouts = info.get("git")
    for name, state in list(checkouts.items())[:5] if isinstance(checkouts, dict) else ():
        if isinstance(state, dict):
            changed = {True: ", with changes", False: "", None: ""}.get(state.get("dirty"), "")
            rows.append([f"commit of {name}", f"{state.get('commit')}{changed}"])
    return [[clip(name), clip(text)] for name, text in rows if text not in (None, "")]


# ---- groups and the best of them


def _groups(runs: Sequence[Mapping[str, Any]], flats: Sequence[Flat], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Runs that differ in nothing but their seed, with mean and spread of their results."""
    positions = seed_groups(flats)
    groups: list[dict[str, Any]] = []
    for members, label in zip(positions, group_labels(runs, flats, positions, keys)):
        first, flat = runs[members[0]], flats[members[0]]
        results = [result for result in (_result(runs[member])[0] for member in members) if result is not None]
        groups.append(
            {
                "label": label,
                "env": str(first.get("env") or ""),
                "members": members,
                "counted": len(results),  # runs that have a result: of these the mean is
                "result": _mean(results),
                "spread": _deviation(results),
                "values": {key: _value(flat[key]) for key in keys if key in flat},
            }
        )
    return groups


def _best(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each environment the group with the largest mean return; first the environment with the most runs."""
    runs: Counter[str] = Counter()
    best: dict[str, int] = {}
    for position, group in enumerate(groups):
        runs[group["env"]] += len(group["runs"])
        if group["result"] is None:
            continue
        other = best.get(group["env"])
        if other is None or group["result"] > groups[other]["result"]:
            best[group["env"]] = position
    return [{"env": env, "group": position} for env, position in sorted(best.items(), key=lambda each: -runs[each[0]])]


def headline(data: Mapping[str, Any], flats: Sequence[Flat]) -> str:
    """What a newcomer should know first, in some sentences."""
    runs, groups = data["runs"], data["groups"]
    algos, envs = _most_first(runs, "algo"), _most_first(runs, "env")
    seeds = max((len(group["runs"]) for group in groups), default=0)
    said = counted(len(runs), "run")
    if algos:
        said += f" of {listed(algos, ALGORITHMS)}"
    if envs:
        said += f" on {listed(envs)}"
    if seeds > 1:
        said += f", up to {seeds} seeds each" if len(groups) > 1 else f", {seeds} seeds"
    elif len(groups) > 1:
        said += ", one seed each"
    sentences = [f"{said}.", *_varied(data["keys"], flats)]
    on = Counter(group["env"] for group in groups)
    for best in data["best"][:3] if len(groups) > 1 else data["best"][:1]:
        group = groups[best["group"]]
        where = f" on {best['env']}" if len(envs) > 1 else ""
        one = runs[group["runs"][0]] if len(group["runs"]) == 1 else None
        reached = mean_std(group["result"], one["spread"] if one else group["spread"])
        over = f", mean over {group['counted']} seeds" if group["counted"] > 1 else ""
        which = f"Best{where} is {group['label']} with a return of" if on[best["env"]] > 1 else f"Return{where}"
        equal = sum(other["env"] == group["env"] and other["result"] == group["result"] for other in groups) - 1
        too = f", which {equal} other{'s' if equal > 1 else ''} reached too" if equal else ""
        sentences.append(f"{which}{':' if where and on[best['env']] == 1 else ''} {reached}{over}{too}.")
    if pruned := data["statuses"].get("pruned"):
        were = "run was" if pruned == 1 else "runs were"
        sentences.append(f"{pruned} {were} pruned: ended early by the search, since others had done better by then.")
    others = {status: count for status, count in data["statuses"].items() if status not in ("completed", "pruned")}
    if others:
        sentences.append(f"Not completed: {', '.join(f'{count} {status}' for status, count in others.items())}.")
    return " ".join(sentences)


def _most_first(runs: Sequence[Mapping[str, Any]], what: str) -> list[str]:
    return [name for name, _ in Counter(run[what] for run in runs if run[what]).most_common()]


def _varied(keys: Sequence[str], flats: Sequence[Flat]) -> list[str]:
    """The sentence on the settings that were varied, in as much detail as it has room for."""
    names, settings = short_names(keys), settings_of(keys)
    if not settings:
        return []
    if len(settings) > NAMED:
        return [f"They differ in {counted(len(settings), 'setting')}."]
    if len(settings) > SAID:
        return [f"Varied: {listed([names[key] for key in settings], NAMED)}."]
    values = {key: len({key_of(flat[key]) for flat in flats if key in flat}) for key in settings}
    return [f"Varied: {listed([f'{names[key]} ({count} values)' for key, count in values.items()], SAID)}."]


# ---- values


def _axis(runs: Sequence[Mapping[str, Any]]) -> int:
    """Environment steps, or updates where there are none: offline."""
    return 0 if any(run["steps"] for run in runs) else 1


def _value(value: Any) -> Any:
    """A setting for the page: numbers stay numbers, the rest is text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if math.isfinite(value) and abs(value) < 2**53 else str(value)
    return clip(text_of(value))


def _finite(value: Any) -> float | None:
    return short(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _mean(values: Sequence[float]) -> float | None:
    return short(sum(values) / len(values)) if values else None


def _deviation(values: Sequence[float]) -> float | None:
    """The standard deviation of a sample; None of one value alone."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return short(math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1)))
