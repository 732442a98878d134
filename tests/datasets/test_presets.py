"""Reward and observation presets: what is learned from, against numbers worked out by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_data import VECTOR, FixedEnv

from rlexp.config.compose import compose
from rlexp.config.trust import EVERYTHING
from rlexp.datasets import NpzDataset, RandomDataset
from rlexp.datasets.files import save_npz
from rlexp.datasets.transitions import Transitions
from rlexp.errors import ConfigError, DataError
from rlexp.loading import load
from rlexp.runner import Runner
from tests.trainers.recording import counting_config, train, watch

REWARDS = [1.0, 2.0, 3.0, 4.0, 5.0]  # two whole episodes return 3 and 12


def data(rewards=REWARDS) -> Transitions:
    obs = np.arange(15, dtype=np.float32).reshape(5, 3)
    ends = np.array([False, True, False, False, True])
    next_obs = np.concatenate([obs[1:], obs[-1:] + 3])
    next_obs[1] += 50
    return Transitions(obs, np.zeros((5, 2), np.float32), np.array(rewards, np.float32), next_obs, ends, ~ends & False)


def mapped(tmp_path: Path, rewards=REWARDS, **settings: Any) -> tuple[float, float]:
    save_npz(tmp_path / "data.npz", data(rewards))
    loaded = NpzDataset(path=str(tmp_path / "data.npz"), **settings).load(FixedEnv(VECTOR))
    np.testing.assert_array_equal(loaded.reward, rewards)  # what was recorded stays
    return loaded.reward_scale, loaded.reward_shift


@pytest.mark.parametrize(
    ("settings", "scale", "shift"),
    [
        ({}, 1, 0),
        ({"reward": "scale", "reward_scale": 0.1}, 0.1, 0),
        ({"reward": "shift", "reward_shift": -1}, 1, -1),
        ({"reward": "scale_shift", "reward_scale": 10, "reward_shift": -5}, 10, -5),
        ({"reward": "return_range"}, 1000 / 9, 0),
        ({"reward": "return_range", "reward_scale": 500}, 500 / 9, 0),
        ({"reward": "standardize"}, 1 / np.sqrt(2), -3 / np.sqrt(2)),
    ],
)
def test_rewards_are_mapped_as_the_preset_says(tmp_path, settings, scale, shift):
    assert mapped(tmp_path, **settings) == pytest.approx((scale, shift))


def test_rewards_without_a_range_are_refused(tmp_path):
    with pytest.raises(DataError, match="every episode returns 0"):
        mapped(tmp_path, [0] * 5, reward="return_range")
    with pytest.raises(DataError, match="every reward is 7"):
        mapped(tmp_path, [7] * 5, reward="standardize")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward": "scale"}, "needs a factor"),
        ({"reward": "shift"}, "needs what to add"),
        ({"reward": "none", "reward_scale": 2.0}, "uses no dataset.reward_scale"),
        ({"reward": "scale", "reward_scale": 2.0, "reward_shift": 1.0}, "uses no dataset.reward_shift"),
        ({"reward": "scale", "reward_scale": 0.0}, "greater than 0"),
        ({"reward": "scaled"}, "no 'scaled', only none, scale"),
    ],
)
def test_numbers_that_a_preset_lacks_or_would_ignore_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        RandomDataset(**settings)


def test_the_command_line_knows_the_presets():
    config = compose(["algo=crr", "env=pendulum", "dataset=random", "dataset.reward=return_range"])
    assert config["dataset"]["reward"] == "return_range"
    with pytest.raises(ConfigError, match=r"dataset\.reward"):
        compose(["algo=crr", "env=pendulum", "dataset=random", "dataset.reward=range"])
    with pytest.raises(ConfigError, match=r"dataset\.repair"):
        compose(["algo=crr", "env=pendulum", "dataset=random", "dataset.repair=[drop_nan]"])


@pytest.mark.parametrize("n_step", [1, 3])
def test_both_halves_of_a_mixed_run_learn_from_mapped_rewards(n_step, tmp_path, monkeypatch):
    settings = {"dataset__reward": "scale_shift", "dataset__reward_scale": 10.0, "dataset__reward_shift": -5.0}
    config = counting_config(
        "mixed",
        **settings,
        env__kwargs={"length": 50, "end": "truncated"},
        trainer__total_steps=60,
        trainer__learning_starts=20,
        buffer__n_step=n_step,
    )
    seen = watch(monkeypatch)
    runner = train(config, tmp_path / "run")
    checked = 0
    for batch in seen.batches:
        for t, reward, discount in zip(batch.obs[:, 1].tolist(), batch.reward.tolist(), batch.discount.tolist()):
            if discount == pytest.approx(0.5**n_step):  # a whole window; step t has reward t
                truth = sum(0.5**k * (10 * (t + 1 + k) - 5) for k in range(n_step))
                assert reward == pytest.approx(truth, rel=1e-5)
                checked += 1
    assert checked > 100
    state = load(tmp_path / "run", trust=EVERYTHING).checkpoint.tree["loop"]["reward_map"]
    assert state == {"scale": 10.0, "shift": -5.0}
    assert runner.buffer.transitions().reward.min() == 1.0  # the memory keeps what happened


def test_evaluation_reports_raw_rewards(tmp_path):
    settings = {"dataset__reward": "shift", "dataset__reward_shift": -100.0}
    kwargs = {"length": 4, "end": "terminated"}
    config = counting_config("offline", **settings, env__kwargs=kwargs, trainer__total_updates=2)
    train(config | {"trainer": config["trainer"] | {"eval_episodes": 2}}, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["eval"]["return_mean"] == 10


@pytest.mark.parametrize("loop", ["offline", "mixed"])
def test_standardized_observations_have_the_statistics_of_the_data_alone(loop, tmp_path, monkeypatch):
    budget = {"trainer__total_updates": 5} if loop == "offline" else {"trainer__total_steps": 60}
    config = counting_config(loop, dataset__obs="standardize", env__kwargs={"length": 7}, **budget)
    if loop == "mixed":
        config["trainer"]["learning_starts"] = 20
    seen = watch(monkeypatch)
    runner = train(config, tmp_path / "run")
    memory = runner.trainer.buffer if loop == "offline" else runner.trainer.prior
    obs = memory.transitions().obs.astype(np.float64)
    rows = slice(None) if loop == "offline" else slice(0, config["trainer"]["batch_size"] // 2)
    for batch in seen.batches:
        raw = obs[batch.index.numpy()[rows]]
        truth = (raw - obs.mean(0)) / (obs.std(0) + 1e-3)
        np.testing.assert_allclose(batch.obs.numpy()[rows], truth, rtol=1e-4, atol=1e-5)
    loaded = load(tmp_path / "run", trust=EVERYTHING)  # the checkpoint is whole: acting needs no dataset
    policy = loaded.runner.policy(loaded.checkpoint.tree["policy"])
    given = torch.tensor([[3.0, 2.0, 1.0]])
    truth = (given.numpy() - obs.mean(0)) / (obs.std(0) + 1e-3)
    np.testing.assert_allclose(policy.normalized(given).numpy(), truth, rtol=1e-4, atol=1e-5)


def test_two_ways_to_normalise_are_refused():
    with pytest.raises(ConfigError, match="choose one"):
        Runner(counting_config("mixed", dataset__obs="standardize", env__normalize_obs=True))
    scaled = {"dataset__reward": "scale", "dataset__reward_scale": 2.0}
    with pytest.raises(ConfigError, match="choose one"):
        Runner(counting_config("mixed", **scaled, env__normalize_reward=True))
