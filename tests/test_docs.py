"""What README and docs say is true: their commands compose, their links lead somewhere, their figures are rendered."""

import importlib.util
import json
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from rlexp.config.check import build
from rlexp.config.compose import compose

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHER_COMMANDS = (
    "eval",
    "resume",
    "predict",
    "collect",
    "data",
    "list",
    "bench",
    "--multirun",
    "--config-dir",
    "--help",
    "--cfg",
)
PLACEHOLDERS = ("NAME", "my_", "data.npz", "prior.hdf5", "optimistic_sac")  # things a reader has and we have not


def commands() -> list[str]:
    found = []
    for page in PAGES:
        for line in page.read_text().splitlines():
            line = line.strip().split("  #")[0].strip()
            if line.startswith("rlexp ") and not line.split()[1].startswith(OTHER_COMMANDS):
                found.append(line)
    return sorted(set(found))


@pytest.mark.parametrize("command", commands())
def test_every_training_command_in_the_docs_composes(command: str) -> None:
    if any(placeholder in command for placeholder in PLACEHOLDERS):
        pytest.skip("names something of the reader's own")
    arguments = [each for each in shlex.split(command)[1:] if each not in ("train", "--cfg", "job")]
    config = compose(arguments)
    assert config["algo"]["_target_"].startswith(("rlexp.algos.", "rlexp.contrib."))
    build("env", config["env"]).spec()  # its kwargs and wrappers fit


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


def test_the_benchmark_page_is_rendered_from_the_results() -> None:
    folder = ROOT / "docs" / "benchmarks"
    make = script(folder / "make.py")
    results = json.loads((folder / "results.json").read_text())
    assert (folder / "README.md").read_text() == make.page(results)
    assert make.TABLE.read_text() == make.algorithms(results)


def test_the_speed_page_is_rendered_from_the_measurements() -> None:
    make = script(ROOT / "docs" / "speed" / "make.py")
    assert make.PAGE.read_text() == make.render(make.load())


def test_every_preset_with_a_promise_has_a_result() -> None:
    results = json.loads((ROOT / "docs" / "benchmarks" / "results.json").read_text())
    measured = {result["preset"] for result in results}
    promises = {
        path.stem
        for path in (ROOT / "conf" / "zoo").glob("*.yaml")
        if re.search("(return|success) [≥<]", path.read_text())
    }
    compared = set(script(ROOT / "docs" / "benchmarks" / "make.py").COMPARED)  # with the curves of another framework
    assert measured - compared == promises


def test_a_page_says_that_its_algorithm_was_measured_where_it_was() -> None:
    results = json.loads((ROOT / "docs" / "benchmarks" / "results.json").read_text())
    texts = [(ROOT / "conf" / "zoo" / f"{result['preset']}.yaml").read_text() for result in results]
    measured = {found[1] for text in texts if (found := re.search(r"override /algo: (\w+)", text))}
    pages = {path.stem: path.read_text() for path in (ROOT / "docs" / "algorithms").glob("*.md")}
    assert {name for name, text in pages.items() if "Measured: [benchmarks]" in text} == measured


PROMISE = re.compile(
    r"(?:return|success) ≥ (−?[\d.]+) within (\d+) ([kM]) (steps|updates)(?: \((\d) of (\d) seeds\))?$", re.MULTILINE
)


@pytest.mark.parametrize("path", sorted((ROOT / "conf" / "zoo").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_a_preset_promises_is_of_its_own_budget_and_was_measured(path: Path) -> None:
    """``return ≥ 475 within 15 k steps (2 of 3 seeds)``; without a count, all seeds that were measured."""
    if not re.search("(return|success) ≥", path.read_text()):
        pytest.skip("promises nothing")
    found = PROMISE.search(path.read_text())
    assert found is not None
    least, budget = float(found[1].replace("−", "-")), int(found[2]) * {"k": 1_000, "M": 1_000_000}[found[3]]
    assert compose([f"zoo={path.stem}"])["trainer"][f"total_{found[4]}"] == budget
    folder = ROOT / "docs" / "benchmarks"
    results, figure = json.loads((folder / "results.json").read_text()), script(folder / "make.py").measure(path.stem)
    reached = [each["eval"][figure] >= least for each in results if each["preset"] == path.stem]
    assert (sum(reached), len(reached)) == ((int(found[5]), int(found[6])) if found[5] else (len(reached),) * 2)
