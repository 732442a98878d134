"""``rlexp bench scaling``: rates against the number of environments, buffer fill and ensemble size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlexp.bench import report
from rlexp.bench.contest import BenchError, Entry, alternate, contestants, plural
from rlexp.bench.workloads import Workload, config_of
from rlexp.config.check import suggest
from rlexp.errors import ConfigError
from rlexp.machine import multiplies_bfloat16

RLEXP = "rlexp.bench.contestants:run_rlexp"
ENVS = "rlexp.bench.contestants:run_envs"
SAMPLING = "rlexp.bench.contestants:run_sampling"
ROLLOUT = 2048  # transitions of a PPO iteration, however many environments collect them


@dataclass(frozen=True)
class Axis:
    """One thing that grows, and the curves measured against it."""

    title: str
    label: str
    points: tuple[int, ...]
    curves: dict[str, Callable[[int], Entry]]  # title of a curve -> what runs at a point
    unit: str  # what the curves count in a second
    in_bfloat16: dict[str, Callable[[int], Entry]] = field(default_factory=dict)  # where the processor multiplies so


def _loop(name: str, overrides: Sequence[str], unit: str = "steps", **more: Any) -> Entry:
    config = config_of(Workload(name, name, tuple(overrides)))
    return Entry(name, RLEXP, {"config": config, "unit": unit, **more})


def _ppo_overrides(count: int) -> list[str]:
    steps = max(ROLLOUT // count, 1)
    return ["algo=ppo", "env=cartpole", f"env.num_envs={count}", f"trainer.rollout_steps={steps}"]


def _ppo(count: int) -> Entry:
    return _loop(f"PPO with {plural(count, 'environment')}", _ppo_overrides(count))


def _envs(count: int) -> Entry:
    work = Workload("envs", "environments alone", tuple(_ppo_overrides(count)))
    return Entry(f"{plural(count, 'environment')} alone", ENVS, {"config": config_of(work), "unit": "steps"})


def _dqn(fill: int) -> Entry:
    overrides = ["algo=dqn", "env=cartpole", "trainer.learning_starts=100"]
    overrides += ["algo.schedules.epsilon.start=0.05", "algo.schedules.epsilon.end=0.05"]
    return _loop(f"DQN with {fill:,} transitions", overrides, fill=fill)


def _sampling(fill: int) -> Entry:
    return Entry(f"sampling from {fill:,} transitions", SAMPLING, {"fill": fill, "unit": "batches"})


def _sac(width: int, threads: int = 1, precision: str = "float32") -> Callable[[int], Entry]:
    """SAC against the number of its critics, with networks of this width."""

    def entry(critics: int) -> Entry:
        overrides = ["algo=sac", "env=pendulum", "trainer.learning_starts=100", f"algo.n_critics={critics}"]
        overrides += [f"model.hidden=[{width},{width}]", f"precision={precision}"]
        name = f"SAC with {critics} critics of width {width} in {precision}"
        return replace(_loop(name, overrides, unit="updates"), threads=threads)

    return entry


AXES = {
    "envs": Axis(
        "Environments side by side",
        "environments (CartPole)",
        (1, 2, 4, 8, 16, 32, 64),
        {"PPO, rollouts of 2,048": _ppo, "environments alone": _envs},
        "steps",
    ),
    "fill": Axis(
        "Fill of the replay buffer",
        "transitions in the buffer",
        (10_000, 30_000, 100_000, 300_000, 1_000_000),
        {"DQN CartPole, steps": _dqn, "sampling alone, batches of 256": _sampling},
        "steps or batches",
    ),
    "ensemble": Axis(
        "Critics in the ensemble",
        "critics (batch 256)",
        (2, 5, 10, 20, 50),
        {
            "SAC Pendulum, 2×64": _sac(64),
            "2×64, two threads": _sac(64, threads=2),
            "2×128": _sac(128),
            "2×128, two threads": _sac(128, threads=2),
            "2×256": _sac(256),
            "2×256, two threads": _sac(256, threads=2),
        },
        "updates",
        {
            "2×256, bfloat16": _sac(256, precision="bfloat16"),
            "2×256, bfloat16, two threads": _sac(256, threads=2, precision="bfloat16"),
        },
    ),
}


def run(
    *, only: Sequence[str] | None, points: Sequence[int] | None, rounds: int, seconds: float
) -> list[dict[str, Any]]:
    """Measure every point of every axis; the points of an axis take turns in every round."""
    for name in only or ():
        if name not in AXES:
            raise ConfigError(f"--only {name}: there is no such axis.{suggest(name, AXES)}")
    report.warn_if_busy()
    results = []
    for name in only or AXES:
        report.say(name)
        axis = AXES[name]
        try:
            results.append(measure(name, axis, points or axis.points, rounds, seconds))
        except BenchError as error:
            report.say(f"error: {error}")
            results.append({"name": name, "error": str(error)})
    return results


def measure(name: str, axis: Axis, points: Sequence[int], rounds: int, seconds: float) -> dict[str, Any]:
    """All curves of one axis."""
    chosen = axis.curves | (axis.in_bfloat16 if multiplies_bfloat16() else {})
    entries = [curve(point) for curve in chosen.values() for point in points]
    with contestants(entries, say=_say) as runners:
        measured = iter(alternate(runners, rounds, seconds, say=_say))
    curves = {}
    for title in chosen:
        each = [next(measured) for _ in points]
        curves[title] = {
            "median": [result.median for result in each],
            "rounds": [[round(rate, 3) for rate in result.rates] for result in each],
        }
    about = {"title": axis.title, "label": axis.label, "unit": axis.unit}
    return {"name": name, **about, "points": list(points), "curves": curves}


def show(results: Sequence[dict[str, Any]]) -> None:
    """A table for each axis."""
    for result in results:
        if "error" not in result:
            rows = [
                [f"{point:,}", *(report.number(curve["median"][index]) for curve in result["curves"].values())]
                for index, point in enumerate(result["points"])
            ]
            title = f"{result['title']} ({result['unit']} per second)"
            report.table([result["label"], *result["curves"]], rows, title=title, text_columns=0)
            print()


def _say(text: str) -> None:
    report.say(f"  {text}")
