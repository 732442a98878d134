"""``rlexp bench profile``: where an iteration spends its time, and what is left above the limits of the machine.

The real loop runs with timers around the methods of its real objects. In the same run, in turn with it: the loop
without timers, the environments alone, and the matrix products of the update alone.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rlexp.bench import report
from rlexp.bench.contest import BenchError, Entry, Rounds, alternate, contestants
from rlexp.bench.speed import RLEXP, data_path
from rlexp.bench.timers import REST, Timers
from rlexp.bench.worker import Pacer
from rlexp.bench.workloads import Workload, config_of, select

DEFAULT = ("ppo_cartpole", "sac_pendulum", "crr_offline")
PARTS = ("acting", "environment", "storing", "sampling", "update", "logging", REST)


# ---- in the child


def run_profiled(spec: dict[str, Any], pacer: Pacer) -> None:
    """The loop with timers; each answer says how many seconds every part took."""
    from rlexp.bench.contestants import train
    from rlexp.callbacks import Callback

    timers = Timers()

    class Profile(Callback):
        def on_start(self, trainer: Any) -> None:
            timers.calibrate()
            wrap(trainer, timers)

        def on_step(self, trainer: Any) -> None:
            pacer(trainer.updates if counts_updates else trainer.env_steps, trainer.updates > 0)

    def begin() -> None:
        timers.reset()
        begin_time[0] = timers.clock()

    counts_updates = spec["unit"] == "updates"
    begin_time = [0.0]
    pacer.on_begin = begin
    pacer.on_end = lambda: {"parts": timers.corrected(timers.clock() - begin_time[0])}
    train(spec, Profile())


def wrap(trainer: Any, timers: Timers) -> None:
    """Put timers around what a loop calls. What the loop itself does between those calls is the rest."""
    policy, work = trainer.policy, trainer.work
    collector = getattr(trainer, "collector", None)
    if collector is not None:
        timers.wrap(collector, "obs_tensor", "acting")
        timers.wrap(policy, "act", "acting")
        timers.wrap(policy, "env_action", "acting")
        timers.wrap(collector.envs, "step", "environment")
        timers.wrap(trainer.buffer, "add", "storing")
    if hasattr(trainer.buffer, "finish"):
        timers.wrap(trainer.buffer, "finish", "storing")
    if hasattr(trainer.buffer, "sample"):
        timers.wrap(trainer.buffer, "sample", "sampling")
        timers.wrap(policy, "prepare", "sampling")
        module = sys.modules[type(trainer).__module__]
        for name in ("split", "pick"):  # functions of the loop's module that cut what was sampled into batches
            if hasattr(module, name):
                timers.wrap(module, name, "sampling")
    timers.wrap(trainer.algo, "update", "update")
    timers.wrap(trainer, "log", "logging")
    timers.wrap(trainer, "record_episodes", "logging")
    timers.wrap(work.recorder, "tick", "logging")


def run_products(spec: dict[str, Any], pacer: Pacer) -> None:
    """The matrix products of one uncompiled update, again and again; counted in the unit of the workload."""
    import torch

    from rlexp.bench.contestants import train
    from rlexp.bench.floors import Products, peak_flops
    from rlexp.callbacks import Callback

    products = Products()
    units = [0.0]

    class Recorded(BaseException):
        pass

    class Record(Callback):
        def on_start(self, trainer: Any) -> None:
            update = trainer.algo.update

            def recorded(batch: Any) -> Any:
                with products:
                    update(batch)
                units[0] = 1 if counts_updates else units_of(trainer)
                raise Recorded

            trainer.algo.update = recorded

    counts_updates = spec["unit"] == "updates"
    with contextlib.suppress(Recorded):
        train(spec | {"config": spec["config"] | {"compile": False}}, Record())
    torch.set_num_threads(spec["threads"])
    replay, peak = products.replay(), peak_flops()
    pacer.on_end = lambda: {"flops": products.flops / units[0], "peak": peak, "products": len(products.calls)}
    count = 0.0
    while True:
        replay()
        count += units[0]
        pacer(count)


def units_of(trainer: Any) -> float:
    """Environment steps to which one call of ``update`` belongs."""
    if hasattr(trainer, "rollout_steps"):
        return trainer.rollout_steps * trainer.collector.num_envs
    return trainer.train_frequency / trainer.gradient_updates_per_step


# ---- in the parent


def run(*, only: Sequence[str] | None, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Profile some workloads on one thread."""
    report.warn_if_busy()
    results = []
    with tempfile.TemporaryDirectory(prefix="rlexp-bench-") as folder:
        for work in select(only or DEFAULT):
            report.say(f"{work.name}: {work.title}")
            try:
                results.append(measure(work, Path(folder), rounds, seconds))
            except BenchError as error:
                report.say(f"error: {error}")
                results.append({"name": work.name, "error": str(error)})
    return results


