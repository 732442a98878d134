"""From manifests to the pages, the pictures and the digest. No figure is typed.

python docs/benchmarks/make.py collect outputs/bench/zoo …    # completed runs into manifests/, by preset and seed
python docs/benchmarks/make.py render
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from rlexp.bench.pictures import quiet_pyplot, save
from rlexp.config.component import REGISTRY
from rlexp.config.compose import choices, register
from rlexp.runs import run_folders
from rlexp.zoo import manifest, pictures
from rlexp.zoo import page as pages
from rlexp.zoo.listing import ANY_GAME, NOT_MEASURED
from rlexp.zoo.presets import Preset, read_presets
from rlexp.zoo.results import Result, digest, load

HERE = Path(__file__).parent
CLONES = HERE / "clones.json"
PAGE = HERE / "README.md"
TABLE = HERE.parent / "algorithms" / "README.md"
DIGEST = HERE.parents[1] / "rlexp" / "zoo" / "results.json"

# Presets with the settings of Stable-Baselines3, compared with reference/<algorithm>_<environment>_<seed>.csv
# (TQC has none there: it is shown beside SAC).
COMPARED = {
    f"{algo}_{name}": (algo, env)
    for name, env in (("hopper", "Hopper-v5"), ("half_cheetah", "HalfCheetah-v5"))
    for algo in ("sac", "td3", "ppo", "tqc")
}

INTRO = """\
# Benchmarks

What the presets of the zoo reach. Everything on this page was rendered by [`make.py`](make.py) from
[`manifests/`](manifests), which were collected from completed runs; a test compares them. A manifest holds, for each
seed of a preset, the command, the hash of its config, the commit, versions, machine, wall time, and the curve.
`rlexp list zoo` shows the same figures in short.

The machine was a shared one, often with other work beside these runs: wall times are upper bounds, not measurements of
speed (those are in [speed](../speed/README.md)). Seeds were fixed beforehand.

## Measuring

```
rlexp bench zoo --presets ppo_cartpole,dqn_cartpole --seeds 3    # into outputs/bench/zoo
rlexp bench zoo --presets '*_pendulum' --seeds 5 -o outputs/pendulum launcher=joblib
rlexp list zoo env=pendulum                                      # what there is, with the last result of each
```

Every run is an ordinary one in `DIR/PRESET-SEED`, with one thread unless `threads=` says otherwise, and the folder is a
[sweep](../sweeps.md): all runs are checked before the first one starts, one that fails stops no other, launchers spread
them over cores and machines. The same command goes on after whatever ended it: completed runs are kept, interrupted
ones resumed to the last bit, failed ones tried again; more seeds or presets are added. At the end there are
`DIR/manifests/PRESET.json`, a page like this one and its pictures (`pip install "rlexp[bench]"` has matplotlib); the
exit code is 1 if a run has failed. Settings such as `trainer.total_steps=1e5` apply to all runs; the page names them
and judges no target then. Presets of your own are found with `--config-dir DIR`.

"""


# ---- pages


def collect(folders: list[str]) -> None:
    """Add the runs in some folders to the manifests."""
    for each in manifest.collect(HERE, run_folders([Path(folder) for folder in folders]), say=print):
        print(f"{each['preset']}: seeds {', '.join(str(run['seed']) for run in each['runs'])}")


def render() -> None:
    """Write the pages, the digest and the pictures."""
    results = load(HERE)
    DIGEST.write_text(digest_text(results))
    PAGE.write_text(page(results))
    TABLE.write_text(algorithms(results))
    pictures.draw(_own(results), HERE)
    draw_beside(results)


def _own(results: list[Result]) -> list[Result]:
    return [each for each in results if each.preset not in COMPARED]


def page(results: list[Result]) -> str:
    """The page as text."""
    own = _own(results)
    lines = [INTRO + pages.NOTE, "", *pages.tables(own), *pages.summary(own), *pages.times(own)]
    lines += [*beside(results), *clones(), *pages.origins(results)]
    return "\n".join(lines) + "\n"


def digest_text(results: list[Result]) -> str:
    """The digest in the package: a line for each preset."""
    lines = [f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in digest(results).items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


# ---- beside Stable-Baselines3

BESIDE = """\
## MuJoCo, beside Stable-Baselines3

