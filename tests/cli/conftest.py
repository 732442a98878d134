"""The command line inside this process: importing torch anew takes seconds, so only what needs a process gets one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlexp import run_dir
from rlexp.cli import main
from rlexp.config.compose import compose
from rlexp.runner import Runner
from tests.counting import COUNTING

QUICK = ["threads=1", "compile=false", "device=cpu", "model.hidden=[16]"]
PPO = ["algo=ppo", "env=cartpole", "trainer.rollout_steps=64", "trainer.eval_episodes=2", *QUICK]
INTERVALS = ["trainer.log_interval=64", "trainer.eval_interval=128", "trainer.checkpoint_interval=128"]


@dataclass
class Answer:
    """What a command left in the terminal."""

    code: int
    out: str
    err: str


Command = Callable[..., Answer]


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything the command line changes about its process is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLEXP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(run_dir, "_LOCK_TRIES", 1)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    for name in ("RLEXP_CONFIG_DIR", "RLEXP_PLUGINS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def rlexp(capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command as ``main`` would, and say what it printed; no user error may end in a traceback."""

    def run(*arguments: str | Path) -> Answer:
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(each) for each in arguments])
        printed = capfd.readouterr()
        assert "Traceback" not in printed.err
        return Answer(int(exit_.value.code or 0), printed.out, printed.err)

    return run


def start(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "rlexp", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(
        command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    """A run of 256 steps with two checkpoints, trained by a real process, and what that printed."""
    folder = tmp_path_factory.mktemp("trained")
    process = start("train", *PPO, *INTERVALS, "trainer.total_steps=256", "name=first", cwd=folder)
    out, err = process.communicate(timeout=120)
    return folder / "outputs" / "first", Answer(process.returncode, out, err)


@pytest.fixture
def trained(trained_once: tuple[Path, Answer], tmp_path: Path) -> Path:
    """A copy of it that a test may spoil."""
    return Path(shutil.copytree(trained_once[0], tmp_path / "trained", symlinks=True))


@pytest.fixture(scope="session")
def dict_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on an environment with nested observations and actions that do not count from 0."""
    path = tmp_path_factory.mktemp("dict") / "run"
    budget = ["trainer.total_steps=8", "trainer.rollout_steps=8", "algo.minibatch_size=8", "trainer.eval_episodes=0"]
    kwargs = "+env.kwargs={obs: dict, action: multi_discrete}"
    Runner(compose([*PPO, *budget, "env=gym", f"env.id={COUNTING}", kwargs, "progress=none"])).train(path)
    return path
