"""Every example of docs/extending.md is written to files and run, exactly as the page has it."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

from rlexp.cli import main

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"^`([\w/]+\.(?:py|yaml))`\n\n```(?:python|yaml)\n(.*?)^```", PAGE, re.M | re.S))
COMMANDS = [line for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.M | re.S) for line in block.splitlines()]
SPEED_ONLY = ["threads=1", "compile=false", "device=cpu"]  # of this machine, not of the example


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The reader's folder, with all files of the page."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setenv("RLEXP_CACHE", str(tmp_path / "cache"))
    for name in ("RLEXP_CONFIG_DIR", "RLEXP_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "my_package"]:
        del sys.modules[name]
    gym.registry.pop("Corridor-v0", None)


def test_the_page_has_an_example_of_every_kind() -> None:
    kinds = {name.split("/")[1] for name in FILES if name.startswith("my_configs/")}
    assert kinds == {"env", "model", "dataset", "logger", "zoo", "algo", "buffer"}
    assert any("my_package.callbacks" in command for command in COMMANDS)
    assert any("my_package.held" in command for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_example_trains_as_written(command: str, project: Path) -> None:
    program, *arguments = shlex.split(command)
    assert program == "rlexp"
    with pytest.raises(SystemExit) as exit_:
        main([*arguments, *SPEED_ONLY, "hydra.run.dir=run"])
    assert not exit_.value.code
    summary = json.loads((project / "run" / "summary.json").read_text())
    assert (summary["status"], summary["updates"] > 0) == ("completed", True)
    if "csv" in command:
        assert (project / "run" / "metric.csv").read_text().startswith("1100,")
    if "zoo=steady" in command:
        assert (summary["stop_reason"], summary["env_steps"]) == ("steady", 800)
