"""``rlexp bench …``: reading the arguments; each command lives in a module of its own."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rlexp.errors import ConfigError

Results = list[dict[str, Any]]

DESCRIPTION = """\
Measure rlexp on this machine, alone or against its peers (pip install "rlexp[bench]"), which run the same settings
in the same run. Use a quiet machine: figures are comparable only within one run."""


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are errors like all others of rlexp."""

    def error(self, message: str) -> NoReturn:
        """Instead of printing the usage and exiting with 2."""
        raise ConfigError(f"{self.prog}: {message}. `{self.prog} --help` shows what there is.")


def main(arguments: list[str]) -> int:
    """Run one of the benchmarks."""
    parser = build_parser()
    if not arguments:
        parser.print_help()
        return 0
    options = parser.parse_args(arguments)
    results = options.command(options)
    if isinstance(results, int):
        return results
    return 1 if any("error" in result for result in results) else 0


def build_parser() -> Parser:
    """All commands and their options."""
    parser = Parser(prog="rlexp bench", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    def add(name: str, run: Callable[[argparse.Namespace], Results], text: str, rounds: int, **more: Any) -> Parser:
        command: Parser = commands.add_parser(name, help=text, description=text)
        command.set_defaults(command=run, name=name)
        command.add_argument("--rounds", type=_count, default=rounds, help=f"measurements of each (default {rounds})")
        default = Path("outputs") / "bench" / f"{name}.json"
        command.add_argument(
            "-o", "--output", type=Path, default=default, metavar="FILE.json", help=f"results (default {default})"
        )
        if "seconds" in more:
            seconds = more["seconds"]
            command.add_argument(
                "--seconds", type=_positive, default=seconds, help=f"length of a measurement (default {seconds})"
            )
        if more.get("peers"):
            peers = " and ".join(more["peers"])
            command.add_argument("--against", type=_names, default=[], metavar="PEERS", help=f"compare with {peers}")
        if "threads" in more:
            command.add_argument(
                "--threads",
                type=_counts,
                default=more["threads"],
                metavar="N,…",
                help=f"numbers of torch threads (default {','.join(map(str, more['threads']))})",
            )
        return command

    speed = add(
        "speed",
        _speed,
        "steady-state steps or updates per second of every workload",
        5,
        seconds=4.0,
        peers=("sb3", "d3rlpy"),
        threads=[1, 2],
    )
    speed.add_argument("--only", type=_names, metavar="NAME,…", help="some of the workloads")
    add("startup", _startup, "time from the command to the first environment step", 5, peers=("sb3",))
    solve = add("solve", _solve, "wall time from the shell prompt to a solved task", 3, peers=("sb3",), threads=[1, 2])
    solve.add_argument("--only", type=_names, metavar="NAME,…", help="some of the tasks")
    solve.add_argument("--budget", type=_count, help="steps after which a run is given up (default: the preset's)")
    solve.add_argument("--warm-cache", action="store_true", help="let runs reuse compiled code of earlier runs")
    scaling = add("scaling", _scaling, "rates against environments, buffer fill and ensemble size", 3, seconds=3.0)
    scaling.add_argument("--only", type=_names, metavar="NAME,…", help="some of: envs, fill, ensemble")
    scaling.add_argument("--points", type=_counts, metavar="N,…", help="other sizes than the usual ones")
    profile = add("profile", _profile, "where an iteration spends its time, and the limits", 5, seconds=3.0)
    profile.add_argument("--only", type=_names, metavar="NAME,…", help="some of the workloads")
    _add_zoo(commands)
    return parser


ZOO = """\
Run presets over seeds, then write a manifest for each, a page with tables, and pictures into one folder. The same
command goes on with what was interrupted; completed runs are not run again, failed ones are."""


def _add_zoo(commands: Any) -> None:
    """``rlexp bench zoo``, which measures what is learned, not how fast."""
    zoo: Parser = commands.add_parser("zoo", help="what presets reach, over seeds: tables and curves", description=ZOO)
    zoo.set_defaults(command=_zoo)
    zoo.add_argument("--presets", type=_names, default=[], metavar="NAME,…",
                     help="which; * for any: '*_cartpole' (default: all with a target)")  # fmt: skip
    zoo.add_argument("--seeds", type=_count, default=3, metavar="N", help="seeds 0 to N-1 (default 3)")
    folder = Path("outputs") / "bench" / "zoo"
    zoo.add_argument("-o", "--output", type=Path, default=folder, metavar="DIR", help=f"folder (default {folder})")
    zoo.add_argument("--config-dir", "-cd", action="append", default=[], metavar="DIR", help="presets of your own")
    zoo.add_argument("overrides", nargs="*", metavar="KEY=VALUE",
                     help="settings of all runs (threads=1 unless given), and launcher=joblib|slurm|ray")  # fmt: skip


def _zoo(options: argparse.Namespace) -> int:
    from rlexp.zoo import bench

    sys.path.append(os.getcwd())  # a user's own targets are importable from here, as in training
    return bench.run(options.presets, options.seeds, options.output, options.overrides, options.config_dir)


def _speed(options: argparse.Namespace) -> Results:
    from rlexp.bench import speed

    given = _given(options, "against", "only", "rounds", "seconds", "threads")
    results = speed.run(**given)
    speed.show(results)
    return _write(options, given, results)


def _startup(options: argparse.Namespace) -> Results:
    from rlexp.bench import startup

    given = _given(options, "against", "rounds")
    results = startup.run(**given)
    startup.show(results)
    return _write(options, given, results)


def _solve(options: argparse.Namespace) -> Results:
    from rlexp.bench import solve

    given = _given(options, "against", "only", "rounds", "threads", "budget", "warm_cache")
    results = solve.run(**given)
    solve.show(results)
    return _write(options, given, results)


def _scaling(options: argparse.Namespace) -> Results:
    from rlexp.bench import pictures, scaling

    given = _given(options, "only", "points", "rounds", "seconds")
    results = scaling.run(**given)
    scaling.show(results)
    _write(options, given, results)
    return _draw(pictures.scaling, results, options)


def _profile(options: argparse.Namespace) -> Results:
    from rlexp.bench import pictures, profiling

    given = _given(options, "only", "rounds", "seconds")
    results = profiling.run(**given)
    profiling.show(results)
    _write(options, given, results)
    return _draw(pictures.profile, results, options)


def _given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    return {name: getattr(options, name) for name in names}


def _write(options: argparse.Namespace, given: dict[str, Any], results: Results) -> Results:
    from rlexp.bench import report

    report.write_json(options.output, report.document(options.name, given, results))
    report.say(f"written to {options.output}")
    return results


def _draw(draw: Callable[[Results, Path], None], results: Results, options: argparse.Namespace) -> Results:
    from rlexp.bench import report

    path = options.output.with_suffix(".png")
    draw(results, path)
    report.say(f"drawn in {path}")
    return results


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _count(text: str) -> int:
    value = int(text.replace("_", ""))
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def _counts(text: str) -> Sequence[int]:
    return [_count(part) for part in _names(text)]


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number, not {text}")
    return value
