"""``rlexp --multirun`` and ``rlexp resume SWEEP``: run what is due, and say truthfully how every job ended."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from rlexp.config.check import build
from rlexp.config.compose import compose_group
from rlexp.config.messages import suggest
from rlexp.config.overrides import parse_override, whole
from rlexp.config.trust import EVERYTHING, Trust, own_packages
from rlexp.errors import ConfigError
from rlexp.loggers.format import duration, mean_std, outcome, printable, short_path
from rlexp.loggers.tables import print_sweep
from rlexp.runs import find_runs
from rlexp.sweeps.job import INTERRUPTED, Job
from rlexp.sweeps.kinds import OptunaSearch, Sweep
from rlexp.sweeps.launchers import Launcher
from rlexp.sweeps.planning import Plan, is_of_sweep
from rlexp.sweeps.sweep_dir import SweepDir

DONE = ("completed", "pruned")
SHOWN_FAILURES = 5


class Source(Protocol):
    """Where the jobs of a sweep come from."""

    total: int  # jobs there are to be in the end

    def due(self) -> Iterator[Job]:
        """The jobs that are still to be run; a search makes them up as it goes."""

    def ended(self, job: Job) -> None:
        """Told of each when it has ended, in whatever way."""

    def close(self) -> list[tuple[str, str]]:
        """Called at the end; lines for below the table, with what they are."""


class Fixed:
    """The jobs of a grid."""

    def __init__(self, directory: SweepDir, trust: Trust = EVERYTHING) -> None:
        self._jobs = directory.jobs(trust)
        self.total = len(self._jobs)

    def due(self) -> Iterator[Job]:
        """Those that are neither completed nor running."""
        for job in self._jobs:
            if _entry(job)["status"] not in (*DONE, "running"):
                yield job

    def ended(self, job: Job) -> None:
        """Its directory says it all."""

    def close(self) -> list[tuple[str, str]]:
        """Nothing beyond the table."""
        return []


def run_sweep(overrides: Sequence[str], command: Sequence[str], config_folders: Sequence[str] = ()) -> int:
    """Check every job, run them, and say how each ended; the exit code. ``config_folders``: of --config-dir."""
    plan = Plan(overrides)
    plan.launcher.check()
    if isinstance(plan.sweep, OptunaSearch):
        from rlexp.sweeps.search import Space

        plan.refuse_own_folders()
        plan.refuse_interpolations()
        Space(plan.overrides).check(plan.launcher, config_folders)
    directory = SweepDir.create(
        plan.folder,
        command,
        sweep=plan.sweep_node,
        launcher=plan.launcher_node,
        arguments=plan.arguments,
        config_folders=[str(Path(folder).absolute()) for folder in config_folders],
        jobs=[],
    )
    with directory:
        for job in plan.jobs:
            directory.add(job)
        directory.save()
        return run_jobs(directory, plan.sweep, plan.launcher, EVERYTHING, config_folders)


def resume_sweep(path: Path, overrides: Sequence[str], trust: Trust, config_folders: Sequence[str] = ()) -> int:
    """Go on with a sweep: what is completed is skipped, the rest continued or run again; the exit code."""
    directory = SweepDir.open(path)
    changes = _changes(overrides)
    with directory.lock():
        node = directory.info["sweep"] | changes
        sweep: Sweep = build("sweep", node, trust)
        launcher = _launcher(directory, overrides, trust)
        launcher.check()
        missing = [each for each in directory.info["config_folders"] if each not in _absolute(config_folders)]
        if missing and isinstance(sweep, OptunaSearch):
            flags = " ".join(f"--config-dir {shlex.quote(printable(each))}" for each in missing)
            raise ConfigError(f"The sweep was composed with configs of yours. Give them again: {flags}")
        if isinstance(sweep, OptunaSearch) and sweep.trials < len(directory.info["jobs"]):
            raise ConfigError(f"sweep.trials={sweep.trials}: {len(directory.info['jobs'])} were begun already.")
        if changes:
            directory.info["sweep"] = node
            directory.save()
        return run_jobs(directory, sweep, launcher, trust, config_folders)


def _absolute(folders: Sequence[str]) -> list[str]:
    return [str(Path(folder).absolute()) for folder in folders]


def _changes(overrides: Sequence[str]) -> dict[str, Any]:
    """What may change about a sweep that was begun: how many trials it is to have."""
    changes = {}
    for text in overrides:
        key, value, _ = parse_override(text)
        if key == "sweep.trials":
            changes["trials"] = whole(value)
        elif not is_of_sweep(text) or key.startswith(("sweep", "search")):
            raise ConfigError(
                f"{text}: the jobs of a sweep stay what they are.{suggest(key, ('launcher', 'sweep.trials', 'trust'))}"
            )
    return changes


def _launcher(directory: SweepDir, overrides: Sequence[str], trust: Trust) -> Launcher:
    """The one that was typed, or the one the sweep had, unless that could run a stranger's commands."""
    typed = [each for each in overrides if parse_override(each)[0] != "sweep.trials"]  # _changes refused the rest
    if typed:
        return build("launcher", compose_group("launcher", typed))  # type: ignore[no-any-return]
    launcher: Launcher = build("launcher", directory.info["launcher"], trust)
    if not launcher.safe:
        given = [each for each in directory.info["command"] if each.startswith("launcher")]
        raise ConfigError(
            "A launcher that reaches other machines is not taken from a file. Say where the sweep is to go on: "
            f"rlexp resume {short_path(directory.path, quoted=True)} {printable(shlex.join(given))} (or launcher=local)"
        )
    return launcher


