"""Every algorithm that replays learns from hindsight: several environments, normalisers, workers, and exact resume."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from rlexp.algos.base import DISCRETE, REPLAY
from rlexp.buffers import HerBuffer
from rlexp.buffers.derived import LAMBDA_RETURN, MC_RETURN
from rlexp.config.compose import compose
from rlexp.config.trust import EVERYTHING
from rlexp.errors import ConfigError
from rlexp.resuming import resume_run
from rlexp.runner import Runner
from rlexp.trainers.workspace import Interrupted
from tests.algos.common import ALGOS, QUIET, algorithm
from tests.goal_line import LINE

WHOLE_EPISODES = {name for name in ALGOS if algorithm(name).derived & {MC_RETURN, LAMBDA_RETURN}}
REPLAYING = [name for name in ALGOS if REPLAY in algorithm(name).loops and name not in WHOLE_EPISODES]


def config(name: str, *more: str) -> dict[str, Any]:
    discrete = DISCRETE in algorithm(name).actions
    env = ["env=bit_flip", "env.kwargs.n=4"] if discrete else ["env=gym", f"env.id={LINE}"]
    loop = ["trainer=replay", "trainer.total_steps=120", "trainer.learning_starts=40", "trainer.batch_size=8"]
    intervals = ["trainer.log_interval=20", "trainer.eval_interval=60", "trainer.checkpoint_interval=40"]
    size = ["buffer=her", "buffer.capacity=70", "env.num_envs=2", "trainer.train_frequency=10"]
    return compose(
        [f"algo={name}", "dataset=null", *env, *loop, *intervals, *size, "trainer.eval_episodes=4", *QUIET, *more]
    )


def rows(path: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in row.items() if not key.startswith("time")} for row in lines]


@pytest.mark.parametrize("name", REPLAYING)
def test_an_algorithm_that_replays_learns_from_hindsight(name: str, tmp_path: Path) -> None:
    floats = DISCRETE not in algorithm(name).actions  # bits are not normalised
    runner = Runner(config(name, f"env.normalize_obs={floats}", "env.normalize_reward=true"))
    summary = runner.train(tmp_path / "run")
    assert isinstance(runner.buffer, HerBuffer)
    assert summary["updates"] > 0
    assert 0 <= summary["eval"]["success_rate"] <= 1
    logged = rows(tmp_path / "run")
    assert all(0 <= row["rollout/success_rate"] <= 1 for row in logged if "rollout/return_mean" in row)
    assert all("eval/success_rate" in row for row in logged if "eval/return_mean" in row)


@pytest.mark.parametrize(
    ("name", "strategy", "vectorization"), [("dqn", "future", "sync"), ("sac", "episode", "subprocess")]
)
def test_a_run_goes_on_exactly_where_it_was_stopped(
    name: str, strategy: str, vectorization: str, tmp_path: Path
) -> None:
    changes = [f"buffer.strategy={strategy}", f"env.vectorization={vectorization}", "buffer.n_step=2"]
    changes += ["env.workers=1"] if vectorization == "subprocess" else []
    Runner(config(name, *changes)).train(tmp_path / "whole")
    runner = Runner(config(name, *changes))
    advance = runner.trainer.iterate

    def stop_at_90() -> None:
        advance()
        if runner.trainer.env_steps == 90:
            runner.trainer.work.signal_number = signal.SIGTERM

    runner.trainer.iterate = stop_at_90  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        runner.train(tmp_path / "parts")
    resume_run(tmp_path / "parts", trust=EVERYTHING)
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    last = [path / "checkpoints" / "last" / "policy.safetensors" for path in (tmp_path / "parts", tmp_path / "whole")]
    assert last[0].read_bytes() == last[1].read_bytes()


def test_the_strategy_is_a_setting_with_three_values() -> None:
    built = Runner(config("dqn", "buffer.strategy=final", "buffer.n_sampled_goal=1")).buffer
    assert isinstance(built, HerBuffer)
    assert (built.strategy.value, built.n_sampled_goal) == ("final", 1)


@pytest.mark.parametrize(("name", "loop"), [("sac", "mixed"), ("crr", "offline")])
def test_data_are_given_other_goals_too(name: str, loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLEXP_CACHE", str(tmp_path))
    budget = "total_updates" if loop == "offline" else "total_steps"
    given = [f"algo={name}", f"trainer={loop}", f"trainer.{budget}=60", "env=gym", f"env.id={LINE}", "buffer=her"]
    given += ["dataset=random", "dataset.size=60", "trainer.eval_episodes=2", "trainer.batch_size=8", *QUIET]
    runner = Runner(compose([*given, *(["trainer.learning_starts=30"] if loop == "mixed" else [])]))
    runner.train(tmp_path / "run")
    data: Any = runner.trainer.prior if loop == "mixed" else runner.buffer  # type: ignore[attr-defined]
    batch = data.sample(40)
    own = data.gather(batch.index.numpy())
    other = (batch.obs["desired_goal"] != own.obs["desired_goal"]).flatten()
    assert other[:32].all()
    assert not other[32:].any()
    assert (batch.obs["observation"] == own.obs["observation"]).all()


@pytest.mark.parametrize("name", sorted(WHOLE_EPISODES))
def test_returns_of_whole_episodes_are_refused_because_they_are_those_of_the_own_goal(name: str) -> None:
    env = "bit_flip" if DISCRETE in algorithm(name).actions else f"gym env.id={LINE}"
    with pytest.raises(ConfigError, match="returns of whole episodes"):
        Runner(compose([f"algo={name}", *f"env={env}".split(), "dataset=random", "trainer=offline", "buffer=her"]))
