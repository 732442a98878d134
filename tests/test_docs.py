"""What README and docs say is true: their commands compose, their links lead somewhere, their figures are rendered."""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest

from rlexp.config.compose import compose

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHER_COMMANDS = ("eval", "resume", "predict", "list", "bench", "--multirun", "--config-dir", "--help", "--cfg")
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
    assert compose(arguments)["algo"]["_target_"].startswith(("rlexp.algos.", "rlexp.contrib."))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_local_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_benchmark_page_is_rendered_from_the_results() -> None:
    folder = ROOT / "docs" / "benchmarks"
    spec = importlib.util.spec_from_file_location("make_benchmarks", folder / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    results = json.loads((folder / "results.json").read_text())
    assert (folder / "README.md").read_text() == make.page(results)


def test_every_preset_with_a_promise_has_a_result() -> None:
    results = json.loads((ROOT / "docs" / "benchmarks" / "results.json").read_text())
    measured = {result["preset"] for result in results}
    promises = {
        path.stem for path in (ROOT / "conf" / "zoo").glob("*.yaml") if re.search("return [≥<]", path.read_text())
    }
    assert measured == promises
