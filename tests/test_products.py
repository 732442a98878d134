"""Matrix products of compiled updates: where biases go, which library multiplies, and what a run remembers of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import rlexp.compiling
from rlexp import machine, onednn
from rlexp.compiling import CompiledPhase
from rlexp.config.trust import EVERYTHING
from rlexp.errors import RunError
from rlexp.products import MAX_BY_MKL, BiasesApart, ByOneDNN
from rlexp.resuming import resume_run
from rlexp.runner import Runner
from tests.algos.common import assert_close, data_for, flatten, small_config, small_runner
from tests.algos.test_compiling import needs_compiler, tracing  # noqa: F401  (a fixture)

aten = torch.ops.aten
needs_operator = pytest.mark.skipif(onednn.problem() is not None, reason=f"no operator: {onednn.problem()}")
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def rewritten(change: Callable[[Any], None], function: Callable[..., Any], args: tuple[Tensor, ...]) -> GraphModule:
    """The graph of a function after a pass over it."""
    traced = make_fx(function, tracing_mode="fake")(*args)
    change(traced.graph)
    traced.recompile()
    return traced


def calls(traced: GraphModule, *ops: Any) -> list[int]:
    """How often a graph calls each of these operations."""
    targets = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    return [targets.count(op) for op in ops]


def test_biases_are_added_behind_products_and_matrices_are_not() -> None:
    def products(row: Tensor, rows: Tensor, matrix: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        pair = torch.stack((left, left)), torch.stack((right, right))
        return (
            torch.addmm(row, left, right),
            torch.baddbmm(rows, *pair),
            torch.addmm(matrix, left, right),
            torch.addmm(row, left, right, beta=2.0),
        )

    args = (torch.randn(4), torch.randn(2, 1, 4), torch.randn(3, 4), torch.randn(3, 5), torch.randn(5, 4))
    traced = rewritten(BiasesApart(), products, args)
    assert calls(traced, aten.mm.default, aten.bmm.default, aten.addmm.default) == [1, 1, 2]
    for found, expected in zip(traced(*args), products(*args), strict=True):
        torch.testing.assert_close(found, expected)


@needs_operator
@pytest.mark.parametrize(
    ("rows", "inner", "columns", "by_onednn"),
    [(256, 128, 128, True), (256, 64, 64, False), (64, 128, 129, True), (2, 512, 1024, False)],
)
def test_large_products_in_float32_go_by_onednn(rows: int, inner: int, columns: int, by_onednn: bool) -> None:
    assert by_onednn == (rows * inner * columns > MAX_BY_MKL)

    def product(left: Tensor, right: Tensor, bias: Tensor) -> Tensor:
        return torch.addmm(bias, left, right).relu()

    args = (torch.randn(rows, inner), torch.randn(inner, columns), torch.randn(columns))
    traced = rewritten(ByOneDNN(), product, args)
    assert calls(traced, torch.ops.rlexp.product.default, aten.mm.default) == [by_onednn, not by_onednn]
    torch.testing.assert_close(traced(*args), product(*args), rtol=1e-4, atol=1e-4)
    lower = tuple(arg.bfloat16() for arg in args)
    assert calls(rewritten(ByOneDNN(), product, lower), torch.ops.rlexp.product.default) == [0]


@needs_operator
def test_an_ensembles_shared_input_is_written_out_for_onednn() -> None:
    def product(shared: Tensor, weight: Tensor) -> Tensor:
        return torch.bmm(shared.expand(10, *shared.shape), weight)

    args = (torch.randn(256, 23), torch.randn(10, 23, 64))
    traced = rewritten(ByOneDNN(), product, args)
    assert calls(traced, aten.clone.default, torch.ops.rlexp.product.default, aten.bmm.default) == [1, 1, 0]
    torch.testing.assert_close(traced(*args), product(*args), rtol=1e-4, atol=1e-4)


@needs_operator
@pytest.mark.parametrize("shape", [(), (1,), (3,)], ids=["matrices", "a batch of one", "a batch"])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT", "strided"])
def test_the_operator_multiplies_matrices_of_any_layout(shape: tuple[int, ...], layout: str) -> None:
    generator = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int, kind: str) -> Tensor:
        if kind == "T":
            return torch.randn(*shape, columns, rows, generator=generator).mT
        if kind == "s":
            return torch.randn(*shape, 2 * rows, 3 * columns, generator=generator)[..., ::2, ::3]
        return torch.randn(*shape, rows, columns, generator=generator)

    for rows, inner, columns in ((40, 33, 21), (256, 256, 256), (5, 1, 7), (1, 300, 1)):
        left, right = matrix(rows, inner, layout[0]), matrix(inner, columns, layout[1])
        found = torch.ops.rlexp.product(left, right)
        assert found.dtype is torch.float32
        assert found.is_contiguous()
        torch.testing.assert_close(found.double(), left.double() @ right.double(), rtol=1e-4, atol=1e-4)
        assert torch.equal(found, torch.ops.rlexp.product(left, right))


@needs_operator
def test_the_operator_says_what_it_gives_before_it_runs() -> None:
    args = (torch.randn(2, 8, 5), torch.randn(2, 5, 6))
    torch.library.opcheck(torch.ops.rlexp.product.default, args, test_utils=("test_schema", "test_faketensor"))


@needs_operator
@needs_compiler
@pytest.mark.parametrize("name", ["sac", "ddpg"])
def test_updates_with_it_compute_the_eager_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    import torch._inductor.config as inductor

    torch._dynamo.reset()
    agents = []
    for compiled in (False, True):
        runner = small_runner(name, "model.hidden=[160,160]")
        runner.algo.setup(runner.spec, runner.model, device=CPU, seed=1)
        if compiled:
            runner.algo.compile_phases(onednn=True)
        agents.append(runner.algo)
    for seed in range(3):
        with inductor.patch(compile_threads=1):  # a pool of processes would take longer to start
            expected, found = (agent.update(data_for(agent, seed=seed, rows=64)).metrics for agent in agents)
        assert_close(found, expected)
    eager, own = (flatten(agent.state_dict()) for agent in agents)
    assert_close(own, eager)
    code = "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.cpp"))
    assert '"rlexp::product"' in code
    torch._dynamo.reset()


# ---- whether there is an operator, and whether it helps


@pytest.fixture
def unmade(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody has asked for the operator yet in this process."""
    onednn.problem.cache_clear()
    yield
    onednn.problem.cache_clear()
    monkeypatch.undo()
    monkeypatch.setattr(onednn, "_declare", lambda: None)  # it is, if it was before
    onednn.problem()


