"""Episodes of a trained agent as a dataset: the agent's own actions, whole episodes, the same ones every time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rlexp.config.check import build
from rlexp.config.compose import compose
from rlexp.config.trust import EVERYTHING
from rlexp.datasets import ExpertDataset, ReplayDataset
from rlexp.errors import ConfigError, UntrustedError
from rlexp.loading import load
from rlexp.run_dir import RunDir
from rlexp.runner import Runner

TINY = ["threads=1", "compile=false", "progress=none", "device=cpu", "model.hidden=[8]", "trainer.eval_episodes=1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An agent that knows little, with a best checkpoint."""
    path = tmp_path_factory.mktemp("expert") / "run"
    Runner(compose(["algo=sac", "env=pendulum", *TINY, "trainer.total_steps=60", "trainer.learning_starts=50"])).train(
        path
    )
    return path


def test_an_expert_plays_whole_episodes_with_its_own_greedy_actions(trained: Path) -> None:
    env = build("env", compose(["env=pendulum"])["env"])
    data = ExpertDataset(run=str(trained), episodes=2).load(env)
    assert len(data) == 400
    assert np.flatnonzero(data.truncated).tolist() == [199, 399]
    assert not data.terminated.any()
    assert not data.breaks().any()
    loaded = load(trained, which="best", trust=EVERYTHING)
    policy = loaded.runner.policy()
    policy.load_state_dict(loaded.checkpoint.tree["policy"], acting=True)
    with torch.no_grad():
        act = policy.act(policy.tensor(data.obs), None, explore=False)
    np.testing.assert_allclose(policy.env_action(act.action), data.action, atol=1e-5)
    assert ExpertDataset(run=str(trained), episodes=2).load(env).sha256 == data.sha256


def test_sampled_actions_and_other_seeds_give_other_episodes(trained: Path) -> None:
    env = build("env", compose(["env=pendulum"])["env"])
    datasets = [
        ExpertDataset(run=str(trained), episodes=1, deterministic=deterministic, seed=seed).load(env)
        for deterministic, seed in ((True, 0), (False, 0), (True, 1))
    ]
    assert len({data.sha256 for data in datasets}) == 3
    np.testing.assert_array_equal(datasets[0].obs[0], datasets[1].obs[0])  # the same start
    assert not np.array_equal(datasets[0].action, datasets[1].action)


def test_actions_that_the_environment_clips_are_kept_as_they_were_taken(tmp_path: Path) -> None:
    """A Gaussian policy knows no bounds."""
    small = ["trainer.total_steps=64", "trainer.rollout_steps=64", "algo.minibatch_size=64", "algo.epochs=1"]
    Runner(compose(["algo=ppo", "env=pendulum", *TINY, *small])).train(tmp_path / "ppo")
    env = build("env", compose(["env=pendulum"])["env"])
    data = ExpertDataset(run=str(tmp_path / "ppo"), episodes=1, deterministic=False).load(env)
    assert len(data) == 200
    assert np.abs(data.action).max() == 2  # Pendulum's bound
    assert (np.abs(data.action) < 2).any()


def test_a_training_begun_in_the_cache_may_run_no_code_but_rlexps_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import rlexp.datasets.trained as trained_module

    folder, marker = tmp_path / "preset", tmp_path / "executed"
    (tmp_path / "evil_preset.py").write_text(f"import os\nos.mkdir({str(marker)!r})\nclass Env: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = compose(["algo=sac", "env=pendulum", *TINY, "trainer.total_steps=60", "trainer.learning_starts=50"])
    with RunDir.create(folder, config | {"env": config["env"] | {"id": "evil_preset:Env"}}, ["dataset"]):
        pass  # interrupted at once
    monkeypatch.setattr(trained_module, "preset_folder", lambda zoo, seed: folder)
    with pytest.raises(UntrustedError, match="evil_preset"):
        trained_module.trained_preset("sac_pendulum", 0, "the replay memory", lambda line: None)
    assert not marker.exists()


def test_a_preset_is_trained_once_for_all_the_data_made_of_it(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of its run and its episodes are two datasets of one training."""
    import rlexp.datasets.trained as trained_module

    monkeypatch.setenv("RLEXP_CACHE", str(tmp_path))
    tiny = compose(["zoo=sac_pendulum", *TINY, "trainer.total_steps=60", "trainer.learning_starts=50"])
    monkeypatch.setattr(trained_module, "preset_config", lambda zoo, seed: tiny | {"seed": seed})
    env = build("env", compose(["env=pendulum"])["env"])
    said: list[str] = []

    def told(dataset: ExpertDataset | ReplayDataset) -> ExpertDataset | ReplayDataset:
        dataset.report = said.append
        return dataset

    episodes = told(ExpertDataset(zoo="sac_pendulum", episodes=1)).load(env)
    memory = told(ReplayDataset(zoo="sac_pendulum")).load(env)
    assert (len(episodes), len(memory)) == (200, 60)
    assert [line.count("trained once") for line in said] == [1, 0, 0]
    again = told(ExpertDataset(zoo="sac_pendulum", episodes=1)).load(env)
    assert again.sha256 == episodes.sha256
    assert len(said) == 3  # read from the cache


def test_what_a_wrapped_memory_begins_with_is_not_the_start_of_an_episode(tmp_path: Path) -> None:
    """Two environments with episodes of 8 steps, of which the memory holds the steps 10 to 29 of each."""
    small = ["env.num_envs=2", "env.max_episode_steps=8", "buffer.capacity=40", "trainer.total_steps=60"]
    run = ["algo=sac", "env=pendulum", *TINY, *small, "trainer.learning_starts=20", "trainer.batch_size=8"]
    Runner(compose(run)).train(tmp_path / "run")
    env = build("env", compose(["env=pendulum"])["env"])
    data = ReplayDataset(run=str(tmp_path / "run")).load(env)
    assert len(data) == 40
    assert np.flatnonzero(data.truncated).tolist() == [5, 13, 19, 25, 33, 39]
    assert data.starts().tolist() == [6, 14, 26, 34]


def test_an_expert_needs_one_place_to_come_from() -> None:
    for wrong in ({}, {"run": "a", "zoo": "b"}):
        with pytest.raises(ConfigError, match="dataset=expert: set one of"):
            ExpertDataset(**wrong)
