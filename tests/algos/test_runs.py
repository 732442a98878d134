"""Small runs of every algorithm in each of its loops: the same numbers again, also when resumed, and their use."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlexp
from rlexp.algos.base import MIXED, OFFLINE, ON_POLICY, REPLAY
from rlexp.config.component import schedulable
from rlexp.config.trust import EVERYTHING
from rlexp.resuming import resume_run
from rlexp.runner import Runner
from rlexp.trainers.base import Trainer
from rlexp.trainers.workspace import Interrupted
from tests.algos.common import KIND_CASES, algorithm, once_per_loop, run_cases, small_config
from tests.counting import ACTION_SPACES, OBS_SPACES, CountingEnv

RETURNS = {15.0, 21.0, 28.0, 36.0}  # L (L + 1) / 2 of episodes that last 5 to 8 steps
Run = Callable[..., Path]


def run_config(name: str, loop: str, *changes: str) -> dict[str, Any]:
    """A small run with everything in it that has state: normalisers, several environments, pretraining."""
    extra = ["env.normalize_obs=true"]
    if loop != OFFLINE:
        extra += ["env.normalize_reward=true"]
    if loop == MIXED:
        extra += ["trainer.offline_pretrain_updates=30"]
    return small_config(name, loop, changes=(*extra, *changes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The directory of an uninterrupted run, trained when first asked for."""
    runs: dict[tuple[str, ...], Path] = {}

    def run(name: str, loop: str, *changes: str) -> Path:
        key = (name, loop, *changes)
        if key not in runs:
            runs[key] = tmp_path_factory.mktemp(f"{name}-{loop}") / "run"
            summary = Runner(run_config(name, loop, *changes)).train(runs[key])
            assert summary["status"] == "completed"
        return runs[key]

    return run


def rows(path: Path) -> list[dict[str, Any]]:
    """The metrics without what the clock says."""
    lines = (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if key != "time_s" and not key.startswith("time/")}
        for line in lines
    ]


def weights(path: Path) -> bytes:
    return (path / "checkpoints" / "last" / "policy.safetensors").read_bytes()


def assert_same_run(left: Path, right: Path) -> None:
    assert rows(left) == rows(right)
    assert weights(left) == weights(right)


@pytest.mark.parametrize(("name", "loop"), run_cases())
def test_a_run_says_what_it_did(name: str, loop: str, finished: Run) -> None:
    path = finished(name, loop)
    summary = json.loads((path / "summary.json").read_text())
    assert (summary["algo"], summary["seed"], summary["stop_reason"]) == (name, 0, "budget")
    assert (summary["updates"] if loop == OFFLINE else summary["env_steps"]) == 120
    assert summary["updates"] > 0
    assert summary["eval"]["episodes"] == 2
    logged = [row for row in rows(path) if "eval/return_mean" not in row]
    assert any(key.startswith("loss/") for key in logged[-1])
    for row in rows(path):
        assert all(np.isfinite(value) for value in row.values()), row
        if "eval/return_mean" in row:
            assert min(RETURNS) <= row["eval/return_mean"] <= max(RETURNS)


def seed_what_has_no_say() -> None:
    """Put torch's and NumPy's own generators, which no run may draw from, in another state."""
    torch.manual_seed(12345)
    np.random.seed(54321)


@pytest.mark.parametrize(("name", "loop"), once_per_loop())  # of the others, two halves are put together below
def test_the_same_seed_gives_the_same_run(name: str, loop: str, finished: Run, tmp_path: Path) -> None:
    expected = finished(name, loop)
    seed_what_has_no_say()
    Runner(run_config(name, loop)).train(tmp_path / "again")
    assert_same_run(expected, tmp_path / "again")


@pytest.mark.parametrize(("name", "loop"), [("ppo", ON_POLICY), ("sac", REPLAY), ("iql", OFFLINE), ("rlpd", MIXED)])
def test_another_seed_gives_another_run(name: str, loop: str, finished: Run, tmp_path: Path) -> None:
    Runner(run_config(name, loop, "seed=1")).train(tmp_path / "other")
    assert weights(tmp_path / "other") != weights(finished(name, loop))
    assert rows(tmp_path / "other") != rows(finished(name, loop))


def stop(trainer: Trainer, clock: int, how: str) -> None:
    """Let a run end at a moment that is no interval's end: asked to (still acting at random), or amid its updates."""
    iterate, learn = trainer.iterate, trainer.learn

    def iterate_and_ask() -> None:
        iterate()
        if trainer.clock >= clock and trainer.progress > 0:
            trainer.work.signal_number = signal.SIGTERM

    def learn_and_crash(batch: Any) -> Any:
        update = learn(batch)
        if trainer.clock >= clock and trainer.progress > 0:
            raise RuntimeError("the power went out")
        return update

    if how == "signal":
        trainer.iterate = iterate_and_ask  # type: ignore[method-assign]
    else:
        trainer.learn = learn_and_crash  # type: ignore[method-assign]


STOPS = {"crash": (RuntimeError, 90), "signal": (Interrupted, 50)}  # the error that ends the run, and when


@pytest.mark.parametrize(
    ("how", "name", "loop"),
    [
        pytest.param(how, *case.values, marks=case.marks)
        for how, cases in {"crash": run_cases(), "signal": once_per_loop()}.items()
        for case in cases
    ],
)
def test_a_stopped_run_resumes_to_the_numbers_of_an_uninterrupted_one(
    how: str, name: str, loop: str, finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, clock = STOPS[how]
    expected = finished(name, loop)
    seed_what_has_no_say()
    runner = Runner(run_config(name, loop))
    stop(runner.trainer, clock, how)
    with pytest.raises(error):
        runner.train(tmp_path / "run")
    assert rows(tmp_path / "run") != rows(expected)
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] != "completed"
    monkeypatch.setattr(type(runner.trainer), "start_fresh", lambda self: pytest.fail("it began anew"))
    summary = resume_run(tmp_path / "run", trust=EVERYTHING)
    assert summary["status"] == "completed"
    assert_same_run(tmp_path / "run", expected)


