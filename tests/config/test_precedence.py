"""Command line > zoo > algo > config.yaml, with one key set at each level."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlexp.config.compose import compose

pytestmark = pytest.mark.usefixtures("plain_hydra")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's config folder with an algorithm file and a preset that disagree on everything."""
    (tmp_path / "algo").mkdir()
    (tmp_path / "zoo").mkdir()
    (tmp_path / "algo" / "mine.yaml").write_text(
        """\
# @package _global_
# Mine
defaults:
  - /schema/algo/dqn
  - override /trainer: replay
  - override /buffer: replay
  - override /model: mlp
  - _self_
name: from-algo
seed: 1
algo: {gamma: 0.91, tau: 0.11}
trainer: {batch_size: 11, total_steps: 111}
env: {num_envs: 11}
"""
    )
    (tmp_path / "zoo" / "mine.yaml").write_text(
        """\
# @package _global_
# Mine
defaults:
  - override /algo: mine
  - override /env: acrobot
  - _self_
name: from-zoo
algo: {gamma: 0.92}
trainer: {batch_size: 22}
env: {num_envs: 22}
"""
    )
    monkeypatch.setenv("RLEXP_CONFIG_DIR", str(tmp_path))
    return tmp_path


def test_the_key_that_every_level_sets_has_the_value_of_the_highest(own: Path) -> None:
    assert compose()["name"].startswith("discrete_sac-")  # config.yaml's own
    assert compose(["algo=mine"])["name"] == "from-algo"
    assert compose(["zoo=mine"])["name"] == "from-zoo"
    assert compose(["zoo=mine", "name=from-command-line"])["name"] == "from-command-line"


def test_each_level_keeps_what_the_higher_ones_do_not_say(own: Path) -> None:
    config = compose(["zoo=mine", "trainer.batch_size=33"])
    assert config["trainer"]["batch_size"] == 33  # command line
    assert (config["algo"]["gamma"], config["env"]["num_envs"]) == (0.92, 22)  # zoo
    assert (config["algo"]["tau"], config["trainer"]["total_steps"], config["seed"]) == (0.11, 111, 1)  # algo
    assert config["env"]["id"] == "Acrobot-v1"  # the preset's choice
    assert config["model"]["encoder"] == "flat"  # the algorithm's choice
    assert (config["progress"], config["trainer"]["log_interval"]) == ("auto", 1_000)  # defaults


def test_the_order_of_the_overrides_does_not_matter(own: Path) -> None:
    config = compose(["trainer.batch_size=33", "env=cartpole", "zoo=mine"])
    assert config["trainer"]["batch_size"] == 33
    assert config["env"] | {"id": "CartPole-v1", "num_envs": 22} == config["env"]


def test_a_choice_on_the_command_line_beats_the_preset_and_the_algorithm(own: Path) -> None:
    config = compose(["zoo=mine", "env=cartpole", "model=auto"])
    assert config["env"]["id"] == "CartPole-v1"
    assert config["model"]["encoder"] == "auto"


def test_the_real_files_follow_the_same_order() -> None:
    key = lambda *overrides: compose(list(overrides))["trainer"]["batch_size"]  # noqa: E731
    assert key() == 256  # the trainer's own default
    assert key("algo=dqn") == 32  # conf/algo/dqn.yaml
    assert key("zoo=dqn_lunar_lander") == 128  # conf/zoo/dqn_lunar_lander.yaml
    assert key("zoo=dqn_lunar_lander", "trainer.batch_size=16") == 16


def test_a_folder_with_awkward_characters_can_hold_configs(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    awkward = own.with_name("it's [mine], really = yes")
    own.rename(awkward)
    monkeypatch.setenv("RLEXP_CONFIG_DIR", str(awkward))
    assert compose(["algo=mine"])["name"] == "from-algo"
