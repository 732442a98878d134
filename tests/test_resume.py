"""A run killed again and again, and resumed, gives what the uninterrupted run gives, to the last bit.

The commands are those of the shell; the processes that run them kill themselves (SIGKILL) at chosen moments, see
tests/resume_driver.py.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlexp import run_dir
from rlexp.checkpoint import load_checkpoint
from rlexp.config.compose import choices, compose
from rlexp.config.trust import EVERYTHING
from rlexp.datasets.replay import read_memory
from rlexp.errors import DataError, RlexpError, RunError
from rlexp.loggers import Logger
from rlexp.resuming import resume_run
from rlexp.run_dir import RunDir
from rlexp.runner import Runner
from rlexp.trainers.base import Trainer
from rlexp.trainers.workspace import Interrupted
from tests.damage import snapshot
from tests.trainers.recording import counting_config, rows_of, without_time

KILLED, TERMINATED = -9, 143
ROOT = Path(__file__).parent.parent


class Driver:
    """Runs commands of the command line in processes that can be told when to die."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environ = os.environ | {"OMP_NUM_THREADS": "1", "RLEXP_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.resume_driver"],
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *argv: str, kill: dict[str, Any] | None = None) -> int:
        """The exit code; what the command printed is in ``said``."""
        output = self.folder / "output.txt"
        job = {"argv": argv, "cwd": str(self.folder), "output": str(output), "kill": kill}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        self.said = output.read_text() if output.exists() else ""
        assert answer, self.said
        return int(answer)

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    driver = Driver(tmp_path_factory.mktemp("resume"))
    yield driver
    driver.close()


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLEXP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


# ---- small runs

SMALL = {
    "trainer.total_steps": 96,
    "trainer.total_updates": 96,
    "trainer.rollout_steps": 4,
    "trainer.batch_size": 8,
    "trainer.learning_starts": 12,
    "trainer.train_frequency": 2,
    "trainer.log_interval": 8,
    "trainer.eval_interval": 32,
    "trainer.eval_episodes": 2,
    "trainer.checkpoint_interval": 16,
    "env.num_envs": 2,
    "env.max_episode_steps": 11,
    "buffer.capacity": 60,
    "buffer.n_step": 3,
    "dataset.size": 90,
    "algo.epochs": 2,
    "algo.minibatch_size": 4,
    "algo.target_interval": 7,
    "model.hidden": "[8]",
}
SPECIAL: dict[str, list[str]] = {  # what an algorithm's case covers beside itself
    "ppo": [
        "env.normalize_obs=true",
        "env.normalize_reward=true",
        "algo.schedules.learning_rate={shape:linear,end:0}",
        "algo.schedules.epochs={shape:step,end:1,until:0.5}",
    ],
    "dqn": ["env=lunar_lander", "algo.double=true"],
    "sac": ["env=half_cheetah", "env.normalize_obs=true"],
    "discrete_sac": ["env.normalize_reward=true", "buffer.capacity=30"],
    "rlpd": ["trainer.offline_pretrain_updates=20", "env.normalize_obs=true"],
    "ddpg": ["algo.exploration=ou", "algo.max_grad_norm=1.0"],
    "td3": ["algo.schedules.exploration_noise={start:1.0,end:0.1}"],
    "redq": ["trainer.gradient_updates_per_step=2", "algo.actor_interval=3"],
    "awr": ["buffer.n_step=1"],
}


@functools.cache
def overrides(algo: str, *special: str) -> tuple[str, ...]:
    """A run that takes a second: the algorithm's own loop, an environment that fits."""
    from rlexp.config.component import REGISTRY
    from rlexp.config.compose import register

    register()
    discrete = "discrete" in REGISTRY["algo"][algo].actions  # type: ignore[attr-defined]
    chosen = [f"algo={algo}", f"env={'cartpole' if discrete else 'pendulum'}"]
    chosen += ["name=run", "seed=3", "device=cpu", "threads=1", "compile=false", "progress=none"]
    config = compose([*chosen, *special])
    for key, value in SMALL.items():
        group, field = key.split(".")
        offline = config["trainer"]["_target_"].endswith("Offline")  # which keeps its whole dataset
        if field in (config[group] or {}) and not (offline and field == "capacity"):
            chosen.append(f"{key}={value}")
    return (*chosen, *special)


def train(driver: Driver, path: Path, settings: tuple[str, ...], kill: dict[str, Any] | None = None) -> int:
    return driver(*settings, f"hydra.run.dir={path}", kill=kill)


# ---- what must be the same


