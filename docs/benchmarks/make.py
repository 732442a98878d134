"""Turns finished runs into results.json, and that into the page and the pictures. Nothing here is typed by hand.

python docs/benchmarks/make.py collect outputs/ppo_cartpole-0 outputs/ppo_cartpole-1 …
python docs/benchmarks/make.py data      # the mean return of what offline presets learn from, into data.json
python docs/benchmarks/make.py render
"""

from __future__ import annotations

import csv
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
CLONES = HERE / "clones.json"
DATA = HERE / "data.json"
PAGE = HERE / "README.md"
TABLE = HERE.parent / "algorithms" / "README.md"
ZOO = HERE.parents[1] / "conf" / "zoo"

TARGETS = {  # preset: least return (or rate of success), budget, what the budget counts
    "ppo_cartpole": (475, 100_000, "steps"),
    "dqn_cartpole": (475, 80_000, "steps"),
    "dqn_double_cartpole": (475, 80_000, "steps"),
    "dqn_dueling_cartpole": (475, 80_000, "steps"),
    "dqn_prioritized_cartpole": (475, 80_000, "steps"),
    "dqn_n_step_cartpole": (475, 80_000, "steps"),
    "dqn_noisy_cartpole": (475, 80_000, "steps"),
    "c51_cartpole": (475, 80_000, "steps"),
    "qrdqn_cartpole": (475, 80_000, "steps"),
    "iqn_cartpole": (475, 80_000, "steps"),
    "rainbow_cartpole": (475, 80_000, "steps"),
    "discrete_sac_cartpole": (475, 80_000, "steps"),
    "a2c_cartpole": (475, 300_000, "steps"),
    "trpo_cartpole": (475, 100_000, "steps"),
    "recurrent_ppo_cartpole_masked": (450, 300_000, "steps"),
    "ppo_cartpole_masked": (200, 300_000, "steps"),
    "ppo_acrobot": (-100, 300_000, "steps"),
    "dqn_acrobot": (-100, 300_000, "steps"),
    "ppo_lunar_lander": (200, 1_000_000, "steps"),
    "dqn_lunar_lander": (200, 1_000_000, "steps"),
    "ppo_pendulum": (-250, 200_000, "steps"),
    "trpo_pendulum": (-250, 200_000, "steps"),
    "sac_pendulum": (-200, 20_000, "steps"),
    "ddpg_pendulum": (-200, 20_000, "steps"),
    "td3_pendulum": (-200, 20_000, "steps"),
    "tqc_pendulum": (-200, 20_000, "steps"),
    "redq_pendulum": (-200, 20_000, "steps"),
    "crossq_pendulum": (-200, 20_000, "steps"),
    "simba_pendulum": (-200, 20_000, "steps"),
    "droq_pendulum": (-200, 20_000, "steps"),
    "rlpd_pendulum": (-200, 10_000, "steps"),
    "crr_pendulum": (-250, 30_000, "updates"),
    "awac_pendulum": (-250, 30_000, "updates"),
    "iql_pendulum": (-250, 30_000, "updates"),
    "xql_pendulum": (-250, 30_000, "updates"),
    "bc_pendulum": (-250, 20_000, "updates"),
    "awr_pendulum": (-250, 20_000, "updates"),
    "marwil_pendulum": (-250, 20_000, "updates"),
    "bc_cartpole": (475, 20_000, "updates"),
    "marwil_cartpole": (475, 30_000, "updates"),
    "iql_cartpole": (475, 30_000, "updates"),
    "awac_cartpole": (475, 30_000, "updates"),
    "crr_cartpole": (475, 30_000, "updates"),
    "her_dqn_bit_flip": (0.9, 100_000, "steps"),
    "dqn_bit_flip": (0.1, 100_000, "steps"),
    "cql_pendulum": (-250, 30_000, "updates"),
    "cal_ql_pendulum": (-250, 30_000, "updates"),
    "sac_n_pendulum": (-250, 30_000, "updates"),
    "edac_pendulum": (-250, 30_000, "updates"),
    "bcq_pendulum": (-250, 30_000, "updates"),
    "bear_pendulum": (-250, 30_000, "updates"),
    "td3_bc_pendulum": (-250, 30_000, "updates"),
    "rebrac_pendulum": (-250, 30_000, "updates"),
    "discrete_cql_cartpole": (475, 30_000, "updates"),
    "discrete_bcq_cartpole": (475, 30_000, "updates"),
    "her_sac_point_maze_open": (0.9, 15_000, "steps"),
    "sac_point_maze_open": (0.7, 15_000, "steps"),
}

