"""What README and docs say is true: their commands compose, their links lead somewhere, their figures are rendered."""

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from rlexp.config.check import build
from rlexp.config.compose import choices, compose, for_hydra, register
from rlexp.sweeps import OptunaSearch
from rlexp.sweeps.planning import Plan
from rlexp.zoo.manifest import read as read_manifest
from rlexp.zoo.presets import Preset, read_presets
from rlexp.zoo.results import Result
from rlexp.zoo.results import load as load_results
from rlexp.zoo.targets import TARGETS
from tests.documented import LONG, name_of

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHER_COMMANDS = (
    "eval",
    "resume",
    "predict",
    "collect",
    "data",
    "list",
    "export",
    "metrics",
    "report",
    "bench",
    "--multirun",
    "--config-dir",
    "--help",
    "--cfg",
)
RUN_KEYS = {"seed", "command", "changes", "config_sha256", "created", "commit", "dirty", "versions", "machine",
            "device", "threads", "compiled", "wall_time_s", "spent", "eval", "best_eval", "curve"}  # fmt: skip
PLACEHOLDERS = ("NAME", "my_", "data.npz", "prior.hdf5", "optimistic_sac")  # things a reader has and we have not


def commands() -> list[str]:
    found = []
    for page in PAGES:  # of the others, tests/test_docs_commands.py runs every command
        lines = page.read_text().splitlines() if name_of(page).startswith((*LONG, "docs/benchmarks")) else []
        for line in lines:
            line = line.strip().split("  #")[0].strip()
            if line.startswith("rlexp ") and not line.split()[1].startswith(OTHER_COMMANDS):
                found.append(line)
    return sorted(set(found))


@pytest.mark.parametrize("command", commands())
def test_every_training_command_in_the_docs_composes(command: str) -> None:
    if any(placeholder in command for placeholder in PLACEHOLDERS):
        pytest.skip("names something of the reader's own")
    arguments = [each for each in shlex.split(command)[1:] if each not in ("train", "--cfg", "job")]
    if len(arguments) == 1 and arguments[0].startswith("zoo="):  # composed by tests/config, as all presets
        assert arguments[0].removeprefix("zoo=") in choices("zoo")
        return
    config = compose(arguments)
    assert config["algo"]["_target_"].startswith(("rlexp.algos.", "rlexp.contrib."))
    build("env", config["env"]).spec()  # its kwargs and wrappers fit


def sweeps() -> list[str]:
    lines = [line.strip() for page in PAGES for line in page.read_text().splitlines()]
    return sorted({line.split("  #")[0].strip() for line in lines if line.startswith("rlexp --multirun ")})