@pytest.mark.parametrize(("name", "loop"), once_per_loop())
def test_a_run_extended_by_a_larger_budget_equals_one_that_had_it_from_the_start(
    name: str, loop: str, finished: Run, tmp_path: Path
) -> None:
    # A schedule follows the budget, so it would rightly make a difference.
    scheduled = [field for field, schedule in run_config(name, loop)["algo"]["schedules"].items() if schedule]
    changes = [f"algo.schedules.{field}=null" for field in scheduled]
    budget = "trainer.total_updates" if loop == OFFLINE else "trainer.total_steps"
    Runner(run_config(name, loop, *changes, f"{budget}=60")).train(tmp_path / "run")
    summary = resume_run(tmp_path / "run", [f"{budget}=120"], trust=EVERYTHING)
    assert (summary["status"], summary["stop_reason"]) == ("completed", "budget")
    assert_same_run(tmp_path / "run", finished(name, loop, *changes))


def discounts(name: str) -> bool:
    """Whether an algorithm has a γ that may change: returns of whole episodes need one for all."""
    cls = algorithm(name)
    return "gamma" in schedulable(cls) and not cls.derived & {"mc_return", "lambda_return"}


@pytest.mark.parametrize(("name", "loop"), once_per_loop(lambda name, loop: discounts(name)))
def test_a_scheduled_discount_reaches_the_updates(name: str, loop: str, tmp_path: Path) -> None:
    schedule = "algo.schedules.gamma={shape: step, start: 0.875, end: 0.5, until: 0.7}"
    changes = (schedule,) if loop == ON_POLICY else (schedule, "buffer.n_step=1")
    runner = Runner(small_config(name, loop, changes=changes))
    update, seen = runner.algo.update, []

    def watch(batch: Any) -> Any:
        gamma = float(runner.algo.gamma) if loop == ON_POLICY else batch.discount.max().item()
        seen.append((runner.trainer.progress, gamma))
        return update(batch)

    runner.algo.update = watch  # type: ignore[method-assign]
    runner.train(tmp_path / "run")
    assert {gamma for progress, gamma in seen if progress < 0.65} == {0.875}
    assert {gamma for progress, gamma in seen if progress > 0.85} == {0.5}


# ---- using the result


def agent_class(name: str) -> Any:
    return getattr(rlexp, algorithm(name).__name__)


@pytest.mark.parametrize(("name", "loop"), run_cases())
def test_a_finished_run_evaluates_and_predicts(name: str, loop: str, finished: Run) -> None:
    agent = agent_class(name).load(finished(name, loop), trust=["tests"])
    greedy, again = agent.evaluate(episodes=3), agent.evaluate(episodes=3)
    assert len(greedy.returns) == 3
    assert set(greedy.returns) <= RETURNS
    assert greedy == again
    assert set(agent.evaluate(episodes=2, deterministic=False).returns) <= RETURNS
    check_prediction(agent, CountingEnv(action=agent.config["env"]["kwargs"]["action"]))


def check_prediction(agent: Any, env: CountingEnv) -> None:
    obs, _ = env.reset(seed=3)
    action = agent.predict(obs, reset=True)
    assert env.action_space.contains(action), action
    assert np.array_equal(agent.predict(obs, reset=True), action)
    for deterministic in (True, False):
        many = agent.predict([obs, obs, env.step(env.action_space.sample())[0]], deterministic=deterministic)
        assert len(many) == 3
        assert all(env.action_space.contains(each) for each in many)


@pytest.mark.parametrize("checkpoint", ["last", "best"])
@pytest.mark.parametrize(("name", "loop"), run_cases()[:1])
def test_both_checkpoints_of_a_run_can_be_opened(name: str, loop: str, checkpoint: str, finished: Run) -> None:
    agent = agent_class(name).load(finished(name, loop), checkpoint=checkpoint, trust=["tests"])
    assert len(agent.evaluate(episodes=2).returns) == 2


@pytest.mark.parametrize(
    ("name", "kind"), [(n, k) for n, k in KIND_CASES if k != next(x for m, x in KIND_CASES if m == n)]
)
def test_further_action_spaces_train_and_predict_too(name: str, kind: str, tmp_path: Path) -> None:
    short_run(name, kind, "vector", tmp_path)


@pytest.mark.parametrize("obs", list(OBS_SPACES))
@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_every_kind_of_observation_trains(name: str, obs: str, tmp_path: Path) -> None:
    short_run(name, "discrete", obs, tmp_path)


def short_run(name: str, kind: str, obs: str, tmp_path: Path) -> None:
    budget = "total_updates" if "total_updates" in small_config(name)["trainer"] else "total_steps"
    changes = (f"trainer.{budget}=40", "trainer.eval_interval=0", "trainer.checkpoint_interval=0")
    if "learning_starts" in small_config(name)["trainer"]:
        changes += ("trainer.learning_starts=10",)
    runner = Runner(small_config(name, None, kind, obs, changes))
    summary = runner.train(tmp_path / "run")
    assert summary["updates"] > 0
    assert all(np.isfinite(value) for row in rows(tmp_path / "run") for value in row.values())
    agent = agent_class(name).load(tmp_path / "run", trust=["tests"])
    check_prediction(agent, CountingEnv(obs=obs, action=kind))
    assert ACTION_SPACES[kind] == CountingEnv(action=kind).action_space
