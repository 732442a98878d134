"""Renders README.md from the JSON that `rlexp bench … -o docs/speed/….json` wrote. No figure here is typed by hand.

python docs/speed/make.py                       renders
python docs/speed/make.py collect RUNS…         first adds runs of presets with precision=bfloat16 to bfloat16/
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from rlexp.bench.workloads import BY_NAME
from rlexp.runs import run_folders
from rlexp.zoo import manifest

HERE = Path(__file__).parent
PAGE = HERE / "README.md"
BFLOAT16, BENCHMARKS = HERE / "bfloat16", HERE.parent / "benchmarks"  # results of presets in either precision
ZEN4 = HERE / "zen4"  # the same on an older processor
PARTS = ("speed", "solve", "startup", "scaling", "profile")

INTRO = """\
# Speed

Rendered by [`make.py`](make.py) from the JSON files beside it, which `rlexp bench` wrote; a test compares them.
The peers and rlexp take turns in one run, in processes of their own, with the same hyperparameters and threads;
figures are medians of the rounds. They are comparable only within one run: the machine is shared, and another one gives
other numbers (the ratios move less). Make them on yours with `pip install "rlexp[bench]"` and the commands below.
"""


def load(folder: Path = HERE) -> dict[str, dict[str, Any]]:
    """The measurements there are in a folder, by command."""
    found: dict[str, dict[str, Any]] = {}
    for part in PARTS:
        documents = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob(f"{part}*.json")]
        results: dict[Any, dict[str, Any]] = {}
        commits: dict[str, str] = {}
        for document in sorted(documents, key=lambda each: each["created"]):  # what was measured again replaces the old
            for result in document["results"]:
                results[result["name"], result.get("side")] = result
                commits[result["name"]] = (document["git"]["rlexp"] or {}).get("commit", "?")[:10]
        if documents:
            newest = max(documents, key=lambda each: each["created"])
            order = {name: place for place, name in enumerate(BY_NAME)}
            ordered = sorted(results.values(), key=lambda each: order.get(each["name"], len(order)))
            found[part] = newest | {"results": ordered, "commits": commits, "length": _length(documents)}
    return found


def _length(documents: list[dict[str, Any]]) -> str:
    """How long was measured: ``3 rounds of 2 s``, of every run that there was."""
    given = [document["options"] for document in documents if "seconds" in document["options"]]
    return " or ".join(sorted({f"{each['rounds']} rounds of {each['seconds']:g} s" for each in given}))


def render(found: dict[str, dict[str, Any]]) -> str:
    """The page."""
    sections = [INTRO, machine(found)]
    for part, write in (("speed", speed), ("solve", solve), ("startup", startup), ("scaling", scaling)):
        if part in found:
            sections.append(write(found[part]))
        if part == "speed":
            sections += [precision(), elsewhere(load(ZEN4))]
    if "profile" in found:
        sections.append(profile(found["profile"]))
    return "\n".join(sections)


def machine(found: dict[str, dict[str, Any]]) -> str:
    """Where, with what, and from which commit."""
    any_one = next(iter(found.values()))
    where, versions = any_one["machine"], any_one["versions"]
    names = ("torch", "gymnasium", "numpy", "stable-baselines3", "sb3-contrib", "d3rlpy")
    listed = ", ".join(f"{name} {versions[name]}" for name in names if versions.get(name))
    commits = ", ".join(f"{part} at {_commits(doc['commits'])}" for part, doc in found.items())
    return f"Machine: {where['cpu']}, {where['cores']} cores, no GPU. {listed}. Commits: {commits}.\n"


def _commits(by_name: dict[str, str]) -> str:
    """The commit a part was measured at; where there are several, with what was."""
    groups: dict[str, list[str]] = {}
    for name, commit in by_name.items():
        groups.setdefault(commit, []).append(name)
    if len(groups) == 1:
        return f"`{next(iter(groups))}`"
    return " and ".join(f"`{commit}` ({', '.join(names)})" for commit, names in groups.items())


def speed(document: dict[str, Any]) -> str:
    """Rates in steady state."""
    return (
        "## Steady state\n\n`rlexp bench speed --against sb3,d3rlpy`, each side at its better number of threads, "
        f"{document['length']}.\n\n{rates(document)}\n{CORES}"
    )


def rates(document: dict[str, Any]) -> str:
    """A row for each workload."""
    rows = []
    for result in document["results"]:
        if "error" in result:
            rows.append([result["name"], "failed", "", "", "", "", ""])
            continue
        best = result["best"]
        peer = f"{number(best['peer']['median'])} ({best['peer']['threads']})" if "peer" in best else ""
        rows.append(
            [
                result["title"],
                f"{number(best['rlexp']['median'])} ({best['rlexp']['threads']})",
                result["peer"] or "",
                peer,
                f"**{best['ratio']:.1f}×**" if "ratio" in best else "",
                f"{result['least']:g}× {'reached' if best.get('ratio', 0) >= result['least'] else 'missed'}",
                between_cores(result),
            ]
        )
    head = ["work", "rlexp per second (threads)", "peer", "per second (threads)", "ratio", "goal", "between cores"]
    return table(head, rows)


CORES = """\
*Between cores* is how long a signal took from one core to the other and back, around the measurements of either side
(rlexp, peer; rows without it were measured before there was such a figure). This machine is a virtual one whose host
moves its two cores: now they share a cache (some 460 to 650 ns with the measuring loop's own time), now they do not
(740 to 1,350 ns). Two threads that work on small tensors run up to 1.6 times as fast in the first case: DDPG's ratio
was 2.6× there (speed-ddpg.json), and is 2.45× in the other (the newest run, shown above).

Rows of wide networks in float32 also depend on the processor. This one is of AMD's Zen 5, where compiled updates have
large products made by oneDNN, as the matrix library of torch (MKL) uses half of such a processor. Elsewhere both sides
multiply alike: before rlexp did so, DDPG, TD3 and CrossQ were 1.6× to 1.7× here, and so they are on a Zen 4 (below).
"""


def between_cores(result: dict[str, Any]) -> str:
    """Medians of the round trips around the measurements of either side at its better number of threads."""
    cells = []
    for side in ("rlexp", "peer"):
        if side not in result["best"]:
            continue
        measured = result["threads"][str(result["best"][side]["threads"])][side]
        trips = [trip for pair in measured.get("round_trips_ns", []) for trip in pair if trip is not None]
        cells += [f"{statistics.median(trips):.0f}"] if trips else []
    return f"{', '.join(cells)} ns" if cells else ""


LOWER = """\
## In bfloat16

Where networks are as wide as in the papers, matrix products and convolutions take most of an update. There
`precision=bfloat16` helps on processors that have such products (AVX512-BF16, AMX): the large products of updates read
numbers of 8 bits of precision and add up in float32. Weights, moments, losses, layers of fewer than 32 inputs and all
heads stay float32, and so does acting. The rows above that say so were measured with it; the peers have no such setting
and ran in float32. What it does to the results, over the same seeds:
"""


def precision() -> str:
    """What presets reach in bfloat16, beside float32; of the seeds that were run in both."""
    rows, commits = [], set()
    for low in manifest.load(BFLOAT16):
        full = manifest.read(BENCHMARKS / manifest.FOLDER / f"{low['preset']}.json")
        found = [{run["seed"]: run for run in each["runs"]} for each in (full, low)]
        seeds = sorted(found[0].keys() & found[1].keys())
        if not seeds:
            continue
        cells = [_returns([runs[seed]["eval"][low["figure"]] for seed in seeds]) for runs in found]
        rows.append([f"`rlexp zoo={low['preset']} seed=S threads=1`", ", ".join(map(str, seeds)), *cells])
        commits |= {run["commit"][:10] for run in low["runs"]}
    head = ["command", "seeds", "float32: mean (each)", "with `precision=bfloat16`: mean (each)"]
    return f"{LOWER}\n{table(head, rows)}\nCommits: {', '.join(f'`{commit}`' for commit in sorted(commits))}.\n"


def _returns(values: list[float]) -> str:
    return f"{statistics.fmean(values):,.1f} ({', '.join(f'{value:,.1f}' for value in values)})"


def elsewhere(found: dict[str, dict[str, Any]]) -> str:
    """The wide networks on the processor before, where nobody multiplies float32 faster than MKL."""
    commits = ", ".join(f"{part} at {_commits(document['commits'])}" for part, document in found.items())
    (ensemble,) = found["scaling"]["results"]
    return f"""\
## On an older processor

The works of wide networks on AMD's Zen 4, two cores of another virtual machine. What MKL multiplies in float32 is
what that processor can, so that only `precision=bfloat16` goes beyond it. `rlexp bench speed --against sb3 --only …`,
{found["speed"]["length"]}; {commits}.

{rates(found["speed"])}
`rlexp bench scaling --only ensemble --points 2,20`, {found["scaling"]["length"]}:
{ensemble_growth(ensemble)}
"""


def solve(document: dict[str, Any]) -> str:
    """From the prompt to a solved task."""
    rows = []
    for result in document["results"]:
        if "error" in result:
            rows.append([result["name"], "failed", "", "", "", "", ""])
            continue
        best, runs = result["best"], len(next(iter(next(iter(result["runs"].values())).values())))
        for side in ("rlexp", "SB3"):
            if side not in best:
                continue
            entry = best[side]
            ratio = f"**{best['ratio']:.1f}×**" if side == "rlexp" and "ratio" in best else ""
            solved, threads = f"{entry['solved']} of {runs}", str(entry["threads"])
            steps, seconds = f"{entry['steps']:,.0f}", f"{entry['median']:.1f} s"
            task = f"{result['name']} ({result['threshold']:g})"
            rows.append([task, side, threads, solved, steps, seconds, ratio])
    head = ["preset (return that counts as solved)", "of", "threads", "solved", "steps", "wall time", "ratio"]
    return (
        "## From the shell prompt to a solved task\n\n`rlexp bench solve --against sb3`: start-up, compiling with an "
        "empty cache, evaluations and checkpoints included; the same hyperparameters, evaluations and threads on both "
        f"sides. Steps and times are medians over seeds.\n\n{table(head, rows)}"
    )


def startup(document: dict[str, Any]) -> str:
    """Time until something happens."""
    rows = [[f"`{each['name']}`", each["side"], f"{each['median']:.2f} s"] for each in document["results"]]
    return f"## Starting up\n\n`rlexp bench startup --against sb3`\n\n{table(['command', 'of', 'median'], rows)}"


def scaling(document: dict[str, Any]) -> str:
    """Rates against sizes."""
    parts = [
        f"## Scaling\n\n`rlexp bench scaling`, one thread unless a column says two, {document['length']}.\n",
        "![Rates against environments, buffer fill and ensemble size](scaling.png)\n",
    ]
    for result in document["results"]:
        if "error" in result:
            continue
        curves = result["curves"]
        rows = [
            [f"{point:,}", *(number(c["median"][i]) for c in curves.values())]
            for i, point in enumerate(result["points"])
        ]
        parts.append(f"{result['title']} ({result['unit']} per second)\n\n{table([result['label'], *curves], rows)}")
        if result["name"] == "ensemble":
            parts.append(ensemble_cost(result))
    return "\n".join(parts)


FEW, MANY = 2, 20  # critics of an ensemble


def ensemble_growth(result: dict[str, Any]) -> str:
    """How much more an update with many critics costs than one with few, for each curve."""
    start, end = result["points"].index(FEW), result["points"].index(MANY)
    growth = {name: curve["median"][start] / curve["median"][end] for name, curve in result["curves"].items()}
    each = "; ".join(f"{name}: **{ratio:.1f}×**" for name, ratio in growth.items())
    return f"an update with {MANY} critics costs as much as this many with {FEW}: {each}."


def ensemble_cost(result: dict[str, Any]) -> str:
    """The same as a paragraph, with what arithmetic alone says."""
    growth = ensemble_growth(result)
    # In forward passes; a backward one counts once for the gradients of weights and once for those of inputs.
    # Actor: the target's actions, its own step. Critic: the target, its own step, its slopes for the actor's.
    passes = [(1 + 3) + (1 + 3 + 2) * critics for critics in (FEW, MANY)]
    return (
        f"{growth[0].upper()}{growth[1:]}\n\n"
        "Where networks are narrow, what surrounds the products is shared, and ten times as many critics cost far\n"
        "less than ten times as much. Where they are wide, products are nearly all of an update, and every critic has\n"
        f"its own: counted in passes through networks, the larger update costs {passes[1] / passes[0]:.2f}× as much.\n"
    )


def profile(document: dict[str, Any]) -> str:
    """Where the time goes."""
    good = [result for result in document["results"] if "error" not in result]
    names = list(good[0]["parts_ms"])
    rows = [
        [name, *(f"{r['parts_ms'][name]:.3g} ({100 * r['parts_ms'][name] / r['sum_ms']:.0f} %)" for r in good)]
        for name in names
    ]
    rows.append(["whole loop, without timers", *(f"{r['plain_ms']:.3g}" for r in good)])
    rows.append(
        [
            "environments alone",
            *(f"{r['limits_ms']['environment']:.3g}" if "environment" in r["limits_ms"] else "–" for r in good),
        ]
    )
    rows.append(["matrix products alone", *(f"{r['limits_ms']['products']:.3g}" for r in good)])
    rows.append(["their arithmetic at the machine's peak rate", *(f"{r['flops_at_peak_ms']:.3g}" for r in good)])
    left = []
    for r in good:
        floor = r["limits_ms"]["products"] + r["limits_ms"].get("environment", 0.0)
        left.append(f"{r['name']} takes {r['plain_ms'] / floor:.1f} times its environments and products")
    head = ["milliseconds", *(f"{r['name']}, one {r['of']}" for r in good)]
    return f"""\
## Where the time goes

`rlexp bench profile`, one thread. The bars are the parts of the loop, the lines below them what no framework can go
under.

![Parts of an iteration, a step and an update](profile.png)

{table(head, rows)}
What is left above these limits: {"; ".join(left)}. It is Python between the calls, element-wise kernels, the
optimizer's pass over the parameters, and code and data that have left the processor's caches since the last step.
"""


def number(value: float) -> str:
    """Three digits are enough."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    from rlexp.bench import pictures

    if sys.argv[1:2] == ["collect"]:
        manifest.collect(BFLOAT16, run_folders([Path(folder) for folder in sys.argv[2:]]), say=print)
    measured = load()
    PAGE.write_text(render(measured), encoding="utf-8")
    pictures.scaling(measured["scaling"]["results"], HERE / "scaling.png")
