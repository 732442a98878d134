"""Judging policies by a dataset alone: values known in closed form, and no trace in the training."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlexp.buffers import ReplayBuffer
from rlexp.callbacks import Callback
from rlexp.config.compose import register
from rlexp.config.trust import EVERYTHING
from rlexp.datasets import Transitions
from rlexp.errors import ConfigError
from rlexp.evaluators import FQE, EvaluationMethod, InitialValue
from rlexp.evaluators.fqe import fqe_target, value_range
from rlexp.loggers.console import closing_lines
from rlexp.models import Network, Norm
from rlexp.policy import Policy
from rlexp.resuming import resume_run
from rlexp.runner import Runner
from rlexp.trainers.base import Trainer
from rlexp.types import Act
from tests.trainers.recording import (
    Recording,
    counting_config,
    rows_of,
    same_weights,
    small_config,
    train,
    without_time,
)

SMALL = {"updates": 400, "batch_size": 64, "learning_rate": 3e-3, "hidden": (32,), "tau": 0.05}


@dataclass(eq=False, kw_only=True)
class Constant(Recording):
    """Always does the same, and believes that Q(s, a) = 2 t + a."""

    choice: float = 0.0  # the action

    def act(self, obs: Any, carry: Any, *, explore: bool, generator: torch.Generator) -> Act:
        shape, kind = (len(obs), *self.spec.action.shape), getattr(torch, self.spec.action.dtype)
        return Act(torch.full(shape, self.choice).to(kind))

    def action_value(self, obs: Any, action: Tensor) -> Tensor:
        return 2 * obs[:, 1] + (action if action.dim() == 1 else action[:, 0])


class StopHalfway(Callback):
    """Ends a run of 40 updates after 20, however many an iteration has."""

    def on_step(self, trainer: Trainer) -> None:
        if trainer.updates == 20:
            trainer.stop("halfway")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLEXP_CACHE", str(tmp_path / "cache"))
    register()


def constant(choice: float, action: str, gamma: float = 0.5) -> Runner:
    config = counting_config("offline", env__kwargs={"action": action, "length": 3})
    config["algo"] |= {"_target_": f"{__name__}.Constant", "choice": choice, "gamma": gamma}
    runner = Runner(config)
    runner.policy()
    return runner


def judged(
    method: EvaluationMethod, runner: Runner, data: Transitions, buffer: ReplayBuffer | None = None, warn: Any = print
) -> Any:
    policy: Policy = runner.policy()
    buffer = ReplayBuffer() if buffer is None else buffer
    buffer.build(runner.spec, 1, 0.9, 0, capacity=len(data))  # of the run itself, which no evaluation takes over
    buffer.map_rewards(7.0, 3.0)
    buffer.extend(data)
    state = repr(buffer.state_dict(rows=False))
    method.begin(runner.env, runner.model, warn)
    method.take(buffer, data.starts())
    before = torch.get_rng_state()
    first = method(policy, 1, seed=5)
    assert method(policy, 1, seed=5) == first  # the same seed, the same numbers
    assert torch.equal(torch.get_rng_state(), before)
    assert repr(buffer.state_dict(rows=False)) == state
    return first


def chain(episodes: int, length: int, actions: np.ndarray, reward: Any, truncated: bool = False) -> Transitions:
    """Episodes whose observation is [0, t, 0]; ``reward`` is a function of t (from 1) and the action."""
    t = np.tile(np.arange(length), episodes)
    obs = np.zeros((len(t), 3), np.float32)
    obs[:, 1] = t
    last = t == length - 1
    next_obs = obs + np.array([0, 1, 0], np.float32)
    rewards = np.array([reward(k + 1, a) for k, a in zip(t, actions.reshape(len(t), -1)[:, 0])], np.float32)
    return Transitions(obs, actions, rewards, next_obs, last & (not truncated), last & truncated)


def test_fqe_finds_the_discounted_sum_of_the_rewards_of_an_episode() -> None:
    actions = np.random.default_rng(0).integers(0, 3, 60)
    data = chain(20, 3, actions, lambda t, a: 10.0 * t)
    result = judged(FQE(**SMALL), constant(1, "discrete"), data)
    assert result.score == pytest.approx(10 + 0.5 * 20 + 0.25 * 30, rel=0.05)
    assert result.summary()["states"] == 20
    assert result.row()["eval/fqe_value"] == result.score
    assert result.others["fqe_error"] < 2


def test_fqe_fits_networks_that_normalise_by_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    nets, make = [], FQE._network

    def keep(*args: Any) -> Any:
        nets.append(make(*args))
        return nets[-1]

    monkeypatch.setattr(FQE, "_network", keep)
    data = chain(20, 3, np.random.default_rng(0).integers(0, 3, 60), lambda t, a: 10.0 * t)
    runner = constant(1, "discrete")
    runner.model = Network(norm=Norm.batch_renorm)
    result = judged(FQE(**SMALL), runner, data)
    assert result.score == pytest.approx(10 + 0.5 * 20 + 0.25 * 30, rel=0.05)
    for norm in (norm for net in nets for norm in net.renorms):
        assert norm.passes.item() == 400  # one for each update, and none by asking for values
        assert not norm.on


def test_fqe_bootstraps_through_truncation() -> None:
    """One state for ever, cut every second step: r / (1 − γ) and not r (1 + γ)."""
    data = chain(30, 2, np.zeros(60, np.int64), lambda t, a: 3.0, truncated=True)
    flat = Transitions(data.obs * 0, data.action, data.reward, data.next_obs * 0, data.terminated, data.truncated)
    result = judged(FQE(**SMALL), constant(0, "discrete"), flat, ReplayBuffer(n_step=3))
    assert result.score == pytest.approx(6.0, rel=0.05)
    assert judged(FQE(**SMALL, gamma=0.0), constant(0, "discrete"), flat).score == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize(("gamma", "updates"), [(0.9, 5_000), (0.99, 5_000), (0.995, 10_000), (1.0, 5_000)])
def test_fqe_makes_as_many_updates_as_its_discount_needs(gamma: float, updates: int) -> None:
    told: list[str] = []
    method = FQE()
    method.begin(None, None, told.append)  # type: ignore[arg-type]
    method.data, method.starts = range(60), np.arange(20)  # type: ignore[assignment]
    assert method._planned(gamma) == updates
    assert not told


@pytest.mark.parametrize(
    ("settings", "gamma", "words"),
    [
        (
            {"tau": 0.01, "updates": 5_000},
            0.99,
            "come 39% of the way .* Set evaluator.updates=50000, or evaluator.tau=0.1",
        ),
        ({"updates": 100}, 0.99, r"come 10% of the way .* Set evaluator.updates=5000\.$"),
        ({}, 0.9999, "50,000 updates .* come 39% of the way .* Set evaluator.updates=500000"),
    ],
)
def test_fqe_warns_once_of_settings_that_cannot_arrive(settings: Any, gamma: float, words: str) -> None:
    told: list[str] = []
    method = FQE(**settings)
    method.begin(None, None, told.append)  # type: ignore[arg-type]
    for _ in range(2):
        method._planned(gamma)
    assert len(told) == 1
    assert re.search(words, told[0])


def test_fqe_measures_how_far_its_value_still_moves() -> None:
    """One state for ever, worth r / (1 − γ) = 30: a short fit is on its way there, a long one has arrived."""
    data = chain(30, 2, np.zeros(60, np.int64), lambda t, a: 3.0, truncated=True)
    flat = Transitions(data.obs * 0, data.action, data.reward, data.next_obs * 0, data.terminated, data.truncated)
    told: list[str] = []
    short = judged(FQE(**SMALL | {"updates": 100}), constant(0, "discrete", 0.9), flat, warn=told.append)
    assert short.others["fqe_drift"] > 0.05 * short.score
    assert short.score < 28.5
    assert [line.split()[1] for line in told] == ["100", "the"]  # the settings, and what was measured
    told.clear()
    arrived = judged(FQE(**SMALL | {"updates": 500, "tau": 0.2}), constant(0, "discrete", 0.9), flat, warn=told.append)
    assert arrived.score == pytest.approx(30, rel=0.05)
    assert abs(arrived.others["fqe_drift"]) < 1
    assert not told
    assert "drift" in closing_lines({"eval": arrived.summary()}, {})[2][1][0]


@pytest.mark.parametrize("choice", [0, 2])
def test_fqe_judges_what_the_policy_would_do_and_not_what_the_data_did(choice: int) -> None:
    actions = np.random.default_rng(1).integers(0, 3, 200)
    data = chain(100, 2, actions, lambda t, a: float(a))
    result = judged(FQE(**SMALL), constant(choice, "discrete"), data)
    assert result.score == pytest.approx(1.5 * choice, abs=0.15)


def test_fqe_judges_continuous_actions() -> None:
    actions = np.random.default_rng(2).uniform(-1, 1, (400, 2)).astype(np.float32)
    data = chain(200, 2, actions, lambda t, a: 4.0 * a)
    result = judged(FQE(**SMALL), constant(0.5, "continuous"), data)
    assert result.score == pytest.approx(2 + 0.5 * 2, rel=0.1)


def test_the_initial_value_is_what_the_critics_say_of_first_states() -> None:
    data = chain(4, 3, np.zeros(12, np.int64), lambda t, a: 0.0)
    shifted = Transitions(data.obs + 1, data.action, data.reward, data.next_obs + 1, data.terminated, data.truncated)
    result = judged(InitialValue(), constant(2, "discrete"), shifted)
    assert result.summary() == {"initial_value": 4.0, "initial_value_std": 0.0, "states": 4}
    assert judged(InitialValue(max_states=3), constant(2, "discrete"), shifted).others["states"] == 3


@pytest.mark.parametrize(
    ("rewards", "gamma", "bounds"),
    [((-16, 0), 0.99, (-1600, 0)), ((1, 1), 0.9, (1, 10)), ((-1, 2), 0.5, (-2, 4)), ((0, 1), 1.0, (-np.inf, np.inf))],
)
def test_values_lie_where_rewards_can_add_up_to(rewards: Any, gamma: float, bounds: Any) -> None:
    assert value_range(*rewards, gamma) == pytest.approx(bounds)


def test_the_target_is_worked_out_by_hand() -> None:
    target = fqe_target(torch.tensor([1.0, 2.0]), torch.tensor([0.9, 0.0]), torch.tensor([10.0, 10.0]))
    assert target.tolist() == [10.0, 2.0]


def test_first_states_follow_the_ends_of_episodes() -> None:
    data = chain(3, 4, np.zeros(12, np.int64), lambda t, a: 0.0)
    assert data.starts().tolist() == [0, 4, 8]
    data.obs[6] += 5  # a break: nobody knows what came before row 6
    assert data.starts().tolist() == [0, 4, 8]


# ---- in runs


EVALUATORS = {
    "fqe": {"_target_": "rlexp.evaluators.fqe.FQE", "updates": 5, "batch_size": 8, "hidden": [8]},
    "initial_value": {"_target_": "rlexp.evaluators.initial_value.InitialValue"},
}


def run_config(algo: str, evaluator: str | None, **settings: Any) -> dict[str, Any]:
    config = small_config(algo, "offline", dataset__size=100, trainer__total_updates=40, **settings)
    config["trainer"] |= {"eval_interval": 10, "checkpoint_interval": 10, "eval_episodes": 1 if evaluator else 0}
    config["evaluator"] = EVALUATORS[evaluator] if evaluator else config["evaluator"]
    return config


@pytest.mark.parametrize(("algo", "key"), [("iql", "fqe"), ("td3_bc", "fqe"), ("cql", "initial_value")])
def test_estimates_change_no_training_number_choose_the_best_and_resume_exactly(
    algo: str, key: str, tmp_path: Path
) -> None:
    name = "fqe_value" if key == "fqe" else key
    alone = train(run_config(algo, None), tmp_path / "alone")
    watched = train(run_config(algo, key), tmp_path / "watched")
    assert same_weights(alone.algo, watched.algo)
    values = [row[f"eval/{name}"] for row in rows_of(tmp_path / "watched") if f"eval/{name}" in row]
    assert len(values) == 4
    summary = json.loads((tmp_path / "watched" / "summary.json").read_text())
    assert (summary["eval"][name], summary["best_eval"][name]) == (values[-1], max(values))
    best = 10 * (values.index(max(values)) + 1)
    assert (tmp_path / "watched" / "checkpoints" / "best").resolve().name == f"step_{best:012d}"
    assert "eval/return_mean" not in rows_of(tmp_path / "watched")[-1]
    half = run_config(algo, key)
    half["trainer"] |= {"callbacks": [{"_target_": f"{__name__}.StopHalfway"}]}
    train(half, tmp_path / "half")
    resume_run(tmp_path / "half", ["trainer.patience=9"], trust=EVERYTHING)
    assert without_time(rows_of(tmp_path / "half")) == without_time(rows_of(tmp_path / "watched"))


def test_an_estimate_can_end_a_run(tmp_path: Path) -> None:
    config = run_config("iql", "initial_value", trainer__stop_return=-1e9)
    summary = Runner(config).train(tmp_path / "run")
    assert (summary["updates"], summary["stop_reason"]) == (10, "stop_return")


def test_what_an_evaluator_needs_is_asked_for_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="which BC does not learn"):
        Runner(run_config("bc", "initial_value"))
    config = small_config("sac", "replay")
    config["evaluator"] = EVALUATORS["fqe"]
    with pytest.raises(ConfigError, match="judges by a dataset, but dataset is null"):
        Runner(config)


def test_every_algorithm_that_has_critics_can_be_asked_about_actions(tmp_path: Path) -> None:
    for algo in ("iql", "discrete_cql", "discrete_bcq", "bcq", "rebrac", "sac_n", "edac", "crr"):
        runner = Runner(small_config(algo, "offline"))
        policy = runner.policy()
        leaf = runner.spec.obs.leaves[""]
        obs = torch.randn(5, *leaf.shape)
        action = policy.act(obs, None, explore=False).action
        assert policy.algo.action_value(obs, action).shape == (5,)
    runner = Runner(small_config("discrete_cql", "offline"))
    policy = runner.policy()
    q = policy.algo.head(policy.algo.q, obs := torch.randn(6, 4), {})
    assert torch.equal(policy.algo.action_value(obs, torch.ones(6, dtype=torch.long)), q[:, 1])
