"""Every command and every Python block of README and docs is run, or says why not. See tests/documented.py."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rlexp.runner
from rlexp import run_dir
from rlexp.cli import main
from rlexp.config.check import check_config, check_nodes
from tests.documented import LONG, Page, Step, name_of, read_page, shrunk, with_fewer, words

ROOT = Path(__file__).parents[1]


ELSEWHERE = {  # pages that another test runs as they stand
    "docs/extending.md": "tests/test_extending.py",
    "CONTRIBUTING.md": "tests/test_contributing.py",
    "docs/benchmarks/README.md": "generated from runs that were made: every preset is composed by tests/config",
    "docs/speed/README.md": "generated from what rlexp bench measured: tests/bench runs each benchmark",
    "docs/reference.md": "generated: tests/test_docs.py compares it with the schemas",
}
PAGES = [
    pytest.param(path, marks=pytest.mark.learning if name_of(path).startswith(LONG) else (), id=name_of(path))
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if name_of(path) not in ELSEWHERE
]


# ---- the reader's folder


def _typed(arguments: list[str], stdin: str = "") -> int:
    """A command in this process; its exit code."""
    reader, sys.stdin = sys.stdin, io.StringIO(stdin)
    try:
        main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.stdin = reader
    raise AssertionError("main always exits")


def _make_tiny(patch: pytest.MonkeyPatch) -> None:
    """Every run of this process is a small one."""
    patch.setattr(
        rlexp.runner, "check_nodes", lambda config, trust: check_nodes(shrunk(check_config(config, trust)), trust)
    )


def _own_process(patch: pytest.MonkeyPatch, folder: Path, cache: Path) -> None:
    """Nothing of this process stays changed."""
    patch.setenv("RLEXP_CACHE", str(cache))
    patch.chdir(folder)
    patch.setattr(sys, "argv", sys.argv)
    patch.setattr(sys, "path", sys.path.copy())
    patch.setattr(run_dir, "_LOCK_TRIES", 1)
    patch.setenv("HYDRA_FULL_ERROR", "1")
    patch.setenv("SDL_VIDEODRIVER", "dummy")
    patch.setenv("MINARI_DATASETS_PATH", str(folder / "minari"))
    for name in ("RLEXP_CONFIG_DIR", "RLEXP_PLUGINS"):
        patch.delenv(name, raising=False)


RUNS = {  # what a reader is supposed to have by now
    "NAME": ["algo=dqn", "env=cartpole"],
    "my_sac_run": ["algo=sac", "env=pendulum"],
    "my_iql_run": ["algo=iql", "env=pendulum", "dataset=run", "dataset.path=my_sac_run"],
}


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For datasets that are made on first use."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A folder with some runs, a sweep and some data; made once."""
    folder = tmp_path_factory.mktemp("reader")
    with pytest.MonkeyPatch.context() as patch:
        _own_process(patch, folder, cache)
        _make_tiny(patch)
        for name, overrides in RUNS.items():
            assert _typed([*overrides, f"name={name}"]) == 0
        shutil.copytree("outputs/NAME", "outputs/my_dqn_run", symlinks=True)
        assert _typed(["--multirun", "algo=dqn", "env=cartpole", "algo.gamma=0.98,0.99", "name=my_sweep"]) == 0
        for file in ("data.hdf5", "data.npz", "prior.hdf5"):
            assert _typed(["collect", "random", "env=pendulum", f"to={file}", "steps=400"]) == 0
    return folder


