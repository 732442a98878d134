"""Manifests as a page of Markdown. Everything on it is computed from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rlexp.loggers.format import duration
from rlexp.zoo.manifest import changes
from rlexp.zoo.results import Result, median_to_target
from rlexp.zoo.statistics import iqm, stratified_interval

CURVES, PROFILE, TIMES = "curves.png", "profile.png", "times.png"
UNKNOWN = "unknown"
LEARNING = {"steps": "online", "updates": "offline"}
NOTE = """\
Each seed counts with the mean of its greedy evaluation episodes at the end of the budget (not the best one seen),
or with the share of these episodes that succeeded. IQM is the interquartile mean over seeds; the interval is the 95
% percentile bootstrap interval of the mean, in which all resamples of the seeds are taken: of three seeds it
reaches from the least to the greatest, and of one (n = 1) there is none. A target is met if the median of the seeds
meets it within the budget and, offline, is above the mean return of the data (clones of an expert aside)."""
ORIGINS = """\
A + marks a checkout with changes that were not committed. The config is the beginning of a hash of all settings but
the seed, the name and what does not change the experiment. The whole hashes, and everything else, are in the
manifests."""
PROFILES = """\
Scores run from 0, what uniform actions reach, to 1, the target. A profile shows the share of runs that score at
least so much; every preset weighs the same, and bands are 95 % intervals of a bootstrap that resamples the seeds of
each preset."""


def page(results: Sequence[Result], title: str = "Results", pictures: bool = True) -> str:
    """The whole page, as ``rlexp bench zoo`` writes it."""
    parts = [f"# {title}", "", NOTE, "", *tables(results, pictures), *summary(results, pictures),
             *times(results, pictures), *origins(results)]  # fmt: skip
    return "\n".join(parts) + "\n"


# ---- results


def tables(results: Sequence[Result], pictures: bool = True) -> list[str]:
    """One table for each environment and way of learning."""
    lines = []
    for (env, unit), group in grouped(results).items():
        offline = any(each.data_mean is not None for each in group)
        columns = ["preset", "target", "mean", "IQM", "95 % interval", "each seed", "n",
                   *(["data's mean"] if offline else []), unit, "wall time", "met"]  # fmt: skip
        lines += [f"## {env}, {LEARNING[unit]}", "", *table(columns, (_row(each, offline) for each in group)), ""]
    counts = sorted({run["eval"]["episodes"] for result in results for run in result.runs})
    lines += [f"Evaluation episodes at the end: {', '.join(map(str, counts))}.", ""]
    if pictures:
        lines += ["## Learning curves", "", f"![Learning curves: means over seeds with intervals]({CURVES})", ""]
    return lines


def grouped(results: Iterable[Result]) -> dict[tuple[str, str], list[Result]]:
    """By environment and what the budget counts, in the order in which they first come."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.env, result.unit), []).append(result)
    return groups


def _row(result: Result, offline: bool) -> list[str]:
    changed = f" with {' '.join(result.changes)}" if result.changes else ""
    target = result.target
    return [
        f"`{result.preset}{changed}`",
        "" if target is None else f"{target} in {thousands(target.budget)}",
        f"**{result.shown(result.mean)}**",
        result.shown(result.iqm),
        "n = 1" if result.interval is None else " to ".join(map(result.shown, result.interval)),
        ", ".join(map(result.shown, result.finals)),
        str(result.n),
        *([] if not offline else ["" if result.data_mean is None else f"{result.data_mean:.1f}"]),
        f"{result.spent:,}",
        duration(result.wall_time_s),
        _met(result),
    ]


