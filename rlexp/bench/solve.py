"""``rlexp bench solve``: wall time from the shell prompt to a solved task, everything included.

Start-up, compiling, evaluations, checkpoints and the end of the process all count. Both sides run the zoo preset's
hyperparameters and evaluate at the same steps, on the same number of episodes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rlexp.bench import report
from rlexp.bench.contest import BenchError, plural, ratios, thread_environment
from rlexp.bench.peers import require, translate
from rlexp.config.check import suggest
from rlexp.errors import ConfigError

SCRIPT = Path(__file__).with_name("sb3_script.py")
EPISODES = 20
EVAL_ENVS = 10  # environments side by side in an evaluation, as rlexp's evaluator has
LEAST = 2.0  # times faster than the peer


@dataclass(frozen=True)
class Task:
    """A preset and what counts as solved."""

    preset: str
    threshold: float  # mean return of an evaluation
    eval_interval: int  # steps


TASKS = {
    task.preset: task
    for task in (Task("ppo_cartpole", 475, 5_000), Task("dqn_cartpole", 475, 5_000), Task("sac_pendulum", -200, 1_000))
}


def run(
    *,
    against: Sequence[str],
    only: Sequence[str] | None,
    rounds: int,
    threads: Sequence[int],
    budget: int | None,
    warm_cache: bool,
) -> list[dict[str, Any]]:
    """Train every task with as many seeds as there are rounds, the sides taking turns."""
    for name in only or ():
        if name not in TASKS:
            raise ConfigError(f"--only {name}: there is no such task.{suggest(name, TASKS)}")
    require(against)
    report.warn_if_busy()
    sides = ["rlexp", *("SB3" for name in against if name == "sb3")]
    results = []
    for name in only or TASKS:
        task = TASKS[name]
        outcomes: dict[int, dict[str, list[dict[str, Any]]]] = {n: {side: [] for side in sides} for n in threads}
        try:
            for seed in range(1, rounds + 1):
                for count in threads:
                    for side in sides if seed % 2 else reversed(sides):
                        outcome = attempt(side, task, seed, count, budget, warm_cache)
                        outcomes[count][side].append(outcome)
                        how = "solved" if outcome["solved"] else "not solved"
                        report.say(
                            f"{name} seed {seed}, {plural(count, 'thread')}, {side}: {how} "
                            f"after {outcome['seconds']:.1f} s and {outcome['steps']:,} steps"
                        )
            results.append(summarize(task, outcomes))
        except BenchError as error:
            report.say(f"error: {error}")
            results.append({"name": name, "error": str(error)})
    return results


def attempt(
    side: str, task: Task, seed: int, threads: int, budget: int | None, warm_cache: bool = False
) -> dict[str, Any]:
    """One run of one side in a process and a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="rlexp-bench-") as folder:
        command = (_rlexp if side == "rlexp" else _sb3)(task, seed, threads, budget, Path(folder))
        # Compiled code is kept on disk between runs: a fresh cache makes every run pay for its own compiling.
        cache = {} if warm_cache else {"TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor")}
        start = time.perf_counter()
        done = subprocess.run(
            command,
            cwd=folder,
            env=thread_environment(threads, **cache),
            capture_output=True,
            text=True,
            errors="replace",
        )
        seconds = time.perf_counter() - start
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()[-2000:]
            raise BenchError(f"{task.preset} of {side} ended with code {done.returncode}: {said}")
        outcome = _rlexp_outcome(Path(folder)) if side == "rlexp" else json.loads(done.stdout.splitlines()[-1])
    return {"seed": seed, "seconds": round(seconds, 3), **outcome}


def _rlexp(task: Task, seed: int, threads: int, budget: int | None, folder: Path) -> list[str]:
    overrides = [
        f"zoo={task.preset}",
        f"seed={seed}",
        "device=cpu",
        f"threads={threads}",
        f"trainer.stop_return={task.threshold}",
        f"trainer.eval_interval={task.eval_interval}",
        f"trainer.eval_episodes={EPISODES}",
        f"hydra.run.dir='{folder / 'run'}'",
    ]
    if budget is not None:
        overrides.append(f"trainer.total_steps={budget}")
    return [sys.executable, "-P", "-m", "rlexp", *overrides]


def _rlexp_outcome(folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    decisions = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8")).get("decisions")
    best = (summary["best_eval"] or {}).get("return_mean")
    solved = summary["stop_reason"] == "stop_return"
    return {"solved": solved, "steps": summary["env_steps"], "best": best, "decisions": decisions}


def _sb3(task: Task, seed: int, threads: int, budget: int | None, folder: Path) -> list[str]:
    from rlexp.config.compose import compose

    config = compose([f"zoo={task.preset}"])
    spec = {
        "settings": translate("sb3", config),
        "seed": seed,
        "threads": threads,
        "budget": budget or config["trainer"]["total_steps"],
        "threshold": task.threshold,
        "eval_interval": task.eval_interval,
        "eval_episodes": EPISODES,
        "eval_envs": EVAL_ENVS,
        "save": str(folder / "model"),
    }
    return [sys.executable, "-P", str(SCRIPT), json.dumps(spec)]


def summarize(task: Task, outcomes: dict[int, dict[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Medians over the seeds, of each side at its better number of threads, and how many times faster rlexp was.

    A run that did not solve its task counts with the time it took: the truth is longer.
    """
    seconds = {
        count: {side: [run["seconds"] for run in runs] for side, runs in sides.items()}
        for count, sides in outcomes.items()
    }
    sides = list(next(iter(outcomes.values())))
    best = {side: min(seconds, key=lambda count: median(seconds[count][side])) for side in sides}
    chosen: dict[str, Any] = {
        side: {
            "threads": count,
            "median": median(seconds[count][side]),
            "steps": median(run["steps"] for run in outcomes[count][side]),
            "solved": sum(run["solved"] for run in outcomes[count][side]),
        }
        for side, count in best.items()
    }
    if len(sides) > 1:
        ours, theirs = (seconds[best[side]][side] for side in sides)
        chosen["ratio"] = chosen[sides[1]]["median"] / chosen[sides[0]]["median"]
        chosen["ratios"] = [round(ratio, 3) for ratio in ratios(theirs, ours)]  # seed by seed
    return {
        "name": task.preset,
        "threshold": task.threshold,
        "eval_interval": task.eval_interval,
        "eval_episodes": EPISODES,
        "least": LEAST,
        "runs": {str(count): each for count, each in outcomes.items()},
        "best": chosen,
        "verdict": report.verdict(chosen.get("ratio"), LEAST, None),
    }


def show(results: Sequence[dict[str, Any]]) -> None:
    """The table: each side at its better number of threads."""
    rows = []
    for result in results:
        if "error" in result:
            rows.append([result["name"], *[""] * 6, "failed"])
            continue
        best = result["best"]
        count = len(next(iter(next(iter(result["runs"].values())).values())))
        for index, side in enumerate(each for each in ("rlexp", "SB3") if each in best):
            entry = best[side]
            rows.append(
                [
                    result["name"] if index == 0 else "",
                    side,
                    str(entry["threads"]),
                    f"{entry['solved']} of {count}",
                    f"{entry['steps']:,.0f}",
                    f"{entry['median']:.1f} s",
                    report.times(best.get("ratio")) if index == 0 else "",
                    result["verdict"] if index == 0 else "",
                ]
            )
    report.table(["task", "of", "threads", "solved", "steps", "median", "ratio", ""], rows, text_columns=2)
