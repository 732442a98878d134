import gymnasium as gym
import numpy as np
import pytest

from rlexp.config.compose import compose
from rlexp.envs import GymEnv, SelectObservation
from rlexp.errors import EnvError


def test_the_masked_cartpole_shows_position_and_angle():
    config = compose(["env=cartpole_masked"])["env"]
    masked, full = GymEnv(id=config["id"], wrappers=config["wrappers"]).make(), gym.make("CartPole-v1")
    np.testing.assert_array_equal(masked.reset(seed=3)[0], full.reset(seed=3)[0][[0, 2]])
    for action in (1, 0, 1):
        obs, *rest = masked.step(action)
        whole, *others = full.step(action)
        np.testing.assert_array_equal(obs, whole[[0, 2]])
        assert rest == others
    space = masked.observation_space
    assert space.shape == (2,)
    np.testing.assert_array_equal(space.high, full.observation_space.high[[0, 2]])
    assert space.contains(obs)


def test_its_episodes_are_restored_by_replay():
    wrappers = [{"_target_": "rlexp.envs.SelectObservation", "indices": [2, 0]}]
    env = GymEnv(id="CartPole-v1", wrappers=wrappers)
    first, second = env.build(0, num_envs=2), env.build(0, num_envs=2)
    first.reset()
    for _ in range(5):
        step = first.step(np.array([0, 1]))
    obs, restarted = second.restore(first.snapshot())
    assert restarted == []
    np.testing.assert_array_equal(obs, step.obs)


@pytest.mark.parametrize("indices", [[], [4], [-1], [0, 0], [True, 2], ["a"]])
def test_indices_that_cannot_be_are_refused(indices):
    with pytest.raises(EnvError, match="from 0 to 3"):
        SelectObservation(gym.make("CartPole-v1"), indices)


def test_observations_that_are_no_vectors_are_refused():
    with pytest.raises(EnvError, match="needs a vector"):
        SelectObservation(gym.make("FrozenLake-v1"), [0])
