"""Compiled updates: one graph for each phase and shape, the eager numbers, nothing frozen and nothing shared.

Graphs are made without dynamo's guards, so a mistake here would be silent: everything that a guard would have noticed
has a test. ``aot_eager`` traces exactly what the real backend compiles, in about a second.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import rlexp.compiling
import rlexp.decisions
from rlexp.algos.base import Algorithm, OnPolicyAlgorithm
from rlexp.compiling import CompiledPhase, compiler_problem, phases_of
from rlexp.config.component import schedulable
from rlexp.config.fields import Static
from rlexp.config.trust import EVERYTHING
from rlexp.decisions import decide
from rlexp.resuming import resume_run
from rlexp.runner import Runner
from rlexp.schedules import Schedule
from rlexp.tree import tree_map
from tests.algos.common import (
    ALGOS,
    CPU,
    KIND_CASES,
    algorithm,
    assert_close,
    assert_same_bits,
    data_for,
    flatten,
    other_value,
    small_algo,
    small_config,
    small_runner,
)

needs_compiler = pytest.mark.skipif(compiler_problem(CPU) is not None, reason="no C++ compiler on this machine")


@pytest.fixture
def tracing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compiled phases are traced but not turned into machine code."""
    monkeypatch.setattr(rlexp.compiling, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def traces() -> int:
    """Graphs made so far in this test."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def phases(algo: Algorithm, *, acting: bool = False) -> list[CompiledPhase]:
    compiled = [value for value in vars(algo).values() if isinstance(value, CompiledPhase)]
    return [phase for phase in compiled if phase.acting == acting]


def update_both(eager: Algorithm, compiled: Algorithm, seed: int, rows: int = 8) -> None:
    """The same update twice, with the same result."""
    data = data_for(eager, seed=seed, rows=rows)
    if isinstance(eager, OnPolicyAlgorithm):  # its rollout shares memory with no one, but holds values of this policy
        data = data._replace(extras=dict(data.extras))
    expected, found = eager.update(data).metrics, compiled.update(data).metrics
    assert_close(found, expected)
    assert_close(flatten(compiled.state_dict()), flatten(eager.state_dict()))


def act_both(eager: Algorithm, compiled: Algorithm, rows: int, seed: int = 0) -> None:
    """The same exploring actions, from the same random numbers."""
    obs = data_for(eager, seed=seed, rows=rows).obs
    if isinstance(eager, OnPolicyAlgorithm):
        obs = tree_map(lambda leaf: leaf[0], obs)  # of [T, N, …]
    acts = []
    for algo in (eager, compiled):
        with torch.no_grad():
            acts.append(algo.act(obs, None, explore=True, generator=torch.Generator().manual_seed(seed)))
    assert_close({"action": acts[1].action, **acts[1].extras}, {"action": acts[0].action, **acts[0].extras})


def scheduled_twin(name: str, *, compiled: bool) -> Algorithm:
    """An agent in which every float that can be scheduled is."""
    runner = small_runner(name)
    floats = [field for field, kind in schedulable(type(runner.algo)).items() if kind is float]
    runner.algo.schedules = {field: Schedule(end=other_value(name, field)) for field in floats}
    runner.algo.setup(runner.spec, runner.model, device=CPU, seed=1)
    if compiled:
        runner.algo.compile_phases()
    return runner.algo


def change_settings(algo: Algorithm, name: str) -> bool:
    """Set every switch, choice and number that may change to something else, as a user might in the middle of a run.

    Gives whether there were any beside learning rates, which optimizers took over when they were made.
    """
    others = False
    hints = get_type_hints(type(algo), include_extras=True)
    fixed = [key for key, hint in hints.items() if any(isinstance(note, Static) for note in get_args(hint))]
    for field in dataclasses.fields(algo):
        value = getattr(algo, field.name)
        if not field.init or field.name in fixed:
            continue
        others |= not field.name.endswith("learning_rate") and isinstance(value, (bool, Enum, float))
        if isinstance(value, bool):
            setattr(algo, field.name, not value)
        elif isinstance(value, Enum):
            setattr(algo, field.name, next(other for other in type(value) if other is not value))
        elif isinstance(value, float) and field.name in schedulable(type(algo)):
            setattr(algo, field.name, other_value(name, field.name))
    return others


def in_every_test_run(*names: str) -> list[Any]:
    """These algorithms in `make test`, the others, whose tracing takes seconds each, in `make test-learning`."""
    return [pytest.param(name, marks=() if name in names else pytest.mark.learning) for name in ALGOS]


CHANGING = ("ppo", "dqn")  # whose graphs `make test` has made anew, after the same beginning


COMPILED = ("a2c", "trpo", "iqn", "discrete_sac", "crossq", "cql", "bcq", "drq_v2")  # the graphs that differ most


@pytest.mark.parametrize("name", in_every_test_run(*COMPILED))
def test_compiled_updates_are_the_eager_ones(name: str, tracing: None) -> None:
    eager, compiled = small_algo(name), small_algo(name, compiled=True)
    count = len(phases_of(type(eager), "update"))
    assert len(phases(compiled)) == count > 0
    assert phases(eager) == []
    for seed in range(3):
        update_both(eager, compiled, seed)
    assert [len(phase.graphs) for phase in phases(compiled)] == [1] * count  # made at the first update
    assert traces() == count


@pytest.mark.parametrize("name", in_every_test_run(*CHANGING))
def test_graphs_are_made_anew_for_what_changes_and_only_for_that(name: str, tracing: None) -> None:
    eager, compiled = small_algo(name), small_algo(name, compiled=True)
    other_eager, other_compiled = scheduled_twin(name, compiled=False), scheduled_twin(name, compiled=True)
    count = len(phases_of(type(eager), "update"))
    assert len(phases(compiled)) == count > 0
    assert phases(eager) == []
    update_both(eager, compiled, seed=0)
    assert traces() == count

    # a second agent in the process has settings and graphs of its own
    update_both(other_eager, other_compiled, seed=10)
    assert traces() == 2 * count

    # schedules take effect without tracing anew
    for progress in (0.5, 1.0):
        for agent in (other_eager, other_compiled):
            agent.apply_schedules(progress)
        update_both(other_eager, other_compiled, seed=11)
    assert other_compiled.scheduled_values() == {
        field: pytest.approx(other_value(name, field)) for field in other_compiled.scheduled
    }
    assert traces() == 2 * count
    update_both(eager, compiled, seed=3)  # and the first one did not notice

    # another batch size gets its own graph, and going back finds the old one
    update_both(eager, compiled, seed=4, rows=6)
    assert traces() == 3 * count
    assert [len(phase.graphs) for phase in phases(compiled)] == [2] * count
    update_both(eager, compiled, seed=5)
    update_both(eager, compiled, seed=6, rows=6)
    assert traces() == 3 * count

    # a setting changed afterwards is not frozen into the old graphs
    unchanged = small_algo(name)
    unchanged.load_state_dict(eager.state_dict())
    others = [change_settings(agent, name) for agent in (eager, compiled)]
    update_both(eager, compiled, seed=7)
    update_both(eager, compiled, seed=8)
    assert traces() == 4 * count
    for seed in (7, 8):
        unchanged.update(data_for(unchanged, seed=seed))
    before, after = flatten(unchanged.state_dict()), flatten(eager.state_dict())
    mattered = any(not torch.allclose(before[key], after[key]) for key in before if "weight" in key)
    assert mattered or not any(others)

    # a checkpoint is loaded into the tensors that the graphs hold
    for agent in (eager, compiled):
        agent.load_state_dict(unchanged.state_dict())
    update_both(eager, compiled, seed=9)
    assert traces() == 4 * count


@pytest.mark.parametrize(
    "name",
    [
        case
        for case in in_every_test_run(*COMPILED, "ppo", "dqn", "sac", "td3", "iql")
        if "explore" in phases_of(algorithm(case.values[0]), "acting")
        and "recurrence" not in algorithm(case.values[0]).__dataclass_fields__
    ],
)
def test_compiled_acting_is_the_eager_one_and_traced_once(name: str, tracing: None) -> None:
    # The schedules of the DQN family begin with random actions alone, for which no network is asked.
    late = (
        ["algo.schedules.epsilon=null", "algo.epsilon=0.3"] if "epsilon" in algorithm(name).__dataclass_fields__ else []
    )
    eager, compiled = small_algo(name, *late), small_algo(name, *late, compiled=True)
    for seed in range(2):
        act_both(eager, compiled, rows=8, seed=seed)
    act_both(eager, compiled, rows=5)  # someone else acting with the same agent: not worth a graph
    assert sum(len(phase.graphs) for phase in phases(compiled, acting=True)) == 1  # one way to act is used
    assert traces() == 1
    assert phases(eager, acting=True) == []


@needs_compiler
@pytest.mark.parametrize("name", in_every_test_run("ppo", "sac"))
def test_machine_code_computes_the_eager_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    import torch._inductor.config as inductor

    inductor.compile_threads = 1  # a pool of processes would take longer to start
    torch._dynamo.reset()
    eager, compiled = small_algo(name), small_algo(name, compiled=True)
    for seed in range(5):
        update_both(eager, compiled, seed)
    assert [len(phase.graphs) for phase in phases(compiled)] == [1] * len(phases_of(type(eager), "update"))
    act_both(eager, compiled, rows=1)
    act_both(eager, compiled, rows=1, seed=1)
    used = [*phases(compiled), *phases(compiled, acting=True)]  # all are called without the layers above the code
    assert {graph.__qualname__ for phase in used for graph in phase.graphs.values()} == {"_shortcut.<locals>.call"}
    assert list(tmp_path.rglob("*.cpp"))  # it was not interpreted after all
    torch._dynamo.reset()


# ---- without a compiler


def compile_config(*changes: str) -> dict[str, Any]:
    return small_config("dqn", changes=("progress=plain", "trainer.total_steps=80", *changes))


def decisions(path: Path) -> dict[str, Any]:
    return json.loads((path / "run.json").read_text(encoding="utf-8"))["decisions"]


def weights(path: Path) -> bytes:
    return (path / "checkpoints" / "last" / "policy.safetensors").read_bytes()


def test_without_a_compiler_a_run_goes_on_eagerly_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Runner(compile_config("compile=false")).train(tmp_path / "eager")
    assert "compiled" not in "".join(capfd.readouterr())
    monkeypatch.setattr(rlexp.compiling.shutil, "which", lambda *_: None)
    runner = Runner(compile_config("compile=true"))
    assert runner.train(tmp_path / "run")["status"] == "completed"
    assert "Updates are not compiled: no C++ compiler was found (g++ or clang++)." in "".join(capfd.readouterr())
    assert decisions(tmp_path / "run")["compile"] is False
    assert phases(runner.algo) == []
    assert weights(tmp_path / "run") == weights(tmp_path / "eager")


def test_the_decision_to_compile_follows_the_plan_and_is_kept_on_resume(
    tracing: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rlexp.compiling.shutil, "which", lambda *_: "/usr/bin/g++")
    Runner(compile_config("compile=auto")).train(tmp_path / "short")  # too few updates to pay
    assert decisions(tmp_path / "short")["compile"] is False
    with monkeypatch.context() as patch:
        patch.setattr(rlexp.decisions, "COMPILE_PAYS_AFTER", {"small": 0, "large": 0})
        Runner(compile_config("compile=auto")).train(tmp_path / "run")
    assert decisions(tmp_path / "run")["compile"] is True
    assert traces() == 2  # the update, and acting
    capfd.readouterr()
    resume_run(tmp_path / "run", ["trainer.total_steps=120"], trust=EVERYTHING)  # by its own plan it would not pay
    assert "updates are compiled" in "".join(capfd.readouterr())
    assert traces() == 4
    # taken to a machine without a compiler, it says so and goes on
    monkeypatch.setattr(rlexp.compiling.shutil, "which", lambda *_: None)
    summary = resume_run(tmp_path / "run", ["trainer.total_steps=160"], trust=EVERYTHING)
    assert summary["status"] == "completed"
    assert "Updates are no longer compiled: no C++ compiler was found" in "".join(capfd.readouterr())
    assert traces() == 4


# ---- nothing waits for the device


READS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "unique", "_unique2"}


class Reads(TorchDispatchMode):
    """Collects the operations that hand a value, or a size that depends on one, from the device to Python."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        boolean_index = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in READS or boolean_index:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def test_reads_are_found() -> None:
    with Reads() as reads:
        value = torch.tensor([1.0, 0.0])
        float(value[0])
        bool(value.any())
        value[value > 0]
    assert len(reads.found) == 3


@pytest.mark.parametrize(("name", "kind"), KIND_CASES)
def test_an_update_reads_no_value_back_from_the_device(name: str, kind: str) -> None:
    algo = small_algo(name, kind=kind)
    data = data_for(algo)
    algo.update(data)  # what is done only once may be done
    with Reads() as reads:
        update = algo.update(data)
    assert reads.found == []
    with Reads() as reads:
        {metric: float(value) for metric, value in update.metrics.items()}
    assert len(reads.found) == len(update.metrics)  # they were left on the device until now


@pytest.mark.parametrize("name", [name for name in ALGOS if not issubclass(algorithm(name), OnPolicyAlgorithm)])
def test_scheduled_settings_are_not_read_back_either(name: str) -> None:
    algo = scheduled_twin(name, compiled=False)
    data = data_for(algo)
    algo.update(data)
    with Reads() as reads:
        algo.update(data)
    assert reads.found == []


# ---- lower precision


@pytest.mark.parametrize("name", ALGOS)
def test_bfloat16_updates_keep_weights_in_float32_and_stay_near_the_full_ones(name: str) -> None:
    full, low = small_algo(name), small_algo(name)
    low.autocast = torch.bfloat16
    for seed in range(3):
        data = data_for(full, seed=seed)
        expected, found = full.update(data).metrics, low.update(data).metrics
        for metric, value in found.items():
            assert value.dtype == torch.float32, metric
            torch.testing.assert_close(
                value, expected[metric], rtol=0.2, atol=0.05, msg=lambda m, n=metric: f"{n}: {m}"
            )
    state, other = flatten(low.state_dict()), flatten(full.state_dict())
    for key, value in state.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            assert value.dtype == torch.float32, key
            assert torch.isfinite(value).all(), key
    assert any(not torch.equal(state[key], other[key]) for key in state if "weight" in key)  # it did make a difference


def test_lower_precision_can_be_compiled_too(tracing: None) -> None:
    eager, compiled = small_algo("dqn"), small_algo("dqn")
    for algo in (eager, compiled):
        algo.autocast = torch.bfloat16
    compiled.compile_phases()
    for seed in range(2):
        update_both(eager, compiled, seed)
    assert traces() == 1


def test_two_eager_agents_are_equal_bit_for_bit() -> None:
    """What the comparisons above rest on."""
    one, two = small_algo(ALGOS[0]), small_algo(ALGOS[0])
    for seed in range(2):
        data = data_for(one, seed=seed)
        one.update(data)
        two.update(data)
    assert_same_bits(flatten(one.state_dict()), flatten(two.state_dict()))


@pytest.mark.parametrize(("capabilities", "warns"), [({"avx512_bf16": False}, 1), ({"amx_bf16": True}, 0), ({}, 0)])
def test_a_processor_without_bfloat16_is_warned_of(
    capabilities: dict[str, bool], warns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    algo, said = small_algo("dqn"), Mock()
    algo.autocast = torch.bfloat16
    decide({"compile": False, "threads": 1}, algo, 10, said)
    assert said.warn.call_count == warns
    algo.autocast = None
    decide({"compile": False, "threads": 1}, algo, 10, said)
    assert said.warn.call_count == warns


@pytest.mark.parametrize(("busy", "told"), [(0, 0), (1, 1), (2, 1)])
def test_busy_cores_are_told_where_several_threads_would_wait_for_them(
    busy: int, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rlexp.decisions, "busy_cores", lambda: busy)
    monkeypatch.setattr(rlexp.decisions, "cpu_count", lambda: 2)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(rlexp.decisions, "LARGE_NETWORK", 1)
    algo, said = small_algo("dqn"), Mock()
    assert decide({"compile": False, "threads": "auto"}, algo, 10, said)["threads"] == 2
    assert said.note.call_count == told
    assert decide({"compile": False, "threads": 2}, algo, 10, said)["threads"] == 2
    assert said.note.call_count == told