The same settings on both sides ([reference](reference/README.md): Stable-Baselines3's curves). Few seeds say little at
these budgets, so two figures are compared: the return at the end, and the mean over all evaluations of a run, which
varies less. "reached" means that the mean over rlexp's seeds is not below the least of the reference's seeds.
"""


def reference(algo: str, env: str) -> list[list[tuple[int, float]]]:
    """Curves of Stable-Baselines3, one for each seed: (steps, return)."""
    curves = []
    for path in sorted((HERE / "reference").glob(f"{algo}_{env}_*.csv")):
        with path.open() as file:
            curves.append([(int(row["env_steps"]), float(row["return_mean"])) for row in csv.DictReader(file)])
    return curves


def beside(results: list[Result]) -> list[str]:
    """The comparison with Stable-Baselines3 as lines of the page."""
    rows = []
    for name, (algo, env) in COMPARED.items():
        ours = [[(x, value) for x, value, _ in run["curve"]] for run in _runs_of(name, results)]
        if not ours:
            continue
        theirs = reference(algo, env)
        figures = {side: _figures(curves) for side, curves in (("rlexp", ours), ("SB3", theirs)) if curves}
        means = statistics.fmean
        reached = ["yes" if means(a) >= min(b) else "**no**" for a, b in zip(*figures.values())] if theirs else []
        for side, columns in figures.items():
            cells = [f"{means(column):.0f} ({', '.join(f'{v:.0f}' for v in column)})" for column in columns]
            verdict = f"end: {reached[0]}, curve: {reached[1]}" if reached and side == "rlexp" else ""
            rows.append([f"`{name}`", side, str(len(columns[0])), *cells, verdict])
    columns = ["preset", "of", "n", "return at the end: mean (each)", "mean of the curve: mean (each)", "reached"]
    return [BESIDE, *pages.table(columns, rows), "", "![Curves of rlexp and Stable-Baselines3](mujoco.png)", ""]


def _runs_of(preset: str, results: list[Result]) -> list[dict[str, Any]]:
    return [run for result in results if result.preset == preset for run in result.runs]


def _figures(curves: list[list[tuple[int, float]]]) -> tuple[list[float], list[float]]:
    """The last return and the mean return of each curve."""
    return [curve[-1][1] for curve in curves], [statistics.fmean(value for _, value in curve) for curve in curves]


FEW_LINES = 5  # seeds whose curves can be told apart


def _curves(axis: Any, curves: list[list[tuple[int, float]]], style: str, colour: str, whose: str) -> None:
    """A line for each seed; of many the mean, and where the middle half of them lies."""
    if len(curves) <= FEW_LINES:
        for i, curve in enumerate(curves):
            _line(axis, *zip(*curve), style, colour, None if i else whose)
        return
    steps, values = [x for x, _ in curves[0]], list(zip(*[[y for _, y in curve] for curve in curves], strict=True))
    low, _, high = zip(*[statistics.quantiles(each, n=4, method="inclusive") for each in values])
    axis.fill_between(steps, low, high, color=colour, alpha=0.25, linewidth=0)
    _line(axis, steps, [statistics.fmean(each) for each in values], style, colour, f"{whose}, {len(curves)} seeds")


def draw_beside(results: list[Result]) -> None:
    """MuJoCo curves of rlexp (lines) and Stable-Baselines3 (dashed), a panel for each preset."""
    pyplot = quiet_pyplot()
    figure, axes = pyplot.subplots(2, 4, figsize=(11.6, 4.8), layout="constrained")
    for axis, (name, (algo, env)) in zip(axes.flat, COMPARED.items()):
        runs = _runs_of(name, results)
        if not runs:
            axis.axis("off")
            continue
        theirs, ours = reference(algo, env) or reference("sac", env), [[(x, y) for x, y, _ in r["curve"]] for r in runs]
        _curves(axis, theirs, "--", "#8b949e", "Stable-Baselines3" + ("" if algo != "tqc" else ", SAC"))
        _curves(axis, ours, "-", pictures.COLOURS["steps"], "rlexp")
        axis.set_title(f"{algo.upper()} on {env}", loc="left", fontsize=9.5, fontweight="bold")
        axis.xaxis.set_major_formatter(lambda value, _: pages.thousands(round(value)))
        axis.set_xlim(left=0)
        axis.grid(color="#e6e9ed", lw=0.6)
        axis.set_axisbelow(True)
        axis.legend(fontsize=8, frameon=False)
    save(figure, HERE / "mujoco.png")
    pyplot.close(figure)


def _line(axis: Any, x: Any, y: Any, style: str, colour: str, label: str | None) -> None:
    axis.plot(x, y, style, marker="o" if style == "-" else None, ms=2.5, lw=1.3, color=colour, label=label)


# ---- clones


def clones() -> list[str]:
    """How far clones come towards their expert, from what clones.py measured, as lines of the page."""
    kept = json.loads(CLONES.read_text())
    returns = kept["returns"]
    (worst,), (expert,) = returns.pop("random"), returns.pop("expert")
    rows = []
    for preset, each in returns.items():
        shares = [(value - worst) / (expert - worst) for value in each]
        met = "yes" if statistics.median(shares) >= 0.9 else "**missed**"
        values = ", ".join(f"{value:.1f}" for value in each)
        rows.append([f"`{preset}`", values, ", ".join(f"{share:.1%}" for share in shares), met])
    head = (
        f"Everybody plays the same {kept['episodes']} episodes ([`clones.py`](clones.py)): uniform actions reach "
        f"{worst:.1f}, the expert {expert:.1f}. At least 90 % of the way from one to the other is wanted."
    )
    columns = ["preset", "return of each seed", "share of the way", "met"]
    return ["## Clones and their expert", "", head, "", *pages.table(columns, rows), ""]


# ---- the table of all algorithms

ABOUT = """\
# Algorithms

Rendered by [`make.py`](../benchmarks/make.py) from the registry, the presets and what they reached: the mean of the
final evaluations (returns, or rates of success), over how many seeds; a line through a preset's figure means that it
is there to show a failure. `rlexp list zoo algo=NAME` shows targets, intervals and times, too.
Every algorithm takes every observation space (Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple of these,
images) and, where actions are discrete, action masks.
"""
LAYERS = """
**core** is `rlexp.algos`: algorithms whose numbers are compared with independent implementations. **contrib** is
`rlexp.contrib`: the same tests and promises, for algorithms that need more than the plain contracts (here: memory
within an episode). **zoo** is `conf/zoo`: presets, an algorithm with an environment and
settings, each held to a target but those for any game; `rlexp zoo=NAME` runs one, and the command line still overrides
it. Curves, seeds, commits and wall times are in [benchmarks](../benchmarks/README.md).
"""


def algorithms(results: list[Result]) -> str:
    """The page with the table of all algorithms."""
    register()
    presets: dict[str, list[Preset]] = {}
    for preset in read_presets([]).values():
        presets.setdefault(preset.algo, []).append(preset)
    found = {result.preset: result for result in results}
    order = ("on_policy", "replay", "offline", "mixed")
    known: dict[str, Any] = {name: REGISTRY["algo"][name] for name in choices("algo")}
    rows = []
    for name, cls in sorted(known.items(), key=lambda item: (min(map(order.index, item[1].loops)), item[0])):
        heading = (TABLE.parent / f"{name}.md").read_text().splitlines()[0].removeprefix("# ")
        measured = [_reached(preset, found.get(preset.name)) for preset in presets.get(name, [])]
        loops = ", ".join(sorted(cls.loops, key=order.index))
        rows.append([f"[{heading}]({name}.md)", loops, ", ".join(sorted(cls.actions)), ", ".join(measured)])
    columns = ["algorithm", "loops", "actions", "presets: measured return (seeds)"]
    return "\n".join([ABOUT, *pages.table(columns, rows), LAYERS])


def _reached(preset: Preset, result: Result | None) -> str:
    if result is None:
        return f"`{preset.name}` {ANY_GAME if preset.any_game else NOT_MEASURED}"
    figure = f"{'success ' if result.success else ''}{result.shown(result.mean)} ({result.n})"
    failure = result.target is not None and result.target.fails
    return f"`{preset.name}` " + (f"~~{figure}~~" if failure else f"**{figure}**")


if __name__ == "__main__":
    command, *arguments = sys.argv[1:] or ["help"]
    if command == "collect":
        collect(arguments)
    elif command == "render":
        render()
    else:
        print(__doc__)