def flat(tree: Any, where: str = "") -> dict[str, Any]:
    """The leaves of a state tree; arrays as bytes, so that equal means equal in every bit."""
    if isinstance(tree, dict):
        return {name: leaf for key, child in tree.items() for name, leaf in flat(child, f"{where}.{key}").items()}
    if isinstance(tree, (list, tuple)):
        return {name: leaf for i, child in enumerate(tree) for name, leaf in flat(child, f"{where}[{i}]").items()}
    if isinstance(tree, torch.Tensor):
        tree = tree.numpy()
    if isinstance(tree, np.ndarray):
        return {where: (str(tree.dtype), tree.shape, tree.tobytes())}
    return {where: repr(tree)}


def outcome(path: Path) -> dict[str, Any]:
    """Everything a run leaves behind that does not depend on the clock."""
    checkpoint = load_checkpoint(path / "checkpoints" / "last")
    state = flat(checkpoint.tree)
    assert any(isinstance(leaf, tuple) for leaf in state.values())
    del state[".progress.seconds"]
    summary = json.loads((path / "summary.json").read_text())
    clocked = ("wall_time_s", "steps_per_second", "updates_per_second")
    (summary.get("curve") or {}).pop("seconds_to_threshold", None)
    found = {
        "metrics": without_time(rows_of(path)),
        "state": state,
        "summary": {key: value for key, value in summary.items() if key not in clocked},
        "last": os.readlink(path / "checkpoints" / "last"),
    }
    if (path / "checkpoints" / "best").exists():
        found["best"] = os.readlink(path / "checkpoints" / "best")
        found["best policy"] = flat(load_checkpoint(path / "checkpoints" / "best").tree["policy"])
    if checkpoint.segments:
        found["memory"] = read_memory(path).sha256
    return found


def assert_same(path: Path, reference: Path) -> None:
    ours, theirs = outcome(path), outcome(reference)
    assert ours["metrics"] == theirs["metrics"]
    assert {key for key in ours["state"] if ours["state"][key] != theirs["state"].get(key)} == set()
    assert ours == theirs


def kill_and_resume(
    driver: Driver, path: Path, settings: tuple[str, ...], kills: list[dict[str, Any]], *options: str
) -> None:
    """Start, be killed, resume, be killed, …, and complete."""
    for number, kill in enumerate(kills):
        code = train(driver, path, settings, kill) if number == 0 else driver("resume", str(path), *options, kill=kill)
        assert code == (TERMINATED if kill.get("signal") == 15 else KILLED), (kill, driver.said)
        assert RunDir.open(path).state() == ("interrupted" if code == TERMINATED else "killed")
    assert driver("resume", str(path), *options) == 0, driver.said
    assert RunDir.open(path).state() == "completed"


# ---- exact resume

MOMENTS = [
    {"event": "work", "count": 5},  # before the first row
    {"event": "row", "rows": 1},  # before the first checkpoint
    {"event": "file", "count": 9},  # while the first checkpoint is written
    {"event": "saved"},  # right after it
    {"event": "work", "count": 3, "rows": 1},  # in the middle of an iteration
    {"event": "row", "rows": 2},  # a row is written, its checkpoint is not
    {"event": "work", "count": 2, "rows": 1, "signal": 15},  # SIGTERM: a checkpoint off the interval
    {"event": "file", "count": 30},  # while the links move or old checkpoints are removed
    {"event": "last"},  # between the two links
    {"event": "torn", "rows": 1},  # half a row
    {"event": "restored"},  # while resuming
    {"event": "cut"},
    {"event": "file", "count": 20, "rows": 3},
    {"event": "work", "count": 1, "rows": 2},
    {"event": "end"},  # after the last checkpoint, before anybody knows
]


KILLED_OFTEN = {"ppo", "dqn", "sac", "crr", "rlpd"}  # at every moment; the others at some


def kill_cases() -> list[Any]:
    """One of each loop, and of each kind of state beside: noise with a memory, a carry, a memory that wraps.

    All by `make test-learning`.
    """
    now = {"ppo", "dqn", "crr", "rlpd", "ddpg", "recurrent_ppo", "discrete_sac"}
    return [pytest.param(algo, marks=() if algo in now else pytest.mark.learning) for algo in choices("algo")]


@pytest.mark.parametrize("algo", kill_cases())
def test_a_run_killed_at_many_moments_ends_like_one_that_was_not(algo: str, driver: Driver, tmp_path: Path) -> None:
    settings = overrides(algo, *SPECIAL.get(algo, []))
    assert train(driver, tmp_path / "whole", settings) == 0, driver.said
    moments = MOMENTS if algo in KILLED_OFTEN else [MOMENTS[2], MOMENTS[9]]
    kill_and_resume(driver, tmp_path / "parts", settings, moments)
    assert_same(tmp_path / "parts", tmp_path / "whole")