def measure(work: Workload, folder: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """One workload: profiled, plain, and its limits, in turn."""
    config = config_of(work, data_path(work, folder))
    spec = {"config": config, "unit": work.unit}
    entries = [
        Entry("the loop with timers", f"{__name__}:run_profiled", spec),
        Entry("the loop", RLEXP, spec),
        Entry("the products alone", f"{__name__}:run_products", spec),
    ]
    if work.data is None:
        entries.append(Entry("the environments alone", "rlexp.bench.contestants:run_envs", spec))
    with contestants(entries, say=_say) as runners:
        profiled, plain, products, *envs = alternate(runners, rounds, seconds, say=_say)
    rollout = config["trainer"].get("rollout_steps", 0) * config["env"]["num_envs"]
    return summarize(work, rollout, profiled, plain, products, envs[0] if envs else None)


def summarize(
    work: Workload, rollout: int, profiled: Rounds, plain: Rounds, products: Rounds, envs: Rounds | None
) -> dict[str, Any]:
    """Milliseconds of an iteration (on-policy, of ``rollout`` steps), a step or an update.

    Of its parts (medians over the rounds), of the loop without timers, and of the limits.
    """
    scale = 1e3 * (rollout or 1)
    each = [
        {part: scale * answer["parts"].get(part, 0.0) / answer["count"] for part in PARTS}
        for answer in profiled.answers
    ]
    parts = {part: median(answer[part] for answer in each) for part in PARTS}
    flops = products.answers[-1]["flops"] * (rollout or 1)
    peak = median(answer["peak"] for answer in products.answers)
    limits = {"products": scale / products.median}
    if envs is not None:
        limits["environment"] = scale / envs.median
    return {
        "name": work.name,
        "title": work.title,
        "of": "iteration" if rollout else work.unit.removesuffix("s"),
        "steps_of_iteration": rollout or None,
        "parts_ms": parts,
        "sum_ms": sum(parts.values()),
        "plain_ms": scale / plain.median,
        "limits_ms": limits,
        "flops": flops,
        "peak_gflops": peak / 1e9,
        "flops_at_peak_ms": 1e3 * flops / peak,
        "rounds": {"parts": each, "plain": plain.rates, "products": products.rates, "envs": envs and envs.rates},
    }


def show(results: Sequence[dict[str, Any]]) -> None:
    """Milliseconds of every part, and the limits."""
    good = [result for result in results if "error" not in result]
    rows = [
        [part, *(f"{report.number(result['parts_ms'][part])}  {_share(result, part)}" for result in good)]
        for part in PARTS
    ]
    rows.append(["sum", *(report.number(result["sum_ms"]) for result in good)])
    rows.append(["without timers", *(report.number(result["plain_ms"]) for result in good)])
    for limit, label in (("environment", "environments alone"), ("products", "products alone")):
        rows.append([label, *(report.number(result["limits_ms"].get(limit, 0.0)) for result in good)])
    rows.append(["products at peak rate", *(report.number(result["flops_at_peak_ms"]) for result in good)])
    columns = ["milliseconds", *(f"{result['name']} ({result['of']})" for result in good)]
    report.table(columns, rows)


def _share(result: dict[str, Any], part: str) -> str:
    return f"{100 * result['parts_ms'][part] / result['sum_ms']:3.0f} %"


def _say(text: str) -> None:
    report.say(f"  {text}")
