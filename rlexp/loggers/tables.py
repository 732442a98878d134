"""Tables for ``rlexp list`` and ``rlexp eval``: drawn with rich in a terminal, aligned plain text when piped."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rlexp.errors import counted
from rlexp.loggers.console import STATUS, Line, entry, is_terminal, place_text, print_plain
from rlexp.loggers.format import duration, evaluation_text, mean_std, number, printable, share

STYLES = {status: colour for status, (_, colour) in STATUS.items()} | {"running": "cyan", "pruned": "yellow"}


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str | None = None,
    right: Collection[str] = (),
    file: TextIO | None = None,
) -> None:
    """Print rows under ``columns``; those named in ``right`` are aligned to the right. The last one may wrap.

    Plain text has one line per row, two spaces between columns, and every cell whole: it is for ``grep`` and ``awk``.
    """
    file = sys.stdout if file is None else file
    rows = [[printable(cell) for cell in row] for row in rows]
    if is_terminal(file):
        _print_rich(columns, rows, title, right, file)
        return
    if title:
        print_plain([(title, "")], file)
    cells = [[" ".join(cell.split()) for cell in row] for row in [columns, *rows]]
    widths = [max(len(cell) for cell in column) for column in zip(*cells)]
    for row in cells:
        aligned = [
            cell.rjust(width) if name in right else cell.ljust(width) for cell, width, name in zip(row, widths, columns)
        ]
        print_plain([("  ".join(aligned).rstrip(), "")], file)


def _print_rich(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None, right: Collection[str], file: TextIO
) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from rlexp.loggers.live import rich_console

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for position, name in enumerate(columns):
        last = position == len(columns) - 1
        table.add_column(
            name,
            justify="right" if name in right else "left",
            style="cyan" if position == 0 else None,
            no_wrap=not last,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
    console = rich_console(file)
    if title:
        console.print(Text(title, "bold"))
    console.print(table)
    console.print()


def print_choices(group: str, choices: Mapping[str, str], *, file: TextIO | None = None) -> None:
    """What ``group=…`` can be set to, with a line on each."""
    print_table([group, "what it is"], [[name, text] for name, text in choices.items()], file=file)


def print_runs(runs: Sequence[Mapping[str, Any]], *, settings: Sequence[str] = (), file: TextIO | None = None) -> None:
    """Run directories: each is its summary.json (whatever of it exists) with a ``name``, and the ``settings`` shown."""
    known = ["run", "status", "done", "algo", "env", "seed", "steps", "updates", "time", "eval", "best"]
    dispensable = [name for name in ("updates", "algo", "seed", "env", "time", "done", "best") if name not in settings]
    settings = [key for key in dict.fromkeys(settings) if key not in known]  # these have a column
    columns = [*known, *settings]
    rows = [
        [
            str(run["name"]),
            str(run.get("status", "")),
            "" if run.get("progress") is None else share(run["progress"]),
            str(run.get("algo", "")),
            str(run.get("env", "")),
            str(run.get("seed", "")),
            _count(run.get("env_steps")),
            _count(run.get("updates")),
            "" if run.get("wall_time_s") is None else duration(run["wall_time_s"]),
            _return(run.get("eval")),
            _return(run.get("best_eval")),
            *(str(run.get("settings", {}).get(key, "")) for key in settings),
        ]
        for run in runs
    ]
    used = [index for index in range(len(columns)) if index == 0 or any(row[index] for row in rows)]
    right = {"done", "seed", "steps", "updates", "time", "eval", "best"}
    _print_fitting(columns, rows, used, dispensable, right, file)


def print_presets(presets: Sequence[Mapping[str, str]], *, file: TextIO | None = None) -> None:
    """Presets of the zoo: each has a ``preset``, and whatever else is known of it."""
    columns = list(presets[0])
    rows = [list(preset.values()) for preset in presets]
    right = {"target", "budget", "n", "time"}
    dispensable = ("algo", "env", "time", "n", "budget", "met by median")
    _print_fitting(columns, rows, list(range(len(columns))), dispensable, right, file)


def _print_fitting(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    used: list[int],
    dispensable: Sequence[str],
    right: Collection[str],
    file: TextIO | None,
) -> None:
    """A table of some columns; those that are dispensable are left out, in that order, where a terminal is narrow."""
    file = sys.stdout if file is None else file
    if is_terminal(file):
        # A name is typed into the next command, so it is kept whole; what it says already goes first.
        width = shutil.get_terminal_size().columns
        needs = [max(len(cell) for cell in column) + 3 for column in zip(columns, *rows)]
        for name in dispensable:
            if sum(needs[i] for i in used) - 3 > width:
                used = [i for i in used if columns[i] != name]
    print_table([columns[i] for i in used], [[row[i] for i in used] for row in rows], right=right, file=file)


def print_sweep(
    jobs: Sequence[Mapping[str, Any]],
    folder: Path,
    total: int,
    notes: Sequence[tuple[str, str]] = (),
    *,
    resume: str,
    file: TextIO | None = None,
) -> None:
    """How the jobs of a sweep ended: each is an entry of ``rlexp list runs`` with the ``label`` that tells it apart.

    ``total`` is the number of jobs there are to be in the end, ``notes`` are further lines, with what they are;
    ``resume`` is the command that goes on.
    """
    file = sys.stdout if file is None else file
    counts = {status: sum(job["status"] == status for job in jobs) for status in ("completed", "pruned")}
    print_line([], file)
    rows = [
        [str(number), str(job["label"]), str(job["status"]), _return(job.get("eval"))]
        for number, job in enumerate(jobs, start=1)
    ]
    if rows:
        print_table(["job", "what", "status", "return"], rows, right={"job", "return"}, file=file)
        print_line([], file)
    pruned = f", {counts['pruned']} pruned" if counts["pruned"] else ""
    place = place_text(folder)
    print_line(
        [(f"{counts['completed']} of {counted(total, 'job')} completed{pruned}", "bold"), (f"  {place}", "")], file
    )
    for name, text in notes:
        print_line(entry(name, printable(text)), file)
    following = f"rlexp report {shlex.quote(place)}" if sum(counts.values()) == total else resume
    print_line(entry("next", printable(following), "cyan"), file)


def print_evaluation(
    result: Mapping[str, Any], *, title: str, paths: Mapping[str, Any] | None = None, file: TextIO | None = None
) -> None:
    """The outcome of ``rlexp eval``: ``result`` as in summary.json, with ``returns`` of the episodes if known."""
    lines = [[(title, "bold")], entry("return", mean_std(result["return_mean"], result.get("return_std")), "bold cyan")]
    returns = result.get("returns") or []
    if len(returns) > 1:
        lines.append(entry("range", f"{number(min(returns))} to {number(max(returns))}"))
    if (length := result.get("length_mean")) is not None:
        lines.append(entry("length", number(length)))
    if (rate := result.get("success_rate")) is not None:
        lines.append(entry("success", f"{rate:.0%}"))
    if (score := result.get("normalized_score")) is not None:
        lines.append(entry("score", f"{number(score)} of 100, normalized"))
    lines.append(entry("episodes", _count(result.get("episodes"))))
    lines += [entry(label, place_text(place)) for label, place in (paths or {}).items()]
    file = sys.stdout if file is None else file
    for line in lines:
        print_line(line, file)


def print_line(line: Line, file: TextIO) -> None:
    """Print a line of (text, style) pieces; styles are dropped when piped."""
    if is_terminal(file):
        from rlexp.loggers.live import print_styled

        print_styled(line, file)
    else:
        print_plain(line, file)


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _return(result: Mapping[str, Any] | None) -> str:
    return evaluation_text(result) if result else ""
