"""``rlexp bench speed``: steady-state rates of rlexp and its peers, alternating in one run with the same settings."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rlexp.bench import report
from rlexp.bench.contest import BenchError, Entry, Rounds, alternate, contestants, ratios
from rlexp.bench.peers import PEERS, require, translate
from rlexp.bench.workloads import EAGER, Workload, config_of, select

RLEXP = "rlexp.bench.contestants:run_rlexp"


def run(
    *, against: Sequence[str], only: Sequence[str] | None, rounds: int, seconds: float, threads: Sequence[int]
) -> list[dict[str, Any]]:
    """Measure every workload; the results as they go into the JSON."""
    works = select(only)
    require(against)
    report.warn_if_busy()
    results = []
    with tempfile.TemporaryDirectory(prefix="rlexp-bench-") as folder:
        for work in works:
            report.say(f"{work.name}: {work.title}")
            try:
                results.append(measure(work, Path(folder), against, rounds, seconds, threads))
            except BenchError as error:  # the others took minutes and are worth having
                report.say(f"error: {error}")
                results.append({"name": work.name, "error": str(error)})
    return results


def measure(
    work: Workload, folder: Path, against: Sequence[str], rounds: int, seconds: float, threads: Sequence[int]
) -> dict[str, Any]:
    """One workload: all its contestants, at every number of threads, in every round."""
    config = config_of(work, data_path(work, folder))
    peer = entry_of_peer(work, config, against)
    sides = {"rlexp": Entry("rlexp", RLEXP, {"config": config, "unit": work.unit})}
    if peer is not None:
        sides["peer"] = peer
    entries = [Entry(side.name, side.target, side.spec, count) for count in threads for side in sides.values()]
    with contestants(entries, say=_say) as runners:
        measured = iter(alternate(runners, rounds, seconds, say=_say))
    by_threads = {count: {side: next(measured) for side in sides} for count in threads}
    settings = {"overrides": list(work.overrides), "rlexp": config}
    if peer is not None:
        settings["peer"] = peer.spec.get("settings", {"compile": False})
    return summarize(work, None if peer is None else peer.name, by_threads) | {"settings": settings}


def data_path(work: Workload, folder: Path) -> str | None:
    """The synthetic data of an offline workload, written once."""
    if work.data is None:
        return None
    from rlexp.bench.synthetic import write_data

    path = folder / f"data-{work.data}.npz"
    if not path.exists():
        write_data(path, work.data)
    return str(path)


def entry_of_peer(work: Workload, config: dict[str, Any], against: Sequence[str]) -> Entry | None:
    """Whom this workload is compared with, if anybody."""
    if work.peer == EAGER:
        return Entry("rlexp eager", RLEXP, {"config": config | {"compile": False}, "unit": work.unit})
    if work.peer is None or work.peer not in against:
        return None
    peer = PEERS[work.peer]
    return Entry(peer.title, peer.target, {"settings": translate(work.peer, config), "unit": work.unit})


def summarize(work: Workload, peer: str | None, by_threads: dict[int, dict[str, Rounds]]) -> dict[str, Any]:
    """Medians and ratios: at the same number of threads, and of each side at its better one."""
    per_threads: dict[str, Any] = {}
    for count, measured in by_threads.items():
        entry: dict[str, Any] = {side: _side(rounds) for side, rounds in measured.items()}
        if "peer" in measured:
            entry |= _compared(measured["rlexp"], measured["peer"])
        per_threads[str(count)] = entry
    sides = list(next(iter(by_threads.values())))
    best = {side: max(by_threads, key=lambda count: by_threads[count][side].median) for side in sides}
    chosen: dict[str, Any] = {
        side: {"threads": count, "median": by_threads[count][side].median} for side, count in best.items()
    }
    if "peer" in best:
        chosen |= _compared(by_threads[best["rlexp"]]["rlexp"], by_threads[best["peer"]]["peer"])
    return {
        "name": work.name,
        "title": work.title,
        "unit": work.unit,
        "peer": peer,
        "least": work.least,
        "aim": work.aim,
        "threads": per_threads,
        "best": chosen,
        "verdict": report.verdict(chosen.get("ratio"), work.least, work.aim),
    }


def _side(rounds: Rounds) -> dict[str, Any]:
    return {
        "median": rounds.median,
        "rounds": [round(rate, 3) for rate in rounds.rates],
        "cpu_rounds": [round(rate, 3) for rate in rounds.cpu_rates],
        "round_trips_ns": [answer.get("round_trips_ns", []) for answer in rounds.answers],  # between cores, around each
    }


def _compared(ours: Rounds, theirs: Rounds) -> dict[str, Any]:
    each = ratios(ours.rates, theirs.rates)
    cpu = median(ratios(ours.cpu_rates, theirs.cpu_rates))
    return {"ratio": median(each), "ratios": [round(ratio, 3) for ratio in each], "cpu_ratio": cpu}


def show(results: Sequence[dict[str, Any]]) -> None:
    """The table: a row for every number of threads, and one with each side at its better number."""
    columns = [
        "work",
        "threads",
        "rlexp",
        "per second",
        "peer",
        "peer's",
        "ratio",
        "by cpu time",
        "at least",
        "aim",
        "",
    ]
    rows = []
    for result in results:
        if "error" in result:
            rows.append([result["name"], *[""] * (len(columns) - 2), "failed"])
            continue
        lines = [(count, entry) for count, entry in result["threads"].items()]
        if len(lines) > 1:
            best = result["best"]
            label = "/".join(str(best[side]["threads"]) for side in ("rlexp", "peer") if side in best)
            lines.append((f"best ({label})", best))
        for index, (label, entry) in enumerate(lines):
            last = index == len(lines) - 1
            rows.append(
                [
                    result["name"] if index == 0 else "",
                    label,
                    report.number(entry["rlexp"]["median"]),
                    result["unit"],
                    result["peer"] or "" if "peer" in entry else "",
                    report.number(entry["peer"]["median"]) if "peer" in entry else "",
                    report.times(entry.get("ratio")),
                    report.times(entry.get("cpu_ratio")),
                    report.times(result["least"]) if last else "",
                    report.times(result["aim"]) if last else "",
                    result["verdict"] if last else "",
                ]
            )
    report.table(columns, rows, text_columns=1)


def _say(text: str) -> None:
    report.say(f"  {text}")
