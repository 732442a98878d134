"""Tiny runs trained once, and a scene for each test to damage copies of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlexp.config.compose import compose
from rlexp.runner import Runner
from tests.security.hostile import EVIL_MODULES, SECRET, Scene

TINY = ["model.hidden=[16]", "trainer.eval_episodes=1", "compile=false", "threads=1", "progress=none", "device=cpu"]
RUNS = {
    "ppo": ["algo=ppo", "env=cartpole", "trainer.total_steps=256", "trainer.rollout_steps=64",
            "trainer.log_interval=64", "trainer.checkpoint_interval=0", "algo.minibatch_size=64", "algo.epochs=1"],
    "dqn": ["algo=dqn", "env=cartpole", "trainer.total_steps=120", "trainer.learning_starts=40",
            "trainer.batch_size=16", "trainer.log_interval=60", "trainer.checkpoint_interval=60",
            "trainer.keep_checkpoints=5", "buffer.capacity=500"],
    "crr": ["algo=crr", "env=pendulum", "trainer.total_updates=10", "trainer.batch_size=8", "trainer.log_interval=5",
            "dataset.size=100"],
}  # fmt: skip


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained runs, by name, and others of the same settings but another seed."""
    folder = tmp_path_factory.mktemp("originals")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLEXP_CACHE", str(folder / "cache"))
        for name, overrides in RUNS.items():
            Runner(compose([*overrides, *TINY, f"name={name}"])).train(folder / name)
        Runner(compose([*RUNS["ppo"], *TINY, "name=other", "seed=1"])).train(folder / "other")
    return folder


@pytest.fixture
def scene(tmp_path: Path, originals: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Where a stranger has been: see :class:`Scene`."""
    monkeypatch.setenv("RLEXP_CACHE", str(originals / "cache"))
    monkeypatch.setenv("RLEXP_SECRET", SECRET)
    monkeypatch.setattr(sys, "path", [*sys.path])
    scene = Scene(tmp_path / "scene", originals)
    working = scene.folder / "working"
    (working / "evil_package").mkdir(parents=True)
    alarm = f"import os\nos.mkdir({str(scene.marker)!r})\nclass Env: pass\n"
    (working / "evil_module.py").write_text(alarm)
    (working / "evil_package" / "__init__.py").write_text(alarm)
    monkeypatch.chdir(working)
    for name in EVIL_MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return scene
