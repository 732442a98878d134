"""Normalised scores: D4RL's table, the user's own references, and both last and best in the summary."""

import json
from pathlib import Path

import pytest

from rlexp.config.compose import compose
from rlexp.envs import GymEnv
from rlexp.envs.scores import reference_for, reference_of
from rlexp.errors import ConfigError
from rlexp.runner import Runner
from tests.trainers.recording import counting_config, train


@pytest.mark.parametrize("version", [2, 4, 5])
def test_d4rls_references_hold_for_all_versions(version):
    for name, random, expert in (("HalfCheetah", -280.18, 12135.0), ("Hopper", -20.27, 3234.3)):
        reference = reference_of(f"{name}-v{version}")
        assert reference.score(random) == 0
        assert reference.score(expert) == 100
        assert reference.source == "D4RL"
    # IQL's hopper-medium: a return of about 2135 scores about 66
    assert reference_of(f"Hopper-v{version}").score(2135) == pytest.approx(66.2, abs=0.1)


def test_other_environments_have_none_unless_the_user_gives_one():
    assert reference_of("Pendulum-v1") is None
    assert reference_of("HopperHard-v1") is None
    own = reference_of("Pendulum-v1", [-1200, -200])
    assert own.score(-700) == 50
    with pytest.raises(ConfigError, match=r"\[random, expert\]"):
        Runner(compose(["algo=sac", "env=pendulum", "env.reference_returns=[1, 1]"]))


def test_an_environment_that_was_changed_is_not_d4rls():
    wrapper = {"_target_": "rlexp.envs.SelectObservation", "indices": [0, 1]}
    assert reference_for(GymEnv(id="Hopper-v5")).source == "D4RL"
    assert reference_for(GymEnv(id="Hopper-v5", kwargs={"healthy_reward": 0.0})) is None
    assert reference_for(GymEnv(id="Hopper-v5", wrappers=[wrapper])) is None
    assert reference_for(GymEnv(id="Hopper-v5", kwargs={"healthy_reward": 0.0}, reference_returns=[0, 9])).expert == 9
    assert reference_for(GymEnv(id="Hopper-v5", max_episode_steps=50)) is None
    own = GymEnv(id="Hopper-v5")
    own.factory = lambda: None
    assert reference_for(own) is None


def test_the_summary_has_the_last_and_the_best_score(tmp_path: Path, monkeypatch):
    returns = iter([8.0, 30.0, 20.0])
    config = counting_config("replay", env__reference_returns=[10.0, 30.0], trainer__total_steps=30)
    config["trainer"] |= {"eval_episodes": 1, "eval_interval": 10}

    def played(*_args, **_kwargs):
        from rlexp.evaluation import Evaluation

        return Evaluation([next(returns)], [1], [])

    monkeypatch.setattr("rlexp.evaluation._play", played)
    train(config, tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["normalized_score"] == 50  # the last
    assert summary["best_normalized_score"] == 100
    assert summary["score_reference"] == {"random": 10.0, "expert": 30.0, "source": "env.reference_returns"}
    assert summary["best_eval"]["normalized_score"] == 100
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["eval/normalized_score"] for row in rows if "eval/return_mean" in row] == [-10, 100, 50]