@pytest.fixture
def reader(prepared: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of that folder for one page."""
    folder = tmp_path / "reader"
    shutil.copytree(prepared, folder, symlinks=True)
    _own_process(monkeypatch, folder, cache)
    before = set(gym.registry)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "my_package"]:
        del sys.modules[name]
    for name in set(gym.registry) - before:
        gym.registry.pop(name)


# ---- one step


class Reader:
    """Does what a page says, and remembers what went wrong."""

    def __init__(self, page: Page, folder: Path, printed: Callable[[], str], patch: pytest.MonkeyPatch) -> None:
        self.page, self.folder, self.printed, self.patch = page, folder, printed, patch
        self.names = _names()

    def do(self, step: Step) -> str:
        """The problem, if there is one."""
        self.printed()
        fails = any(line.startswith("error: ") for line in step.prints.splitlines())
        try:
            if step.kind == "file":
                path = self.folder / step.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(step.text)
                return ""
            if step.kind == "python":
                with self.patch.context() as patch:
                    _make_tiny(patch)
                    exec(compile(step.text, name_of(self.page.path), "exec"), self.names)
                return ""
            with self.patch.context() as patch:
                if not fails:  # what is refused might be right at a tiny size
                    _make_tiny(patch)
                code, said = self.type(step.text), self.printed()
        except Exception:
            return traceback.format_exc(limit=-3)
        if code != (1 if fails else 0):
            return f"exit code {code}\n{said[-2000:]}"
        missing = [line for line in step.prints.splitlines() if not _appears(line, said)]
        return f"does not print {missing}, but\n{said}" if missing else ""

    def type(self, command: str) -> int:
        """Type a command; its exit code."""
        piped, _, command = command.rpartition(" | ")
        program, arguments = command.split()[0], words(command)
        if program == "make":
            return self.make(arguments)
        if program == "python":
            return subprocess.run([sys.executable, *arguments], cwd=self.folder, check=False).returncode
        stdin = "".join(f"{each}\n" for each in shlex.split(piped)[1:])
        run = "outputs/my_sweep" if self.page.path.name == "sweeps.md" else "outputs/NAME"
        arguments = [run if each in ("RUN", "NAME", "outputs/RUN", "outputs/NAME") else each for each in arguments]
        arguments = [each.replace("seed=S", "seed=0") for each in arguments]
        if arguments[0] in ("eval", "collect"):
            arguments = with_fewer(arguments)
        if "--multirun" in arguments:
            return 0  # tests/test_docs.py plans every sweep of the docs, tests/cli runs sweeps
        return _typed(arguments, stdin)

    def make(self, arguments: list[str]) -> int:
        """A target exists; the rlexp command it stands for is run."""
        # By `make test ARGS=…` the outer make hands its own ARGS down to this one.
        env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "ARGS")}
        dry = subprocess.run(["make", "-n", *arguments], cwd=ROOT, env=env, text=True, capture_output=True, check=False)
        lines = [line.split("/")[-1] for line in dry.stdout.splitlines() if re.match(r"\S*bin/rlexp ", line)]
        return dry.returncode or max((self.type(line) for line in lines), default=0)


def _appears(line: str, said: str) -> bool:
    """Whether a line was printed; how it was wrapped does not count."""
    said = "".join(said.split())
    parts = [re.escape("".join(part.split())) for part in line.split("…")]
    return re.search(".*".join(parts), said) is not None


def _names() -> dict[str, Any]:
    """What examples take for granted."""
    return {"observation": np.zeros(4, np.float32), "make_my_env": lambda: gym.make("CartPole-v1")}


# ---- the promises


@pytest.mark.parametrize("path", PAGES)
def test_everything_a_page_tells_to_do_works(
    path: Path, reader: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed() -> str:
        out, err = capfd.readouterr()
        return out + err

    page = read_page(path)
    doer = Reader(page, reader, printed, monkeypatch)
    problems = [f"{step.text}\n{problem}" for step in page.steps if not step.why_not and (problem := doer.do(step))]
    assert not problems, "\n\n".join(problems)


def test_a_page_that_is_run_elsewhere_exists() -> None:
    assert all((ROOT / page).exists() for page in ELSEWHERE)


def test_extras_that_pages_install_exist() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for extras in re.findall(r"rlexp\[([\w,]+)\]", path.read_text()):
            assert set(extras.split(",")) <= set(known), path
