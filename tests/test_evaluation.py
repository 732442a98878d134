"""Evaluation plays whole episodes, fairly and repeatably, and leaves no trace in the training."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlexp import evaluation
from rlexp.callbacks import Callback
from rlexp.evaluation import MAX_PARALLEL, Evaluation, Evaluator
from rlexp.policy import Policy
from rlexp.runner import Runner
from rlexp.seeding import derive_seed
from rlexp.trainers.base import Trainer
from rlexp.types import Act
from tests.algos.common import some_of
from tests.counting import episode_length, episode_seed
from tests.trainers.recording import Recording, algorithms, counting_config, small_config, train

EPISODES = {"length": 2, "stagger": 17, "end": "mixed"}  # 2 to 19 steps


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLEXP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def counting() -> Iterator[tuple[Evaluator, Policy]]:
    runner = Runner(counting_config("replay", env__kwargs=EPISODES))
    evaluator = Evaluator(runner.env)
    yield evaluator, runner.policy()
    evaluator.close()


def expected(episodes: int, seed: int) -> Evaluation:
    """Every environment plays its share; episode k of environment i is known by its seed."""
    count = min(episodes, MAX_PARALLEL)
    shares = [episodes // count + (i < episodes % count) for i in range(count)]
    seeds = [episode_seed(derive_seed(seed, "eval"), i, k) for i, share in enumerate(shares) for k in range(share)]
    lengths = [episode_length(each, EPISODES["length"], EPISODES["stagger"]) for each in seeds]
    return Evaluation(
        returns=[length * (length + 1) / 2 for length in lengths],
        lengths=lengths,
        successes=[float(each % 2 == 0) for each in seeds],  # those that terminate
    )


@pytest.mark.parametrize("episodes", [1, 3, 10, 14, 37])
def test_returns_lengths_and_successes_are_those_of_the_episodes(
    episodes: int, counting: tuple[Evaluator, Policy]
) -> None:
    evaluator, policy = counting
    result = evaluator(policy, episodes, seed=5)
    assert result == expected(episodes, 5)
    summary, returns = result.summary(), np.array(result.returns)
    assert summary == {
        "return_mean": pytest.approx(returns.mean()),
        "return_std": pytest.approx(np.sqrt(((returns - returns.mean()) ** 2).mean())),
        "length_mean": pytest.approx(np.mean(result.lengths)),
        "episodes": episodes,
        "success_rate": pytest.approx(np.mean(result.successes)),
    }
    assert result.row() == {f"eval/{key}": value for key, value in summary.items()}


def test_short_episodes_are_not_favoured(counting: tuple[Evaluator, Policy]) -> None:
    evaluator, policy = counting
    played, first_ended = [], []
    for seed in range(10):
        played += evaluator(policy, 12, seed=seed).lengths
        ends = []  # (step of its end, length) of the episodes that would be played without shares
        for env in range(MAX_PARALLEL):
            now = 0
            for k in range(10):
                length = episode_length(episode_seed(derive_seed(seed, "eval"), env, k), 2, 17)
                now += length
                ends.append((now, length))
        first_ended += [length for _, length in sorted(ends)[:12]]
    true_mean = 2 + 17 / 2
    assert abs(np.mean(played) - true_mean) < 1
    assert np.mean(first_ended) < true_mean - 2  # what counting whichever ends first would give


@pytest.mark.parametrize("settings", [{"env__num_envs": 4}, {"env__vectorization": "subprocess", "env__workers": 2}])
def test_the_episodes_do_not_depend_on_how_training_is_vectorised(settings: dict[str, Any]) -> None:
    runner = Runner(counting_config("replay", env__kwargs=EPISODES, **settings))
    evaluator = Evaluator(runner.env)
    try:
        assert evaluator(runner.policy(), 12, seed=5) == expected(12, 5)
    finally:
        evaluator.close()


def test_the_same_seed_gives_the_same_episodes_and_another_seed_others(counting: tuple[Evaluator, Policy]) -> None:
    evaluator, policy = counting
    first = evaluator(policy, 12, seed=5)
    other = evaluator(policy, 12, seed=6)
    fewer = evaluator(policy, 4, seed=5)  # needs other environments
    assert evaluator(policy, 12, seed=5) == first
    assert other == expected(12, 6) != first
    assert fewer.returns == [expected(12, 5).returns[i] for i in (0, 2, 4, 5)]  # the first of each environment's share


def test_without_a_word_on_success_there_is_no_rate() -> None:
    assert "success_rate" not in Evaluation([1.0, 2.0], [1, 1], []).summary()


# ---- actions


@pytest.mark.parametrize("name", some_of(algorithms()))
def test_sampled_actions_repeat_with_the_seed_and_differ_from_greedy_ones(name: str) -> None:
    config = small_config(name, env__max_episode_steps=20)
    if "epsilon" in config["algo"]:
        config["algo"]["schedules"]["epsilon"] = None
        config["algo"]["epsilon"] = 0.5
    runner = Runner(config)
    policy, evaluator = runner.policy(), Evaluator(runner.env)
    actions: list[np.ndarray] = []
    env_action = policy.env_action
    policy.env_action = lambda action: actions.append(env_action(action)) or actions[-1]  # type: ignore[method-assign, return-value, func-returns-value]

    def play(seed: int, deterministic: bool) -> tuple[Evaluation, np.ndarray]:
        actions.clear()
        result = evaluator(policy, 3, seed=seed, deterministic=deterministic)
        return result, np.concatenate(actions)

    try:
        greedy, sampled = play(0, True), play(0, False)
        again, other = play(0, False), play(1, False)
        assert play(0, True)[0] == greedy[0]
    finally:
        evaluator.close()
    assert again[0] == sampled[0]
    np.testing.assert_array_equal(again[1], sampled[1])
    assert not np.array_equal(sampled[1], greedy[1])
    assert not np.array_equal(sampled[1], other[1])


@pytest.mark.parametrize("deterministic", [True, False])
def test_training_evaluates_with_greedy_or_sampled_actions_as_told(
    deterministic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explored = []
    played = evaluation._play

    def play(envs: Any, policy: Any, episodes: int, seed: int, explore: bool, *others: Any) -> Evaluation:
        explored.append(explore)
        return played(envs, policy, episodes, seed, explore, *others)

    monkeypatch.setattr(evaluation, "_play", play)
    train(small_config("sac", env__max_episode_steps=10, evaluator__deterministic=deterministic), tmp_path / "run")
    assert set(explored) == {not deterministic}


def test_the_policy_sees_normalised_observations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def act(self: Recording, obs: torch.Tensor, carry: Any, **_: Any) -> Act:
        seen.append(obs.clone())
        return Act(torch.zeros(len(obs), dtype=torch.int64))

    monkeypatch.setattr(Recording, "act", act)
    runner = Runner(counting_config("replay", env__kwargs={"length": 3}, env__normalize_obs=True))
    policy, evaluator = runner.policy(), Evaluator(runner.env)
    assert policy.obs_normalizer is not None
    policy.obs_normalizer.update(torch.tensor([[0.0, 0.0, 0.0], [1000.0, 4.0, -8.0]]))  # mean 500, 2, -4
    evaluator(policy, 1, seed=0)
    evaluator.close()
    offset = episode_seed(derive_seed(0, "eval"), 0, 0) % 1000
    raw = torch.tensor([[[offset, t, -2.0 * t]] for t in range(3)])  # action 0 is -2 to the environment
    expected = (raw - torch.tensor([500.0, 2.0, -4.0])) / torch.tensor([500.0, 2.0, 4.0])
    torch.testing.assert_close(torch.stack(seen), expected)


# ---- no trace


def flat(tree: Any, where: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {name: leaf for key, child in tree.items() for name, leaf in flat(child, f"{where}.{key}").items()}
    if isinstance(tree, (list, tuple)):
        return {name: leaf for i, child in enumerate(tree) for name, leaf in flat(child, f"{where}[{i}]").items()}
    if isinstance(tree, (torch.Tensor, np.ndarray)):
        return {where: np.asarray(tree).tobytes()}
    return {where: repr(tree)}


class Intruder(Callback):
    """Evaluates in the middle of training, and compares everything before and after."""

    def __init__(self) -> None:
        self.compared = 0

    def state(self, trainer: Trainer) -> dict[str, Any]:
        state = flat(trainer.state_dict())
        del state[".progress.seconds"]
        state["torch"] = torch.get_rng_state().numpy().tobytes()
        state["numpy"] = repr(np.random.get_state())
        state["python"] = repr(random.getstate())
        if trainer.collector is not None:
            state["acted on"] = flat(trainer.collector.obs)
        return state

    def on_step(self, trainer: Trainer) -> None:
        if trainer.progress < 0.5 or self.compared:
            return
        before = self.state(trainer)
        assert any("obs_normalizer" in key for key in before)
        for deterministic in (True, False):
            trainer.work.evaluator.deterministic = deterministic  # type: ignore[attr-defined]
            trainer.work.evaluator(trainer.policy, 3, seed=1)
        after = self.state(trainer)
        assert {key for key in before if before[key] != after.get(key)} == set()
        self.compared += 1


@pytest.mark.parametrize("name", some_of(algorithms()))
def test_evaluation_leaves_environments_generators_and_normalisers_untouched(name: str, tmp_path: Path) -> None:
    config = small_config(name, env__normalize_obs=True, trainer__eval_episodes=0)
    config["trainer"]["callbacks"] = [{"_target_": "tests.test_evaluation.Intruder"}]
    runner = Runner(config)
    runner.train(tmp_path / "run")
    assert runner.callbacks[0].compared == 1  # type: ignore[attr-defined]


def test_an_episode_that_may_never_end_is_told_of_once_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlexp.evaluation.LONG_EPISODE", 15)
    for kwargs, limit, times in (
        ({"length": 18}, None, 1),  # without a limit, and long
        ({"length": 12, "end": "truncated"}, None, 0),  # it truncates by itself
        ({"length": 18}, 17, 0),  # the limit ends it
    ):
        said: list[str] = []
        config = counting_config("replay", env__kwargs=kwargs, env__max_episode_steps=limit)
        runner = Runner(config)
        evaluator = Evaluator(runner.env, warn=said.append)
        for _ in range(2):
            evaluator(runner.policy(), 3, seed=0)
        evaluator.close()
        assert len(said) == times
        assert all("has gone on for 15 steps" in each and "env.max_episode_steps" in each for each in said)