PIXELS = {
    "dqn": ["env=cartpole_pixels", "buffer=prioritized", "buffer.capacity=150"],  # which the run fills
    "ppo": ["env=cartpole_pixels", "model.shared_encoder=true"],
    "sac": ["env=pendulum_pixels", "buffer.capacity=150"],
    "recurrent_ppo": ["env=cartpole_pixels", "env.frame_stack=1"],
    "drq_v2": ["env=pendulum_pixels"],
}
PIXEL_RUN = ("env.kwargs.size=36", "trainer.total_steps=240", "trainer.log_interval=16", "trainer.eval_interval=120")
PIXEL_RUN += ("trainer.checkpoint_interval=48",)


@pytest.mark.parametrize(
    "algo", [pytest.param(name, marks=() if name == "dqn" else pytest.mark.learning) for name in PIXELS]
)
def test_runs_on_pixels_are_resumed_to_the_last_bit(algo: str, driver: Driver, tmp_path: Path) -> None:
    settings = overrides(algo, *PIXELS[algo], *PIXEL_RUN)
    assert train(driver, tmp_path / "whole", settings) == 0, driver.said
    kills = [{"event": "work", "count": 9, "rows": 4}, {"event": "file", "count": 12, "rows": 5}, {"event": "last"}]
    kill_and_resume(driver, tmp_path / "parts", settings, kills)
    assert_same(tmp_path / "parts", tmp_path / "whole")
    rows = rows_of(tmp_path / "whole")
    assert any(name.startswith("loss/") for row in rows for name in row)  # it has learned


