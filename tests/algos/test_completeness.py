"""Every algorithm comes with all that belongs to it: a loss, exports, a config, presets, a page."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path

import pytest

import rlexp
from rlexp.agent import Agent
from rlexp.config.compose import choices
from rlexp.zoo.presets import Preset, read_presets
from tests.algos.common import ALGOS, algorithm

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ALGOS)
def test_has_its_mathematics_as_public_functions_of_its_own(name: str) -> None:
    if not any(inspect.isfunction(value) and not key.startswith("__") for key, value in vars(algorithm(name)).items()):
        return  # it differs from its parent by defaults alone
    module = sys.modules[algorithm(name).__module__]
    own = [
        key for key, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    assert any(key.startswith(f"{name}_") for key in own)


@pytest.mark.parametrize("name", ALGOS)
def test_has_its_names_at_the_root_of_the_package(name: str) -> None:
    cls = algorithm(name)
    agent = getattr(rlexp, cls.__name__)
    assert issubclass(agent, Agent)
    assert agent.algo == name
    assert agent.__doc__ == cls.__doc__
    assert getattr(rlexp, f"{cls.__name__}Algorithm") is cls
    assert {cls.__name__, f"{cls.__name__}Algorithm"} <= set(rlexp.__all__)
    assert {cls.__name__, f"{cls.__name__}Algorithm"} <= set(dir(rlexp))


@pytest.mark.parametrize("name", ALGOS)
def test_is_documented_where_it_is_written(name: str) -> None:
    cls = algorithm(name)
    assert inspect.getdoc(cls)
    assert choices("algo")[name]  # the line that `rlexp list` shows
    source = inspect.getsource(cls).splitlines()
    for field in dataclasses.fields(cls):
        line = next((line for line in source if line.strip().startswith(f"{field.name}:")), "  # inherited")
        assert "  # " in line, f"{cls.__name__}.{field.name} has no comment that says what it does"


@pytest.fixture(scope="module")
def presets() -> dict[str, Preset]:
    return read_presets([])  # all are composed by another test


@pytest.mark.parametrize("name", ALGOS)
def test_has_a_preset_in_the_zoo(name: str, presets: dict[str, Preset]) -> None:
    assert any(preset.algo == name and preset.name.startswith(f"{name}_") for preset in presets.values())


@pytest.mark.parametrize("name", ALGOS)
def test_has_a_page_in_the_documentation(name: str) -> None:
    page = ROOT / "docs" / "algorithms" / f"{name}.md"
    assert page.is_file()
    assert f"algo={name}" in page.read_text(encoding="utf-8")
