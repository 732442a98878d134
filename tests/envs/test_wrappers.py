import gymnasium as gym
import numpy as np
import pytest

from rlexp.config.compose import compose
from rlexp.envs import GymEnv, SelectObservation
from rlexp.errors import EnvError
from rlexp.runner import Runner
from tests.counting import COUNTING, IMAGE_SHAPE, START
from tests.envs.common import BACKENDS, counting, play, random_actions, same_steps
from tests.goal_line import LINE
from tests.masked import MASKED


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


# ---- repeated actions


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_action_is_repeated_and_its_rewards_are_summed(backend):
    """Reward of step t is t, so three steps from t on are 3t + 3; seven steps leave one for the third action."""
    env = counting(backend, num_envs=1, length=7, end="terminated")
    env.action_repeat = 3
    envs = env.build(0)
    obs = envs.reset()
    total = 0
    for wanted, last in ((1 + 2 + 3, False), (4 + 5 + 6, False), (7, True)):
        step = envs.step(np.array([2]))
        assert step.reward.tolist() == [wanted]
        assert step.terminated.tolist() == [last]
        t = step.next_obs[0, 1]
        total = t * (2 + START)
        assert step.next_obs[0].tolist() == [obs[0, 0], t, total]
    assert (step.episodes[0].ret, step.episodes[0].length) == (28, 3)  # the agent's steps
    envs.close()


def test_a_time_limit_counts_the_repeats_and_the_spec_the_steps_of_the_agent():
    env = GymEnv(id="CartPole-v1", action_repeat=3, max_episode_steps=7)
    assert env.spec().max_episode_steps == 3


def test_masked_actions_are_not_repeated():
    with pytest.raises(EnvError, match="impossible the second time"):
        GymEnv(id=MASKED, action_repeat=2).spec()


# ---- stacked frames


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_newest_observations_are_shown_oldest_first(backend):
    env = counting(backend, num_envs=2, length=4, end="truncated")
    env.frame_stack = 3
    assert env.spec().obs.leaves[""].shape == (3, 3)
    envs = env.build(0)
    obs = envs.reset()
    assert obs[:, :, 1].tolist() == [[0, 0, 0]] * 2
    steps = play(envs, np.full((5, 2), 1))
    assert [step.obs[0, :, 1].tolist() for step in steps] == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 0], [0, 0, 1]]
    assert steps[3].next_obs[1, :, 1].tolist() == [2, 3, 4]  # the end of the episode, not the next one's beginning
    assert (steps[3].obs[:, :, 0] != steps[3].next_obs[:, :, 0]).all()
    envs.close()


def test_of_a_dict_every_box_is_stacked_and_nothing_else():
    env = GymEnv(id=COUNTING, kwargs={"obs": "dict"}, frame_stack=2)
    shapes = {name: leaf.shape for name, leaf in env.spec().obs.leaves.items()}
    assert shapes == {"image": (2, *IMAGE_SHAPE), "inner/bits": (10,), "inner/count": (), "vector": (2, 3)}
    assert env.spec().obs.leaves["image"].dtype == "uint8"
    goals = GymEnv(id=LINE, frame_stack=2).spec().obs
    assert goals.has_goals
    assert goals.leaves["observation"].shape == (2, 1)


def test_what_is_no_box_cannot_be_stacked():
    with pytest.raises(EnvError, match=r"env\.frame_stack=2 needs a Box"):
        GymEnv(id=COUNTING, kwargs={"obs": "discrete"}, frame_stack=2).spec()


@pytest.mark.parametrize("obs", ["vector", "dict"])
def test_repeats_and_stacks_are_restored_by_replay(obs):
    env = GymEnv(id=COUNTING, kwargs={"obs": obs, "length": 9, "stagger": 3}, action_repeat=2, frame_stack=3)
    first, second = env.build(0, num_envs=2), env.build(0, num_envs=2)
    first.reset()
    actions = random_actions(first, 20)
    play(first, actions[:7])
    _, restarted = second.restore(first.snapshot())
    assert restarted == []
    assert same_steps(play(first, actions[7:]), play(second, actions[7:]))


@pytest.mark.parametrize("obs", ["vector", "image", "dict"])
def test_an_agent_learns_from_stacks_and_repeats_as_it_is_evaluated(obs, tmp_path):
    changes = ["env=gym", f"env.id={COUNTING}", f"+env.kwargs={{obs: {obs}, length: 8}}", "trainer.total_steps=60"]
    changes += ["trainer.learning_starts=30", "trainer.batch_size=4", "trainer.train_frequency=20", "compile=false"]
    changes += ["env.action_repeat=3", "env.frame_stack=4", "model.hidden=[8]", "progress=none", "threads=1"]
    summary = Runner(compose(["algo=dqn", *changes])).train(tmp_path / "run")
    assert summary["env_steps"] == 60
    assert summary["eval"]["length_mean"] == 3  # 8 steps of the environment
    assert summary["eval"]["return_mean"] == 36