def test_games_are_resumed_in_the_middle_of_later_lives(driver: Driver, tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    game = ("env=atari", "env.game=breakout", "env.size=36", "env.max_episode_steps=100", "env.sticky_actions=0.25")
    settings = overrides("dqn", *game, *PIXEL_RUN[1:])
    assert train(driver, tmp_path / "whole", settings) == 0, driver.said
    kill_and_resume(driver, tmp_path / "parts", settings, [{"event": "work", "count": 9, "rows": 9}])
    assert_same(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.parametrize("interval", [0, 8])  # the best is the very first checkpoint, or one of several
def test_the_best_checkpoint_survives_a_kill_while_it_is_saved(interval: int, driver: Driver, tmp_path: Path) -> None:
    once = ("trainer.eval_interval=24", "trainer.stop_return=-1e9", f"trainer.checkpoint_interval={interval}")
    settings = overrides("ppo", *once)
    assert train(driver, tmp_path / "whole", settings) == 0, driver.said
    for event in ("named", "last"):  # before the two links move, and between them
        kill_and_resume(driver, tmp_path / event, settings, [{"event": event, "rows": 4}])
        assert_same(tmp_path / event, tmp_path / "whole")


def test_environments_in_worker_processes_are_restored_exactly(driver: Driver, tmp_path: Path) -> None:
    workers = ("env.vectorization=subprocess", "env.workers=2", "env.num_envs=3", "trainer.eval_episodes=0")
    kills = [{"event": "work", "count": 9, "rows": 2}, {"event": "row", "rows": 3, "signal": 15}]
    for_all = overrides("discrete_sac", *workers)
    assert train(driver, tmp_path / "whole", for_all) == 0, driver.said
    kill_and_resume(driver, tmp_path / "parts", for_all, kills)
    assert_same(tmp_path / "parts", tmp_path / "whole")
    here = tuple(each for each in for_all if "vectorization" not in each and "workers" not in each)
    assert train(driver, tmp_path / "here", here) == 0, driver.said
    assert_same(tmp_path / "here", tmp_path / "whole")


def test_a_process_killed_from_outside_ends_like_one_that_was_not(driver: Driver, tmp_path: Path) -> None:
    settings = overrides("ppo", "trainer.total_steps=1600")
    assert train(driver, tmp_path / "whole", settings) == 0, driver.said
    path = tmp_path / "parts"
    process = subprocess.Popen([sys.executable, "-m", "rlexp", *settings, f"hydra.run.dir={path}"], cwd=tmp_path)
    while process.poll() is None and not (path / "checkpoints" / "last").exists():
        time.sleep(0.01)
    process.kill()
    assert process.wait() == KILLED
    assert driver("resume", str(path)) == 0, driver.said
    assert len(RunDir.open(path).info["resumes"]) == 1
    assert_same(path, tmp_path / "whole")


def test_an_environment_that_cannot_be_restored_is_reported_and_the_run_goes_on(driver: Driver, tmp_path: Path) -> None:
    settings = overrides("sac", "env=bipedal_walker", "env.max_episode_steps=7")  # Box2D keeps what no seed governs
    path = tmp_path / "run"
    assert train(driver, path, settings, {"event": "work", "count": 3, "rows": 6}) == KILLED
    assert driver("resume", str(path)) == 0, driver.said
    assert "could not be restored exactly" in driver.said
    steps = [row["env_steps"] for row in rows_of(path) if "eval/return_mean" not in row]
    assert steps == list(range(8, 97, 8))
    memory = read_memory(path)
    assert len(memory) == 60
    assert not memory.breaks().any()  # the episodes that were given up count as truncated


@pytest.mark.parametrize("loop", ["on_policy", "replay", "mixed"])
def test_an_episode_that_cannot_be_continued_is_truncated_where_it_stood(
    loop: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {"trainer__rollout_steps": 4} if loop == "on_policy" else {"trainer__learning_starts": 4}
    config = counting_config(
        loop,
        **steps,
        env__num_envs=2,
        env__kwargs={"length": 5, "end": "truncated", "forgetful": False},  # carries a sum into the next episode
        env__normalize_reward=True,
        trainer__total_steps=64,
        trainer__log_interval=8,
    )
    stops = {"_target_": "tests.trainers.recording.Listener", "signal_at": 4 if loop == "on_policy" else 16}
    config["trainer"]["callbacks"] = [stops]  # after 16 steps: in the fourth episode, which has had one
    with pytest.raises(Interrupted):
        Runner(config).train(tmp_path / "run")
    running, trainers = [], []
    load = Trainer.load_state_dict

    def look(self: Trainer, *args: Any) -> None:
        load(self, *args)
        running.append(self.policy.reward_normalizer.returns.tolist())  # type: ignore[union-attr]
        trainers.append(self)

    monkeypatch.setattr(Trainer, "load_state_dict", look)
    resume_run(tmp_path / "run", trust=EVERYTHING)
    assert "Environments 0, 1 could not be restored exactly" in caplog.text
    assert running == [[0.0, 0.0]]  # new episodes have begun
    rows = rows_of(tmp_path / "run")
    assert [row["env_steps"] for row in rows] == list(range(8, 65, 8))
    if loop == "on_policy":
        return
    memory = trainers[0].work.buffer.transitions()
    assert not memory.breaks().any()
    ends = np.flatnonzero(memory.truncated[:32])  # of the first environment
    assert ends.tolist() == [4, 9, 14, 15, 20, 25, 30, 31]  # 15: given up; 31: the newest
    np.testing.assert_array_equal(memory.next_obs[15, :2], [memory.obs[15, 0], 1])


# ---- rows


def test_no_row_is_sent_to_a_logger_twice(driver: Driver, tmp_path: Path) -> None:
    sent = tmp_path / "sent.txt"
    fake = f"+logger.fake={{_target_:tests.test_resume.FileLogger,path:'{sent}'}}"
    settings = (*overrides("ppo"), fake)
    kills = [
        {"event": "work", "count": 3, "rows": 3},
        {"event": "work", "count": 3, "rows": 5},
        {"event": "file", "count": 7, "rows": 4},
        {"event": "work", "count": 2, "rows": 1, "signal": 15},
    ]
    kill_and_resume(driver, tmp_path / "run", settings, kills, "trust=[tests]")
    lines = [json.loads(line) for line in sent.read_text().splitlines()]
    opened = [line for line in lines if "open" in line]
    assert len(opened) == 5
    assert [line["skip"] for line in opened] == sorted(line["skip"] for line in opened)
    assert [line["skip"] for line in opened[:2]] == [0, 3]
    logged = [line for line in lines if "index" in line]
    rows = rows_of(tmp_path / "run")
    assert [line["index"] for line in logged] == list(range(len(rows)))
    assert without_time([line["row"] for line in logged]) == without_time(rows)


class FileLogger(Logger):
    """Cannot be rewound: what it was told stays."""

    def __init__(self, path: str) -> None:
        self.path = path

    def _write(self, entry: dict[str, Any]) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(entry) + "\n")

    def open(self, info: Any) -> None:
        self._write({"open": info.run_id, "skip": info.skip_rows})

    def log(self, index: int, row: Any) -> None:
        self._write({"index": index, "row": dict(row)})


# ---- refusals


def interrupted(path: Path, algo: str, *special: str) -> dict[str, Any]:
    """A run that was stopped by a signal after its fifth iteration; resumed, the listener counts on from there."""
    config = compose([*overrides(algo, *special)])
    config["trainer"]["callbacks"] = [{"_target_": "tests.trainers.recording.Listener", "signal_at": 5}]
    with pytest.raises(Interrupted):
        Runner(config).train(path)
    return config


def content(path: Path) -> dict[str, Any]:
    return {name: value for name, value in snapshot(path).items() if name != ".lock"}


def uninterrupted(path: Path, config: dict[str, Any]) -> None:
    config["trainer"]["callbacks"][0]["signal_at"] = -1
    Runner(config).train(path)


@pytest.mark.parametrize(
    ("algo", "override", "says"),
    [
        ("ppo", "model.hidden=[9]", "size mismatch"),
        ("ppo", "env.num_envs=3", "env.num_envs=2"),
        ("ppo", "env.normalize_obs=true", "trained without env.normalize_obs"),
        ("ppo", "env.normalize_reward=true", "trained without env.normalize_reward"),
        ("dqn", "model.hidden=[9]", "size mismatch"),
        ("dqn", "buffer.capacity=50", "buffer.capacity"),
        ("crr", "algo.n_critics=3", "size mismatch"),
        ("rlpd", "dataset.size=80", "dataset"),
    ],
)
def test_an_override_that_does_not_fit_is_refused_and_the_run_left_as_it_was(
    algo: str, override: str, says: str, tmp_path: Path
) -> None:
    config = interrupted(tmp_path / "run", algo)
    before = content(tmp_path / "run")
    with pytest.raises(RlexpError, match=re.escape(says)) as refusal:
        resume_run(tmp_path / "run", [override], trust=EVERYTHING)
    assert len(str(refusal.value)) < 600
    assert content(tmp_path / "run") == before
    resume_run(tmp_path / "run", trust=EVERYTHING)
    uninterrupted(tmp_path / "whole", config)
    assert without_time(rows_of(tmp_path / "run")) == without_time(rows_of(tmp_path / "whole"))


def test_a_dataset_that_has_changed_is_refused(tmp_path: Path) -> None:
    env = compose(list(overrides("cql")))["env"]
    rng = np.random.default_rng(0)
    arrays = {
        "observations": rng.normal(size=(50, 3)).astype(np.float32),
        "actions": rng.uniform(-2, 2, (50, 1)).astype(np.float32),
        "rewards": rng.normal(size=50).astype(np.float32),
        "terminals": np.zeros(50, bool),
    }
    assert env["id"] == "Pendulum-v1"
    data = tmp_path / "data.npz"
    np.savez(data, **arrays)
    config = interrupted(tmp_path / "run", "cql", "dataset=npz", f"dataset.path={data}")
    before = content(tmp_path / "run")
    np.savez(data, **(arrays | {"rewards": arrays["rewards"] + 1e-6}))
    with pytest.raises(DataError, match="not the one this run began with"):
        resume_run(tmp_path / "run", trust=EVERYTHING)
    assert content(tmp_path / "run") == before
    np.savez(data, **arrays)
    resume_run(tmp_path / "run", trust=EVERYTHING)
    uninterrupted(tmp_path / "whole", config)
    assert without_time(rows_of(tmp_path / "run")) == without_time(rows_of(tmp_path / "whole"))


def test_a_run_that_is_still_running_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path / "run", "ppo")
    before = content(tmp_path / "run")
    monkeypatch.setattr(run_dir, "_LOCK_TRIES", 2)
    with RunDir.open(tmp_path / "run").lock(), pytest.raises(RunError, match=f"still running \\(pid {os.getpid()}"):
        resume_run(tmp_path / "run", trust=EVERYTHING)
    assert content(tmp_path / "run") == before


# ---- completed runs


def test_a_completed_run_is_left_alone_and_a_larger_budget_extends_it(driver: Driver, tmp_path: Path) -> None:
    settings, path = overrides("ppo"), tmp_path / "run"
    assert train(driver, path, settings) == 0, driver.said
    before = content(path)
    assert driver("resume", str(path)) == 0
    assert "is completed" in driver.said
    assert content(path) == before
    assert (
        driver("resume", str(path), "trainer.total_steps=160", kill={"event": "work", "count": 3, "rows": 2}) == KILLED
    )
    assert driver("resume", str(path)) == 0, driver.said
    longer = tuple("trainer.total_steps=160" if each.startswith("trainer.total_steps") else each for each in settings)
    assert train(driver, tmp_path / "longer", longer) == 0, driver.said
    assert_same(path, tmp_path / "longer")