# Presets with the settings of Stable-Baselines3, compared with reference/<algorithm>_<environment>_<seed>.csv
# (TQC has none there: it is shown beside SAC).
COMPARED = {
    f"{algo}_{name}": (algo, env)
    for name, env in (("hopper", "Hopper-v5"), ("half_cheetah", "HalfCheetah-v5"))
    for algo in ("sac", "td3", "ppo", "tqc")
}
# Presets that are measured by their rate of success.
SUCCESS = {name for name in TARGETS if name.endswith(("_bit_flip", "_point_maze_open"))}
# Presets that clone an expert, which is hardly surpassed (the others must do better than their data on average).
CLONED = {"bc_pendulum", "awr_pendulum", "marwil_pendulum", "bc_cartpole"}
# Presets that show what cannot be learned so: their return stays below the figure.
FAIL = {"ppo_cartpole_masked", "dqn_bit_flip", "sac_point_maze_open"}

INTRO = """\
# Benchmarks

Every figure on this page was rendered by [`make.py`](make.py) from [`results.json`](results.json), which was collected
from finished runs; a test compares the two. The return is the mean of the greedy evaluation episodes at the end of the
budget (not the best one seen), or the share of these episodes that succeeded; a line that misses its target says so.
Seeds were fixed beforehand.

Machine: two cores of a shared cloud computer, no GPU, one torch thread, often other work beside it: wall times are
upper bounds, not measurements of speed.
"""


def measure(preset: str) -> str:
    """What of an evaluation counts for a preset."""
    return "success_rate" if preset in SUCCESS else "return_mean"


def shown(preset: str, value: float) -> str:
    """A return, or a rate of success, as it is written."""
    return f"success {value:.2f}" if preset in SUCCESS else f"{value:.1f}"


def collect(folders: list[str]) -> None:
    """Add runs to results.json, replacing what was there for the same preset and seed."""
    known = {(r["preset"], r["seed"]): r for r in (json.loads(RESULTS.read_text()) if RESULTS.exists() else [])}
    for folder in map(Path, folders):
        result = read_run(folder)
        known[result["preset"], result["seed"]] = result
    order = [*TARGETS, *COMPARED]
    results = sorted(known.values(), key=lambda r: (order.index(r["preset"]), r["seed"]))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def data(_: list[str]) -> None:
    """Measure the data of all offline presets with results: the mean return of whole episodes."""
    from rlexp.config.compose import compose
    from rlexp.runner import Runner

    means = {}
    for name in by_preset(json.loads(RESULTS.read_text())):
        runner = Runner(compose([f"zoo={name}"]))
        if runner.trainer.loop == "offline":
            returns = runner.dataset.load(runner.env).episode_returns()
            means[name] = {"mean_return": round(float(returns.mean()), 3), "episodes": len(returns)}
    DATA.write_text(json.dumps(means, indent=1) + "\n")