def test_a_torch_without_the_function_is_told(unmade: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "SYMBOL", "_ZN2at6native13mkldnn_matmulEv")
    assert onednn.problem() == f"torch {torch.__version__} has no mkldnn_matmul"


def test_a_machine_without_a_compiler_is_told(unmade: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn.shutil, "which", lambda *_: None)
    assert onednn.problem() == "no C++ compiler was found (g++ or clang++)"


@needs_compiler
def test_code_that_does_not_compile_leaves_nothing_behind(
    unmade: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(onednn, "SOURCE", "this is no C++")
    problem = onednn.problem()
    assert problem is not None
    assert problem.startswith("the C++ compiler failed: ")
    assert [path.name for path in tmp_path.rglob("*")] == ["rlexp"]


@needs_operator
def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert onednn._built() is None
    built = onednn._build()
    assert onednn._built() == built
    assert [path.name for path in built.parent.iterdir()] == [built.name]  # nothing beside it
    assert onednn._build() == built  # by a second process that did not see it yet


@needs_operator
@pytest.mark.parametrize("size", [0, 1_000, 20_000])
def test_an_operator_that_was_cut_short_is_made_anew(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    built = onednn._build()
    built.write_bytes(built.read_bytes()[:size])
    script = "import torch; from rlexp import onednn; print(onednn.problem(), torch.ops.rlexp.product)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "None rlexp.product\n"
    assert onednn._built() == built


@needs_operator
def test_nothing_is_not_multiplied() -> None:
    with pytest.raises(RuntimeError, match="nothing to multiply"):
        torch.ops.rlexp.product(torch.ones(2, 0), torch.ones(0, 3))


@pytest.mark.parametrize(
    ("model", "known", "device", "expected"),
    [
        ("AMD EPYC 9965 192-Core Processor", {"avx512_f": True, "avx512_vp2intersect": True}, CPU, True),
        ("AMD EPYC 9654 96-Core Processor", {"avx512_f": True, "avx512_vp2intersect": False}, CPU, False),  # half width
        ("AMD EPYC 9965 192-Core Processor", {}, CPU, False),  # not known
        ("Intel(R) Core(TM) i7-1185G7", {"avx512_f": True, "avx512_vp2intersect": True}, CPU, False),  # MKL uses it
        ("AMD EPYC 9965 192-Core Processor", {"avx512_f": True, "avx512_vp2intersect": True}, GPU, False),
    ],
)
def test_it_helps_where_mkl_holds_the_processor_back(
    model: str, known: dict[str, bool], device: torch.device, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn.sys, "platform", "linux")
    monkeypatch.setattr(machine, "cpu_model", lambda: model)
    monkeypatch.setattr(machine, "_instructions", lambda: known)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert onednn.helps(device) is expected


# ---- what a run remembers


def decisions(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_text(encoding="utf-8"))["decisions"]


@pytest.fixture
def here(tracing: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:  # noqa: F811
    """Sets what oneDNN does here, and whether there is an operator."""
    monkeypatch.setattr(rlexp.compiling.shutil, "which", lambda *_: "/usr/bin/g++")

    def be(*, helps: bool = True, problem: str | None = None) -> None:
        monkeypatch.setattr(onednn, "helps", lambda device: helps)
        monkeypatch.setattr(onednn, "problem", lambda: problem)

    return be


def train(path: Path, *overrides: str) -> None:
    changes = ("progress=plain", "trainer.total_steps=60", "compile=true", *overrides)
    Runner(small_config("ddpg", changes=changes)).train(path)


def test_a_run_keeps_the_library_it_began_with(
    here: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    multiplied: list[bool] = []  # by oneDNN, in the graphs that were made
    compiled = CompiledPhase.__init__

    def noted(phase: CompiledPhase, *args: Any) -> None:
        compiled(phase, *args)
        multiplied.append(phase.onednn)

    def since() -> set[bool]:
        found = set(multiplied)
        multiplied.clear()
        return found

    monkeypatch.setattr(CompiledPhase, "__init__", noted)
    here(helps=False)
    train(tmp_path / "by_mkl")
    assert since() == {False}
    here()
    train(tmp_path / "by_onednn")
    assert since() == {True}
    train(tmp_path / "eager", "compile=false")
    assert since() == set()
    assert [decisions(tmp_path / name)["onednn"] for name in ("by_mkl", "by_onednn", "eager")] == [False, True, False]
    capfd.readouterr()

    resume_run(tmp_path / "by_mkl", ["trainer.total_steps=80"], trust=EVERYTHING)
    assert since() == {False}
    resume_run(tmp_path / "by_onednn", ["trainer.total_steps=70"], trust=EVERYTHING)
    assert since() == {True}
    assert decisions(tmp_path / "by_mkl")["onednn"] is False
    assert "oneDNN" not in "".join(capfd.readouterr())

    here(problem="no C++ compiler was found")
    resume_run(tmp_path / "by_onednn", ["trainer.total_steps=80"], trust=EVERYTHING)
    said = " ".join("".join(capfd.readouterr()).split())
    assert since() == {False}
    assert "Large matrix products, where there are any, no longer go by oneDNN: no C++ compiler was found." in said


def test_without_the_operator_a_run_says_so_and_goes_on(
    here: Callable[..., None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here(problem="the C++ compiler failed: no such header")
    train(tmp_path / "run")
    assert decisions(tmp_path / "run")["onednn"] is False
    said = " ".join("".join(capfd.readouterr()).split())
    assert (
        "Large matrix products, where there are any, go by MKL, which is slower here: the C++ compiler failed" in said
    )


def test_runs_of_before_go_on_by_mkl_and_damaged_ones_are_refused(here: Callable[..., None], tmp_path: Path) -> None:
    here()
    train(tmp_path / "run")
    file = tmp_path / "run" / "run.json"

    def change(decided: Callable[[dict[str, Any]], Any]) -> None:
        info = json.loads(file.read_text(encoding="utf-8"))
        decided(info["decisions"])
        file.write_text(json.dumps(info), encoding="utf-8")

    change(lambda decided: decided.pop("onednn"))
    here(problem="never to be asked")
    resume_run(tmp_path / "run", ["trainer.total_steps=80"], trust=EVERYTHING)

    change(lambda decided: decided.update(onednn="yes"))
    with pytest.raises(RunError, match=r"decisions in .*run\.json are damaged"):
        resume_run(tmp_path / "run", ["trainer.total_steps=90"], trust=EVERYTHING)