def _met(result: Result) -> str:
    if result.met is None:
        return ""
    seeds = "" if result.at_target == result.n else f": {result.at_target} of {result.n} seeds"
    return ("yes" if result.met else "**missed**") + seeds


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table."""
    return [f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *rows]]


def thousands(count: int) -> str:
    """``100 k``, ``3 M``."""
    return f"{count / 1e6:g} M" if count >= 1_000_000 else f"{count / 1e3:g} k" if count >= 1_000 else str(count)


# ---- scores


def summary(results: Sequence[Result], pictures: bool = True) -> list[str]:
    """All presets of one way of learning together."""
    rows = []
    for unit, kind in LEARNING.items():
        groups = [each.scores for each in results if each.unit == unit and each.scores]
        if groups:
            scores = [score for group in groups for score in group]
            spread = stratified_interval(groups, iqm)
            share = sum(score >= 1 for score in scores) / len(scores)
            shown = "n = 1" if spread is None else f"{spread[0]:.3f} to {spread[1]:.3f}"
            middle = float(iqm(np.array(scores)))
            rows.append([kind, str(len(groups)), str(len(scores)), f"{middle:.3f}", shown, f"{share:.0%}"])
    if not rows:
        return []
    columns = ["learning", "presets", "runs", "IQM of the scores", "95 % interval", "runs at the target or above"]
    picture = [f"![Performance profiles]({PROFILE})", ""] if pictures else []
    return ["## Scores", "", PROFILES, "", *table(columns, rows), "", *picture]


# ---- time to the target


def times(results: Sequence[Result], pictures: bool = True) -> list[str]:
    """When the target was first reached."""
    rows = []
    for result in results:
        if not (reached := result.to_target):
            continue
        median = median_to_target(reached)
        count = sum(each is not None for each in reached)
        cells = ["never", "never"] if median is None else [f"{median[0]:,} {result.unit}", duration(median[1])]
        rows.append([f"`{result.preset}`", f"{count} of {len(reached)}", *cells])
    if not rows:
        return []
    head = "The first evaluation at the target or above; the median over seeds, of which some may never have got there."
    shown = [f"![Time to the target, in steps or updates and in seconds]({TIMES})", ""] if pictures else []
    return ["## Time to the target", "", head, "", *shown,
            *table(["preset", "seeds that reached it", "after", "wall time"], rows), ""]  # fmt: skip


# ---- where it comes from


def origins(results: Sequence[Result]) -> list[str]:
    """Commands, commits, configs, machines and versions."""
    runs = [run for result in results for run in result.runs]
    columns = ["command", "seeds", "commit", "config"]
    rows = []
    for result in results:
        first, *resumes = result.runs[0]["command"].split("; ")
        words = first.split()
        named = next((word for word in words if word.startswith("zoo=")), f"zoo={result.preset}")  # its name then
        command = " ".join(["rlexp", named, "seed=S", *_threads(first), *changes(words[1:])])
        command = "; ".join([command, *resumes])
        commits = _each((run["commit"] or UNKNOWN)[:10] + ("+" if run["dirty"] else "") for run in result.runs)
        hashes = _each((run["config_sha256"] or UNKNOWN)[:10] for run in result.runs)
        rows.append([f"`{command}`", ", ".join(str(run["seed"]) for run in result.runs), commits, hashes])
    machines = _each(machine(run) for run in runs)
    versions = _each(sorted({f"{k} {v}" for run in runs for k, v in run["versions"].items() if v and k != "rlexp"}))
    return ["## Commands", "", ORIGINS, "", *table(columns, rows), "", f"Machines: {machines}.", "",
            f"Versions: {versions}."]  # fmt: skip


def _threads(command: str) -> list[str]:
    return [word for word in command.split() if word.startswith("threads=")]


def machine(run: dict[str, Any]) -> str:
    """What computed a run."""
    about = run["machine"]
    cores = UNKNOWN if about["cores"] is None else str(about["cores"])
    threads = UNKNOWN if run["threads"] is None else str(run["threads"])
    return (
        f"{about['platform'] or UNKNOWN} (processor {about['cpu'] or UNKNOWN}, cores {cores}, "
        f"device {run['device'] or UNKNOWN}, torch threads {threads})"
    )


def _each(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))