def read_run(folder: Path) -> dict[str, Any]:
    """One finished run as it is kept in results.json."""
    summary, run = (json.loads((folder / name).read_text()) for name in ("summary.json", "run.json"))
    if summary["status"] != "completed":
        raise SystemExit(f"{folder} is {summary['status']}, not completed")
    preset = next(word.removeprefix("zoo=") for word in run["command"] if word.startswith("zoo="))
    unit = "steps" if preset in COMPARED else TARGETS[preset][2]
    clock = "updates" if unit == "updates" else "env_steps"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measured = f"eval/{measure(preset)}"
    words = [word for word in run["command"] if not word.startswith(("name=", "threads=", "hydra.run.dir="))]
    return {
        "preset": preset,
        "seed": summary["seed"],
        "env": summary["env"],
        "command": " ".join(words),
        "commit": (run["git"]["rlexp"] or {}).get("commit"),
        "versions": run["versions"],
        "spent": summary["updates" if unit == "updates" else "env_steps"],
        "wall_time_s": summary["wall_time_s"],
        "eval": summary["eval"],
        "best_eval": summary["best_eval"],
        "curve": [[row[clock], round(row[measured], 3)] for row in rows if measured in row],
    }


def render() -> None:
    """Write the page and the pictures."""
    results = json.loads(RESULTS.read_text())
    PAGE.write_text(page(results))
    TABLE.write_text(algorithms(results))
    draw(results, HERE)