@pytest.mark.parametrize("command", sweeps())
def test_every_sweep_in_the_docs_can_be_planned(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register()
    monkeypatch.setattr(Plan, "_compose_job", lambda self, number, overrides: (self.folder / str(number), {}))
    plan = Plan(for_hydra(shlex.split(command)[2:]))
    if isinstance(plan.sweep, OptunaSearch):
        assert any(each.is_sweep_override() for each in plan.overrides)
    else:
        assert len(plan.jobs) > 1
        compose(plan.jobs[-1].overrides)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_local_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def script(path: Path) -> ModuleType:
    """A script of docs as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_rendered_from_the_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLEXP_CONFIG_DIR", raising=False)
    folder = ROOT / "docs"
    written, due = (folder / "reference.md").read_text(), script(folder / "reference.py").page()
    assert written == due, "python docs/reference.py writes it anew"
    assert "| `algo.clip_range` | number > 0 | `0.2` | how far the probability ratio may leave 1 |" in written
    fields = [line for line in written.splitlines() if line.startswith("| `")]
    assert all(line.rstrip(" |").count(" | ") == 3 for line in fields), "a field without a comment"


BENCHMARKS = ROOT / "docs" / "benchmarks"


def test_the_benchmark_pages_and_the_digest_are_rendered_from_the_manifests() -> None:
    make = script(BENCHMARKS / "make.py")
    results = make.load(BENCHMARKS)
    again = "python docs/benchmarks/make.py render"
    assert (BENCHMARKS / "README.md").read_text() == make.page(results), again
    assert make.TABLE.read_text() == make.algorithms(results), again
    assert make.DIGEST.read_text() == make.digest_text(results), again


def test_every_manifest_says_all_that_a_result_depends_on() -> None:
    for result in load_results(BENCHMARKS):
        assert result.preset in choices("zoo")
        assert [run["seed"] for run in result.runs] == sorted({run["seed"] for run in result.runs}), result.preset
        for run in result.runs:
            assert set(run) == RUN_KEYS, result.preset
            assert run["changes"] == [], f"{result.preset} was measured with other settings than its own"
            assert re.fullmatch("[0-9a-f]{40}", run["commit"])
            assert re.fullmatch("[0-9a-f]{64}", run["config_sha256"])
            assert run["curve"][-1][0] == run["spent"]
            assert run["curve"][-1][1] == pytest.approx(run["eval"][result.manifest["figure"]], abs=1e-3)
            assert run["versions"]["torch"]
            assert run["machine"]["platform"]


def test_the_speed_page_is_rendered_from_the_measurements() -> None:
    make = script(ROOT / "docs" / "speed" / "make.py")
    assert make.PAGE.read_text() == make.render(make.load())


def test_the_readme_tells_the_speed_that_was_measured() -> None:
    measured = script(ROOT / "docs" / "speed" / "make.py").load()["speed"]["results"]
    results = {result["name"]: result["best"]["ratio"] for result in measured if "ratio" in result["best"]}
    said = re.search(r"It is fast.*?all of them", (ROOT / "README.md").read_text(), re.DOTALL)
    assert said is not None
    named = {
        "PPO": "ppo_cartpole",
        "DQN": "dqn_cartpole",
        "SAC": "sac_pendulum",
        "TD3": "td3_pendulum",
        "DQN on Atari": "dqn_pong",
        "CRR": "crr_offline",
        "IQL": "iql_offline",
        "CQL": "cql_offline",
    }
    ratios = dict(re.findall(r"([A-Z][\w ]+?) ([\d.]+)×", said[0]))
    assert ratios == {name: f"{results[workload]:.1f}" for name, workload in named.items()}


def test_every_preset_with_a_promise_has_a_result() -> None:
    measured = {result.preset for result in load_results(BENCHMARKS)}
    promises = {
        path.stem
        for path in (ROOT / "conf" / "zoo").glob("*.yaml")
        if re.search("(return|success) [≥<]", path.read_text())
    }
    compared = set(script(BENCHMARKS / "make.py").COMPARED)  # with the curves of another framework
    assert measured - compared == promises


@pytest.fixture(scope="module")
def presets() -> dict[str, Preset]:
    return read_presets([])


def test_a_page_says_that_its_algorithm_was_measured_where_it_was(presets: dict[str, Preset]) -> None:
    measured = {presets[result.preset].algo for result in load_results(BENCHMARKS)}
    pages = {path.stem: path.read_text() for path in (ROOT / "docs" / "algorithms").glob("*.md")}
    assert {name for name, text in pages.items() if "Measured: [benchmarks]" in text} == measured


PROMISE = re.compile(
    r"(?:return|success) ≥ (−?[\d.]+) within ([\d.,]+)(?: ([kM]))? (steps|updates)(?: \((\d) of (\d) seeds\))?$",
    re.MULTILINE,
)


@pytest.mark.parametrize("path", sorted((ROOT / "conf" / "zoo").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_a_preset_promises_is_of_its_own_budget_and_was_measured(path: Path, presets: dict[str, Preset]) -> None:
    """``return ≥ 475 within 15 k steps (2 of 3 seeds)`` or ``… within 401,408 steps``.

    Without a count, all seeds that were measured.
    """
    if not re.search("(return|success) ≥", path.read_text()):
        pytest.skip("promises nothing")
    found = PROMISE.search(path.read_text())
    assert found is not None
    least = float(found[1].replace("−", "-"))
    budget = float(found[2].replace(",", "")) * {None: 1, "k": 1_000, "M": 1_000_000}[found[3]]
    assert presets[path.stem].budget == (budget, found[4])  # composed by tests/config
    assert least == TARGETS[path.stem].least
    finals = Result(read_manifest(BENCHMARKS / "manifests" / f"{path.stem}.json")).finals
    reached = [final >= least for final in finals]
    assert (sum(reached), len(reached)) == ((int(found[5]), int(found[6])) if found[5] else (len(reached),) * 2)