def run_jobs(directory: SweepDir, sweep: Sweep, launcher: Launcher, trust: Trust, config_folders: Sequence[str]) -> int:
    """Run what is due in a sweep that is locked; 0 if every job has completed in the end, 128 + n after signal n."""
    from rlexp.trainers.workspace import Interrupted

    source: Source
    if isinstance(sweep, OptunaSearch):
        from rlexp.sweeps.search import Search

        source = Search(sweep, directory, trust, config_folders)
    else:
        source = Fixed(directory, trust)
    problems: dict[int, str] = {}
    signalled = None

    def announced() -> Iterator[Job]:
        for job in source.due():
            if job.config["progress"] != "none":
                print(f"\njob {job.number + 1} of {source.total}: {job.label}", flush=True)
            yield job

    try:
        for job, problem in launcher.run(announced(), directory.path):
            if problem is not None and problem != INTERRUPTED:
                problems[job.number] = problem
                print(f"error: {job.label}: {printable(problem)}", file=sys.stderr)
            source.ended(job)
            if not launcher.shows_progress and directory.info["jobs"][job.number]["config"]["progress"] != "none":
                print(_ended(job, source.total), flush=True)
    except Interrupted as stop:
        signalled = stop.signal_number
    finally:
        jobs = directory.jobs()
        rows = [_row(job, problems) for job in jobs]
        notes = [*_failures(rows, problems), *source.close()]
        if any(job.config["progress"] != "none" for job in jobs):
            resume = _resume_command(directory, launcher, config_folders if isinstance(sweep, OptunaSearch) else ())
            print_sweep(rows, directory.path, source.total, notes, resume=resume)
    if signalled is not None:
        return 128 + signalled
    return 0 if len(rows) == source.total and all(row["status"] in DONE for row in rows) else 1


def _entry(job: Job) -> dict[str, Any]:
    (entry,) = find_runs([job.path]) or [{"status": "not begun"}]
    return entry


def _row(job: Job, problems: dict[int, str]) -> dict[str, Any]:
    entry = _entry(job)
    if entry["status"] == "not begun" and job.number in problems:
        entry["status"] = "failed"
    return {**entry, "label": job.label}


def _failures(rows: Sequence[dict[str, Any]], problems: dict[int, str]) -> list[tuple[str, str]]:
    """Why jobs failed, below the table: what was said at the time has long scrolled away."""
    lines = [
        f"{rows[number]['label']}: {problem.strip().splitlines()[-1]}"
        for number, problem in sorted(problems.items())
        if problem.strip() and rows[number]["status"] not in DONE
    ]
    more = [f"and {len(lines) - SHOWN_FAILURES} more"] if len(lines) > SHOWN_FAILURES else []
    return [("" if place else "failed", line) for place, line in enumerate([*lines[:SHOWN_FAILURES], *more])]


def _resume_command(directory: SweepDir, launcher: Launcher, config_folders: Sequence[str]) -> str:
    """What to type to go on, with all that is not taken from a file: trust, far launchers, own configs."""
    packages = sorted({package for job in directory.jobs() for package in own_packages(job.config)})
    words = [f"trust=[{','.join(packages)}]"] if packages else []
    if not launcher.safe:
        words += [each for each in directory.info["command"] if each.startswith("launcher")]
    flags = [part for folder in config_folders for part in ("--config-dir", folder)]
    return shlex.join(["rlexp", "resume", short_path(directory.path), *words, *flags])


def _ended(job: Job, total: int) -> str:
    """One line on a job that ran elsewhere."""
    entry = _entry(job)
    result = entry.get("eval")
    parts = [f"job {job.number + 1} of {total}: {job.label}  {entry['status']}"]
    if result:
        name, value, spread = outcome(result) or ("return", math.nan, None)
        parts.append(f"{name} {mean_std(value, spread)}")
    if entry.get("wall_time_s"):
        parts.append(duration(entry["wall_time_s"]))
    return "  ".join(parts)