def by_preset(results: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Results of all seeds by preset, in the order of TARGETS."""
    return {name: found for name in TARGETS if (found := _runs_of(name, results))}


def _runs_of(preset: str, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [result for result in results if result["preset"] == preset]


def reference(algo: str, env: str) -> list[list[tuple[int, float]]]:
    """Curves of Stable-Baselines3, one for each seed: (steps, return)."""
    curves = []
    for path in sorted((HERE / "reference").glob(f"{algo}_{env}_*.csv")):
        with path.open() as file:
            curves.append([(int(row["env_steps"]), float(row["return_mean"])) for row in csv.DictReader(file)])
    return curves


BESIDE = """
## MuJoCo, beside Stable-Baselines3

The same settings on both sides ([reference](reference/README.md): Stable-Baselines3's curves). Few seeds say little at
these budgets, so two figures are compared: the return at the end, and the mean over all evaluations of a run, which
varies less. "reached" means that the mean over rlexp's seeds is not below the least of the reference's seeds.

| preset | of | seeds | return at the end: mean (each) | mean of the curve: mean (each) | reached |
|---|---|---|---|---|---|"""


def beside(results: list[dict[str, Any]]) -> list[str]:
    """The comparison with Stable-Baselines3 as lines of the page."""
    lines = [BESIDE]
    for name, (algo, env) in COMPARED.items():
        ours = [[tuple(point) for point in run["curve"]] for run in _runs_of(name, results)]
        if not ours:
            continue
        theirs = reference(algo, env)
        figures = {side: _figures(curves) for side, curves in (("rlexp", ours), ("SB3", theirs)) if curves}
        reached = ["yes" if _mean(a) >= min(b) else "**no**" for a, b in zip(*figures.values())] if theirs else []
        for side, columns in figures.items():
            cells = [f"{_mean(column):.0f} ({', '.join(f'{v:.0f}' for v in column)})" for column in columns]
            verdict = f"end: {reached[0]}, curve: {reached[1]}" if reached and side == "rlexp" else ""
            lines.append(f"| `{name}` | {side} | {len(columns[0])} | {cells[0]} | {cells[1]} | {verdict} |")
    return [*lines, "", "![Curves of rlexp and Stable-Baselines3](mujoco.png)", ""]


def _figures(curves: list[list[tuple[int, float]]]) -> tuple[list[float], list[float]]:
    """The last return and the mean return of each curve."""
    return [curve[-1][1] for curve in curves], [_mean([value for _, value in curve]) for curve in curves]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def clones() -> list[str]:
    """How far clones come towards their expert, from what clones.py measured, as lines of the page."""
    if not CLONES.exists():
        return []
    kept = json.loads(CLONES.read_text())
    returns = kept["returns"]
    (worst,), (expert,) = returns.pop("random"), returns.pop("expert")
    lines = [
        "## Clones and their expert",
        "",
        f"Everybody plays the same {kept['episodes']} episodes ([`clones.py`](clones.py)): uniform actions reach "
        f"{worst:.1f}, the expert {expert:.1f}. At least 90 % of the way from one to the other is wanted.",
        "",
        "| preset | return of each seed | share of the way | met |",
        "|---|---|---|---|",
    ]
    for preset, each in returns.items():
        shares = [(value - worst) / (expert - worst) for value in each]
        met = "yes" if statistics.median(shares) >= 0.9 else "**missed**"
        values = ", ".join(f"{value:.1f}" for value in each)
        lines.append(f"| `{preset}` | {values} | {', '.join(f'{share:.1%}' for share in shares)} | {met} |")
    return [*lines, ""]


def page(results: list[dict[str, Any]]) -> str:
    """The page as text."""
    head = "| preset | environment | target | return (median) | each seed | n | data's mean | spent | wall time | met |"
    lines = [INTRO, head, "|---|---|---|---|---|---|---|---|---|---|"]
    means = json.loads(DATA.read_text()) if DATA.exists() else {}
    for name, runs in by_preset(results).items():
        least, budget, unit = TARGETS[name]
        finals = [run["eval"][measure(name)] for run in runs]
        median = statistics.median(finals)
        mean = means[name]["mean_return"] if name in means else None
        as_said = (median < least) if name in FAIL else (median >= least)
        if mean is not None and name not in CLONED:
            as_said &= median > mean
        met = "yes" if as_said and max(run["spent"] for run in runs) <= budget * 1.02 else "**missed**"
        figure = "success " if name in SUCCESS else ""
        target = f"{figure}{'<' if name in FAIL else '≥'} {least} in {budget:,} {unit}"
        seconds = statistics.median(run["wall_time_s"] for run in runs)
        each = ", ".join(shown(name, value).removeprefix(figure) for value in finals)
        lines.append(
            f"| `{name}` | {runs[0]['env']} | {target} | **{shown(name, median)}** | {each} | {len(runs)} "
            f"| {'' if mean is None else f'{mean:.1f}'} | {runs[0]['spent']:,} {unit} | {seconds:.0f} s | {met} |"
        )
    episodes = sorted({run["eval"]["episodes"] for run in results})
    lines += ["", f"Evaluation episodes at the end: {', '.join(map(str, episodes))}.", ""]
    lines += ["![Learning curves](curves.png)", *beside(results), *clones(), "## Commands", ""]
    groups = by_preset(results) | {name: runs for name in COMPARED if (runs := _runs_of(name, results))}
    for name, runs in groups.items():
        commits = sorted({(run["commit"] or "unknown")[:10] for run in runs})
        seeds = ", ".join(str(run["seed"]) for run in runs)
        lines.append(f"- `rlexp zoo={name} seed=S threads=1` for S in {seeds}; commit {', '.join(commits)}")
    versions = {f"{k} {v}" for run in results for k, v in run["versions"].items() if v and k != "rlexp"}
    lines += ["", f"Versions: {', '.join(sorted(versions))}.", ""]
    return "\n".join(lines)


ABOUT = """\
# Algorithms

Rendered by [`make.py`](../benchmarks/make.py) from the registry, the presets and what they reached: the median of the
final evaluations (returns, or rates of success), over how many seeds; a line through a preset's figure means that it
is there to show a failure.
Every algorithm takes every observation space (Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple of these,
images) and, where actions are discrete, action masks.
"""
LAYERS = """
**core** is `rlexp.algos`: algorithms whose numbers are compared with independent implementations. **contrib** is
`rlexp.contrib`: the same tests and promises, for algorithms that need more than the plain contracts (here: memory
within an episode). **zoo** is `conf/zoo`: presets, an algorithm with an environment and
settings, each with the return it promises or the word that it was not measured yet; `rlexp zoo=NAME` runs one, and the
command line still overrides it. Curves, seeds, commits and wall times are in [benchmarks](../benchmarks/README.md).
"""


def algorithms(results: list[dict[str, Any]]) -> str:
    """The page with the table of all algorithms."""
    from rlexp.config.component import REGISTRY
    from rlexp.config.compose import choices, register

    register()
    presets: dict[str, list[str]] = {}
    for path in sorted(ZOO.glob("*.yaml")):
        algo = re.search(r"override /algo: (\w+)", path.read_text())
        assert algo is not None, path
        presets.setdefault(algo[1], []).append(path.stem)
    groups = {name: _runs_of(name, results) for name in (*TARGETS, *COMPARED)}
    lines = [ABOUT, "| algorithm | loops | actions | presets: measured return (seeds) |", "|---|---|---|---|"]
    order = ("on_policy", "replay", "offline", "mixed")
    known: dict[str, Any] = {name: REGISTRY["algo"][name] for name in choices("algo")}
    for name, cls in sorted(known.items(), key=lambda item: (min(map(order.index, item[1].loops)), item[0])):
        heading = (TABLE.parent / f"{name}.md").read_text().splitlines()[0].removeprefix("# ")
        measured = []
        for preset in presets.get(name, []):
            finals = [run["eval"][measure(preset)] for run in groups.get(preset, [])]
            figure = f"{shown(preset, statistics.median(finals))} ({len(finals)})" if finals else "not measured"
            measured.append(f"`{preset}` " + (f"~~{figure}~~" if preset in FAIL else f"**{figure}**"))
        loops = ", ".join(sorted(cls.loops, key=order.index))
        lines.append(f"| [{heading}]({name}.md) | {loops} | {', '.join(sorted(cls.actions))} | {', '.join(measured)} |")
    return "\n".join([*lines, LAYERS])


def draw(results: list[dict[str, Any]], folder: Path) -> None:
    """Learning curves: one panel per preset, one line per seed, the target dashed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    groups = by_preset(results)
    columns = 4
    rows = -(-len(groups) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4 * columns, 2.9 * rows), squeeze=False)
    for axis in axes.flat[len(groups) :]:
        axis.axis("off")
    for axis, (name, runs) in zip(axes.flat, groups.items()):
        least, _, unit = TARGETS[name]
        for run in runs:
            x, y = zip(*run["curve"])
            axis.plot([value / 1000 for value in x], y, marker="o", markersize=3, label=f"seed {run['seed']}")
        axis.axhline(least, color="grey", linestyle="--", linewidth=1)
        axis.set_title(name, fontsize=11)
        axis.set_xlabel(f"thousand {unit}", fontsize=9)
        if name in SUCCESS:
            axis.set_ylabel("rate of success", fontsize=9)
            axis.set_ylim(-0.05, 1.05)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("evaluation return")
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(folder / "curves.png", dpi=110)
    draw_beside(results, folder)


def draw_beside(results: list[dict[str, Any]], folder: Path) -> None:
    """MuJoCo curves of rlexp (lines) and Stable-Baselines3 (dashed), a panel for each preset."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(16, 6.2), squeeze=False)
    for axis, (name, (algo, env)) in zip(axes.flat, COMPARED.items()):
        if not _runs_of(name, results):
            axis.axis("off")
            continue
        theirs = reference(algo, env) or reference("sac", env)
        for i, curve in enumerate(theirs):
            x, y = zip(*curve)
            whose = "Stable-Baselines3" + ("" if algo != "tqc" else ", SAC")
            axis.plot([v / 1000 for v in x], y, "--", color="#888888", label=None if i else whose)
        for i, run in enumerate(_runs_of(name, results)):
            x, y = zip(*run["curve"])
            axis.plot([v / 1000 for v in x], y, marker="o", markersize=3, color="#1f6fb4", label=None if i else "rlexp")
        axis.set_title(f"{algo.upper()} on {env}", fontsize=11)
        axis.set_xlabel("thousand steps", fontsize=9)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(fontsize=8)
    axes[0, 0].set_ylabel("evaluation return")
    axes[1, 0].set_ylabel("evaluation return")
    figure.tight_layout()
    figure.savefig(folder / "mujoco.png", dpi=110)


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    {"collect": collect, "data": data, "render": lambda _: render()}[command](arguments)
