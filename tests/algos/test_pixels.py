"""Images are a matter of the encoder: algorithms learn from them as from anything else."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from rlexp.algos.base import OnPolicyAlgorithm
from rlexp.config.trust import EVERYTHING
from rlexp.decisions import decide
from rlexp.errors import ConfigError
from rlexp.loggers import Console
from rlexp.resuming import resume_run
from rlexp.runner import Runner
from tests.algos.common import random_batch, random_rollout, small_algo, small_runner
from tests.algos.test_compiling import needs_compiler, tracing  # noqa: F401  (a fixture)
from tests.algos.test_runs import assert_same_run, run_config, stop

ON_PIXELS = ["ppo", "a2c", "trpo", "recurrent_ppo", "dqn", "c51", "qrdqn", "iqn", "rainbow", "discrete_sac"]
ON_PIXELS += ["sac", "ddpg", "td3", "tqc", "crossq", "redq", "drq_v2"]


def convolutions(algo) -> list[nn.Conv2d]:
    modules = [part for name, part in algo.parts().items() if isinstance(part, nn.Module) and "target" not in name]
    return [layer for module in modules for layer in module.modules() if isinstance(layer, nn.Conv2d)]


def learn(algo, updates: int = 2) -> None:
    for seed in range(updates):
        on_policy = isinstance(algo, OnPolicyAlgorithm)
        algo.update(random_rollout(algo, seed=seed) if on_policy else random_batch(algo, 4, seed))


@pytest.mark.parametrize("name", ON_PIXELS)
def test_every_convolution_learns(name: str) -> None:
    algo = small_algo(name, obs="image")
    layers = convolutions(algo)
    assert layers
    before = [layer.weight.clone() for layer in layers]
    learn(algo)
    assert all(not torch.equal(old, layer.weight) for old, layer in zip(before, layers))
    assert all(torch.isfinite(layer.weight).all() for layer in layers)


@needs_compiler
def test_only_updates_without_convolutions_are_compiled_unasked() -> None:
    setting, console, updates = {"compile": "auto", "threads": 1}, Console(), 10**9
    assert decide(setting, small_algo("dqn"), updates, console)["compile"]
    assert not decide(setting, small_algo("dqn", obs="image"), updates, console)["compile"]
    assert decide(setting | {"compile": True}, small_algo("dqn", obs="image"), updates, console)["compile"]


@pytest.mark.parametrize("name", ON_PIXELS)
def test_images_beside_vectors(name: str) -> None:
    learn(small_algo(name, obs="dict"), 1)


@pytest.mark.parametrize("encoder", ["nips_cnn", "impala", "drq_v2"])
def test_other_encoders_by_name(encoder: str) -> None:
    algo = small_algo("dqn", f"model.encoder={encoder}", obs="image")
    learn(algo, 1)
    assert len(convolutions(algo)) == {"nips_cnn": 2, "impala": 15, "drq_v2": 4}[encoder]


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_a_shared_encoder_is_one_and_is_trained_by_both(name: str) -> None:
    algo = small_algo(name, "model.shared_encoder=true", "algo.normalize_advantage=false", obs="image")
    assert len(convolutions(algo)) == 3
    assert not any("encoder" in key for key in algo.state_dict()["critic"])
    rollout = random_rollout(algo)
    obs = rollout.obs.flatten(0, 1)
    policy, value = algo.policy_and_value(obs)
    torch.testing.assert_close(value, algo.value(obs))
    action = rollout.action.flatten(0, 1)
    torch.testing.assert_close(rollout.value.flatten(), value)  # as they came with the acts
    torch.testing.assert_close(rollout.extras["log_prob"].flatten(), policy.log_prob(action))
    torch.testing.assert_close(policy.log_prob(action), algo.policy(obs).log_prob(action))
    weight = convolutions(algo)[0].weight
    gradient = {}
    for what, loss in (("policy", policy.log_prob(action).sum()), ("value", value.sum())):
        (gradient[what],) = torch.autograd.grad(loss, weight, retain_graph=True)
    assert all(each.abs().sum() > 0 for each in gradient.values())
    other = copy.deepcopy(algo)
    learn(algo)
    learn(other)  # a copy shares within itself
    torch.testing.assert_close(algo.value(obs), other.value(obs))
    assert not torch.equal(weight, convolutions(small_algo(name, "model.shared_encoder=true", obs="image"))[0].weight)


@pytest.mark.parametrize(
    ("name", "obs"), [("trpo", "image"), ("sac", "image"), ("recurrent_ppo", "image"), ("ppo", "vector")]
)
def test_sharing_is_refused_where_there_is_nothing_to_share(name: str, obs: str) -> None:
    with pytest.raises(ConfigError, match=r"model.shared_encoder has no effect"):
        small_algo(name, "model.shared_encoder=true", obs=obs)


def test_a_small_image_is_refused_before_anything_is_made() -> None:
    runner = small_runner("dqn", "env.resize=20", obs="image")
    assert runner.spec.obs.leaves[""].shape == (20, 20, 3)
    with pytest.raises(ConfigError, match="20×20"):
        runner.policy()


def test_statistics_of_images_that_would_not_be_used_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"env.normalize_obs has no effect"):
        small_runner("dqn", "env.normalize_obs=true", obs="image")
    small_runner("dqn", "env.normalize_obs=true", obs="dict")  # of its vector


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param("ppo", "model.shared_encoder=true", marks=pytest.mark.learning),  # ten seconds of tracing
        ("drq_v2", "algo.feature_size=6"),
    ],
)
def test_compiled_updates_on_images_give_the_eager_numbers(name: str, change: str) -> None:
    eager, compiled = (small_algo(name, change, obs="image", compiled=each) for each in (False, True))
    learn(eager, 1)
    learn(compiled, 1)
    for left, right in zip(convolutions(eager), convolutions(compiled), strict=True):
        torch.testing.assert_close(left.weight, right.weight, rtol=1e-4, atol=1e-6)


def test_a_run_on_stacked_frames_resumes_to_the_numbers_of_an_uninterrupted_one(tmp_path: Path) -> None:
    config = run_config("dqn", "replay", "env.frame_stack=3", "buffer.n_step=2")  # the ring wraps after 35 of 60 rows
    Runner(config).train(tmp_path / "whole")
    runner = Runner(config)
    stop(runner.trainer, 90, "crash")
    with pytest.raises(RuntimeError, match="power"):
        runner.train(tmp_path / "run")
    resume_run(tmp_path / "run", trust=EVERYTHING)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
