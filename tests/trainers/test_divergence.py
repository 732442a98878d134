"""A run whose losses or actions are no numbers any more is ended and told, instead of completed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlexp.errors import DivergedError
from rlexp.runner import Runner
from tests.trainers.recording import small_config


@pytest.mark.parametrize(
    ("algo", "setting", "told"),
    [
        (
            "dqn",
            "learning_rate",
            r"DQN has diverged: loss/q is (nan|inf) .*than algo.learning_rate=1e\+25\.",
        ),
        (
            "td3_bc",
            "critic_learning_rate",
            r"TD3BC has diverged: loss/critic is .*algo.max_grad_norm=1\.",
        ),
        ("ppo", "learning_rate", r"PPO has diverged: loss/\w+ is "),
    ],
)
def test_a_lost_loss_ends_the_run_and_is_named(algo: str, setting: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=told):
        Runner(small_config(algo, **{f"algo__{setting}": 1e25})).train(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "failed"


def test_a_lost_action_is_not_blamed_on_the_environment(tmp_path: Path) -> None:
    never = 10_000
    config = small_config("td3", algo__actor_learning_rate=1e38, algo__critic_learning_rate=1e38)
    config["trainer"] |= {"log_interval": never, "eval_episodes": 0, "checkpoint_interval": never}
    with pytest.raises(DivergedError, match=r"TD3 has diverged: the policy's action is NaN after \d+ updates"):
        Runner(config).train(tmp_path / "run")


def test_weights_that_are_lost_are_not_saved(tmp_path: Path) -> None:
    never = 10_000
    config = small_config("dqn", algo__learning_rate=1e25)
    steps = config["trainer"]["total_steps"]
    config["trainer"] |= {"log_interval": never, "eval_episodes": 0, "checkpoint_interval": steps - 1}
    with pytest.raises(DivergedError, match="DQN has diverged: loss/q is"):
        Runner(config).train(tmp_path / "run")
    assert not list((tmp_path / "run" / "checkpoints").glob("step_*"))
