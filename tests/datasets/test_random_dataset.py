import logging
import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rlexp.datasets.random import RandomDataset, cache_directory
from rlexp.envs.gym_env import GymEnv
from rlexp.envs.spec import ActionSpec
from rlexp.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RLEXP_CACHE", str(tmp_path))
    return tmp_path


def cached(cache):
    return sorted(cache.glob("datasets/*"))


def test_random_data_is_a_chain_of_true_transitions(cache):
    data = RandomDataset(size=300, seed=1).load(GymEnv(id="CartPole-v1"))
    assert len(data) == 300
    assert not data.breaks().any()
    assert set(data.action) == {0, 1}
    assert 5 < (data.terminated | data.truncated).sum() < 30
    env = gym.make("CartPole-v1").unwrapped
    env.reset()
    for i in range(300):
        env.state, env.steps_beyond_terminated = tuple(data.obs[i].astype(np.float64)), None
        next_obs, reward, terminated, *_ = env.step(int(data.action[i]))
        np.testing.assert_allclose(data.next_obs[i], next_obs, rtol=1e-4, atol=1e-5)  # also where the episode ended
        assert (data.reward[i], data.terminated[i]) == (reward, terminated)


def test_a_second_load_comes_from_the_cache(cache, monkeypatch):
    first = RandomDataset(size=50).load(GymEnv(id="Pendulum-v1"))
    assert len(cached(cache)) == 1
    monkeypatch.setattr(GymEnv, "build", None)  # would fail if it were collected again
    assert RandomDataset(size=50).load(GymEnv(id="Pendulum-v1")).sha256 == first.sha256


def test_the_same_seed_collects_the_same_data_without_a_cache(cache):
    hashes = []
    for seed in (0, 0, 1):
        hashes.append(RandomDataset(size=50, seed=seed).load(GymEnv(id="Pendulum-v1")).sha256)
        for path in cached(cache):
            path.unlink()
    assert hashes[0] == hashes[1] != hashes[2]


def test_other_settings_have_another_cache_file_and_runtime_settings_have_not(cache):
    def count(dataset, env):
        dataset.load(env)
        return len(cached(cache))

    assert count(RandomDataset(size=20), GymEnv(id="Pendulum-v1")) == 1
    assert count(RandomDataset(size=20), GymEnv(id="Pendulum-v1", num_envs=4, normalize_obs=True)) == 1
    assert count(RandomDataset(size=21), GymEnv(id="Pendulum-v1")) == 2
    assert count(RandomDataset(size=20, seed=1), GymEnv(id="Pendulum-v1")) == 3
    assert count(RandomDataset(size=20), GymEnv(id="Pendulum-v1", kwargs={"g": 9.0})) == 4
    assert count(RandomDataset(size=20), GymEnv(id="Pendulum-v1", max_episode_steps=7)) == 5


def test_a_damaged_cache_file_is_collected_again_with_a_warning(cache, caplog):
    dataset = RandomDataset(size=50)
    first = dataset.load(GymEnv(id="Pendulum-v1"))
    (path,) = cached(cache)
    whole = path.read_bytes()
    for damaged in (whole[:100], b"", whole[:2000] + b"\xff\xff\xff" + whole[2003:]):
        path.write_bytes(damaged)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert dataset.load(GymEnv(id="Pendulum-v1")).sha256 == first.sha256
        assert "collected again" in caplog.text
        assert path.read_bytes() == whole


def test_an_unwritable_cache_is_a_warning_not_an_error(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RLEXP_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert len(RandomDataset(size=10).load(GymEnv(id="Pendulum-v1"))) == 10
    assert "RLEXP_CACHE" in caplog.text


class NanEnv(gym.Env):
    """Observes nothing that is a number."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([0.0], np.float32), {}

    def step(self, action):
        return np.array([np.nan], np.float32), 0.0, False, False, {}


def test_an_environment_given_as_a_function_is_not_cached_and_its_nan_is_reported(cache):
    env = GymEnv(id="mine")
    env.factory = NanEnv
    with pytest.raises(DataError, match="observations is NaN"):
        RandomDataset(size=5).load(env)
    env = GymEnv(id="mine")
    env.factory = lambda: gym.make("CartPole-v1")
    assert len(RandomDataset(size=5).load(env)) == 5
    assert cached(cache) == []


def test_dict_observations_are_collected(cache):
    env = GymEnv(id="mine")

    def make():
        made = gym.make("CartPole-v1")
        space = gym.spaces.Dict({"a": gym.spaces.Dict({"b": made.observation_space})})
        return gym.wrappers.TransformObservation(made, lambda obs: {"a": {"b": obs}}, space)

    env.factory = make
    data = RandomDataset(size=30).load(env)
    assert list(data.obs) == ["a/b"]
    assert data.obs["a/b"].shape == (30, 4)
    assert not data.breaks().any()


def test_actions_are_uniform_between_bounds_and_normal_without_them():
    inf = float("inf")
    spec = ActionSpec("continuous", (4,), low=(-2.0, -inf, 1.0, -inf), high=(6.0, inf, inf, -1.0))
    action = spec.sample(20_000, np.random.default_rng(0))
    assert action.dtype == np.float32
    assert action[:, 0].min() >= -2
    assert action[:, 0].max() <= 6
    assert np.histogram(action[:, 0], 4, (-2, 6))[0] == pytest.approx([5000] * 4, rel=0.05)
    assert (action[:, 1].mean(), action[:, 1].std()) == pytest.approx((0, 1), abs=0.03)
    assert action[:, 2].min() >= 1
    assert action[:, 3].max() <= -1


@pytest.mark.parametrize(
    "spec", [ActionSpec("multi_discrete", (2,), nvec=(2, 5)), ActionSpec("multi_binary", (3,), nvec=(2, 2, 2))]
)
def test_every_choice_is_drawn(spec):
    action = spec.sample(500, np.random.default_rng(0))
    assert action.shape == (500, *spec.shape)
    assert [len(set(action[:, i])) for i in range(action.shape[1])] == list(spec.nvec)


def test_the_cache_directory_follows_the_environment(monkeypatch):
    assert cache_directory() == Path(os.environ["RLEXP_CACHE"])
    monkeypatch.delenv("RLEXP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_directory() == Path("/somewhere/rlexp")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/me")
    assert cache_directory() == Path("/me/.cache/rlexp")


def test_datasets_are_free_of_torch():
    code = "import sys, rlexp.datasets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
