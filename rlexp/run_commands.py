"""``rlexp list runs``, ``metrics``, ``report`` and ``export``: what was run, looked at and taken elsewhere.

Only ``export`` needs torch; the others answer at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlexp.comparing import flat_config
from rlexp.config.messages import suggest
from rlexp.errors import ConfigError, RunError
from rlexp.loggers.format import printable, short_path
from rlexp.options import (
    ExportOptions,
    ListRunsOptions,
    MetricsOptions,
    QueryOptions,
    ReportOptions,
    flags_as_options,
    read_options,
    read_query,
)
from rlexp.runs import Query, existing_places, find_runs, setting_text

TO_FLAGS = {"--to": "to", "-o": "to", "--output": "to"}


def list_runs(arguments: Sequence[str]) -> int:
    """Show the runs there are, or those that were asked for."""
    from rlexp.loggers.tables import print_runs

    options, folders, where = read_query(ListRunsOptions, flags_as_options(arguments, {}))
    places = existing_places(folders) or [Path("outputs")]
    found = find_runs(places)
    runs = _query(options, where)(found)
    if not runs:
        below = f"below {', '.join(map(str, places))}"
        print(f"None of the {len(found)} runs {below} is like that." if found else f"No runs {below}.")
        return 0
    for run in runs:
        run["settings"] = {key: setting_text(value) for key, value in flat_config(run.get("config") or {}).items()}
    known = dict.fromkeys(key for run in runs for key in run["settings"])
    for key in options.show:
        if key not in known:
            likely = suggest(key, known, otherwise="Any setting of a config can be shown (algo.gamma).")
            raise ConfigError(f"show={key}: none of the runs has such a setting.{likely}")
    print_runs(runs, settings=options.show)
    for run in runs:
        if run["status"] == "damaged":
            print(f"{printable(run['name'])}: {printable(run['problem'])}", file=sys.stderr)
    return 0


def metrics(arguments: Sequence[str]) -> int:
    """Write the metrics of many runs as one table."""
    from rlexp.metrics_table import Table, check_target, write_table

    options, folders, where = read_query(MetricsOptions, flags_as_options(arguments, TO_FLAGS))
    check_target(options.to)
    table = Table(_chosen("metrics", options, folders, where), options.metrics, options.config)
    count = write_table(table, options.to)
    for problem in table.problems:
        print(f"left out: {printable(problem)}", file=sys.stderr)
    if options.to != "-":
        print(f"{count:,} rows of {len(table.runs):,} runs, {len(table.columns)} columns: {short_path(options.to)}")
    return 0


def report(arguments: Sequence[str]) -> int:
    """Write a page on many runs."""
    from rlexp.report import title_of, write_report

    options, folders, where = read_query(ReportOptions, flags_as_options(arguments, TO_FLAGS))
    runs = _chosen("report", options, folders, where)
    title = options.title or title_of(existing_places(folders), len(runs))
    path = write_report(runs, Path(options.to).expanduser(), title=title, videos=options.videos)
    print(f"{len(runs):,} runs, {path.stat().st_size / 1e6:.1f} MB: {short_path(path)}")
    return 0


def _query(options: QueryOptions, where: dict[str, list[str]]) -> Query:
    return Query(where, options.since, options.sort, options.limit)


def _chosen(
    command: str, options: QueryOptions, folders: Sequence[str], where: dict[str, list[str]]
) -> list[dict[str, Any]]:
    """The runs that a command is to be about; RunError if there are none."""
    if not folders:
        raise ConfigError(f"rlexp {command} needs runs, or a folder that holds some: rlexp {command} outputs")
    found = find_runs(existing_places(folders))
    if not found:
        raise RunError(f"There are no runs below {', '.join(folders)}. `rlexp list runs` shows those below outputs/.")
    runs = _query(options, where)(found)
    if not runs:
        raise RunError(f"None of the {len(found)} runs below {', '.join(folders)} is like that.")
    return runs


def export(arguments: list[str]) -> int:
    """Write a trained policy as a program that needs no rlexp."""
    from rlexp.cli import opening, prepare, run_argument

    given = sorted(flags_as_options(arguments, TO_FLAGS), key=lambda each: "=" in each)  # the run may come last
    path, rest = run_argument("export", given)
    options, overrides = read_options(ExportOptions, rest)
    if not options.to:
        raise ConfigError("rlexp export needs a format or a file: to=torch, to=onnx, to=policy.pt2 or to=policy.onnx")
    prepare(options.trust)
    from rlexp.config.trust import trusting
    from rlexp.exporting import check_exportable, export_target
    from rlexp.exporting import export as write
    from rlexp.loading import load

    target, kind = export_target(options.to, _own_name(path.resolve()))
    check_exportable(target, kind)
    with opening(path):
        loaded = load(
            path, which=options.checkpoint, overrides=[*overrides, "device=cpu"], trust=trusting(options.trust)
        )
    runner = loaded.runner
    policy = runner.policy(loaded.checkpoint.tree["policy"], loaded.checkpoint.path)
    origin = {"algo": runner.algo_name, "env": runner.spec.id, "checkpoint": loaded.checkpoint.path.name}
    if kind == "onnx":  # not with the answer: a script may read that
        print("Translating the policy to ONNX and comparing it: up to a minute.", file=sys.stderr, flush=True)
    done = write(policy, runner.env, target, kind, origin)
    print(f"{runner.algo_name} on {runner.spec.id}, {loaded.checkpoint.path.name}, greedy actions")
    for role in ("inputs", "outputs"):
        shapes = [
            f"{each['name']} {each['dtype']} [{', '.join(map(str, ['batch', *each['shape']]))}]"
            for each in done.info[role]
        ]
        print(f"{role:<9} {', '.join(shapes)}")
    print(f"equal     to the agent on {done.compared} observations")
    print(f"written   {short_path(done.path)} ({done.path.stat().st_size / 1e3:,.0f} kB)")
    return 0


def _own_name(path: Path) -> str:
    """What a run is called outside of its folder: job 3 of a sweep is SWEEP-3, since every sweep has a 3."""
    from rlexp.sweeps.sweep_dir import SweepDir

    return f"{path.parent.name}-{path.name}" if SweepDir.is_sweep(path.parent) else path.name
