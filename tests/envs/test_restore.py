"""Snapshots of running episodes."""

import copy

import numpy as np
import pytest

from rlexp.envs import GymEnv
from rlexp.errors import CheckpointError
from tests.counting import episode_seed, offset
from tests.envs.common import BACKENDS, counting, play, random_actions, same_steps
from tests.trees import tree_equal


def assert_continues(config, steps=25, seed=7, other=None):
    """Played on, and restored elsewhere and played on: the same to the last bit."""
    env = config.build(seed=seed)
    env.reset()
    actions = random_actions(env, 2 * steps)
    obs = play(env, actions[:steps])[-1].obs
    state = env.snapshot()
    fresh = (other or config).build(seed=seed + 1)  # its own seed must not matter
    restored, inexact = fresh.restore(state)
    assert inexact == []
    assert tree_equal(restored, obs)
    assert same_steps(play(env, actions[steps:]), play(fresh, actions[steps:]))
    again = fresh.snapshot()["envs"]
    assert [(s["seed"], s["episode"], s["length"], s["ret"]) for s in env.snapshot()["envs"]] == [
        (s["seed"], s["episode"], s["length"], s["ret"]) for s in again
    ]
    env.close()
    fresh.close()
    return state


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("obs", "action"), [("vector", "discrete"), ("dict", "continuous"), ("image", "multi_binary")])
def test_a_restored_run_goes_on_as_if_nothing_had_happened(backend, obs, action):
    config = counting(backend, num_envs=3, length=8, stagger=5, end="mixed", obs=obs, action=action)
    state = assert_continues(config)
    assert any(env["length"] > 0 for env in state["envs"])  # it was in the middle of episodes


def test_returns_and_lengths_go_on_from_where_they_were():
    env = counting(num_envs=1, length=6).build(seed=0)
    env.reset()
    play(env, np.zeros((4, 1), np.int64))
    fresh = counting(num_envs=1, length=6).build(seed=0)
    fresh.restore(env.snapshot())
    first, second = play(fresh, np.zeros((2, 1), np.int64))
    assert first.episodes == []
    assert [(e.ret, e.length) for e in second.episodes] == [(21.0, 6)]


def test_a_snapshot_of_one_backend_can_be_restored_by_the_other():
    sync, workers = (counting(backend, length=8, stagger=5) for backend in BACKENDS)
    assert_continues(sync, other=workers)
    assert_continues(workers, other=sync)


def test_a_snapshot_right_after_a_reset_restores():
    env = counting().build(seed=0)
    obs = env.reset()
    restored, inexact = counting().build(seed=9).restore(env.snapshot())
    assert inexact == []
    assert tree_equal(restored, obs)


def test_an_environment_can_be_put_back_to_its_own_past():
    env = counting(length=20).build(seed=0)
    env.reset()
    actions = random_actions(env, 15)
    play(env, actions[:5])
    state = env.snapshot()
    once = play(env, actions[5:])
    env.restore(state)
    assert same_steps(once, play(env, actions[5:]))


def test_a_snapshot_does_not_change_when_the_environment_goes_on():
    env = counting(length=20).build(seed=0)
    env.reset()
    play(env, random_actions(env, 5))
    state = env.snapshot()
    kept = copy.deepcopy(state)
    play(env, random_actions(env, 5))
    for before, after in zip(kept["envs"], state["envs"]):
        np.testing.assert_array_equal(before["actions"], after["actions"])
        np.testing.assert_array_equal(before["obs"][0], after["obs"][0])


def test_long_episodes_are_recorded_whole():
    assert_continues(counting(num_envs=1, length=10_000, action="continuous"), steps=300)


def leaves(tree):
    if isinstance(tree, dict):
        assert all(isinstance(key, str) and "/" not in key for key in tree)
        return [leaf for value in tree.values() for leaf in leaves(value)]
    return [leaf for value in tree for leaf in leaves(value)] if isinstance(tree, list) else [tree]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_snapshot_is_a_state_tree(backend):
    env = counting(backend, obs="dict").build(seed=0)
    env.reset()
    play(env, random_actions(env, 2))
    assert {type(leaf) for leaf in leaves(env.snapshot())} == {int, float, np.ndarray}
    env.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "LunarLander-v3", "HalfCheetah-v5"])
def test_well_behaved_environments_are_restored_exactly(env_id):
    if env_id == "LunarLander-v3":
        pytest.importorskip("Box2D")
    if env_id == "HalfCheetah-v5":
        pytest.importorskip("mujoco")
        pytest.importorskip("imageio")
    assert_continues(GymEnv(id=env_id, num_envs=2, max_episode_steps=120), steps=190)


def test_an_environment_that_hides_state_is_either_restored_exactly_or_reported():
    pytest.importorskip("Box2D")
    config = GymEnv(id="BipedalWalker-v3", num_envs=3)
    env = config.build(seed=0)
    env.reset()
    actions = random_actions(env, 150)
    obs = play(env, actions)[-1].obs
    fresh = config.build(seed=0)
    restored, inexact = fresh.restore(env.snapshot())
    for i, (before, after) in enumerate(zip(env.envs, fresh.envs)):
        assert after.episode == before.episode + (i in inexact)
        assert (after.length == before.length) == (i not in inexact)
        assert np.array_equal(restored[i], obs[i]) == (i not in inexact)


@pytest.mark.parametrize("backend", BACKENDS)
def test_state_that_no_seed_governs_is_noticed_and_the_next_episode_begins(backend):
    config = counting(backend, num_envs=3, length=4, forgetful=False)
    env = config.build(seed=0)
    env.reset()
    # Action 2 is 0 natively, so environment 0 has nothing to forget; the others carry a total into their next episode.
    play(env, np.tile(np.array([2, 0, 1]), (6, 1)))
    fresh = config.build(seed=0)
    obs, inexact = fresh.restore(env.snapshot())
    assert inexact == [1, 2]
    np.testing.assert_array_equal(obs[:, 1], [2, 0, 0])
    np.testing.assert_array_equal(obs[:, 0], [offset(episode_seed(0, i, k)) for i, k in ((0, 1), (1, 2), (2, 2))])
    counters = [(state["episode"], state["length"], state["ret"]) for state in fresh.snapshot()["envs"]]
    assert counters == [(1, 2, 3.0), (2, 0, 0.0), (2, 0, 0.0)]
    env.close()
    fresh.close()


def test_an_episode_that_ends_during_the_replay_is_noticed():
    env = counting(num_envs=1, length=9).build(seed=0)
    env.reset()
    play(env, np.zeros((5, 1), np.int64))
    _, inexact = counting(num_envs=1, length=3).build(seed=0).restore(env.snapshot())
    assert inexact == [0]


def test_a_different_reward_is_noticed_though_the_observation_is_the_same():
    config = GymEnv(id="CartPole-v1")
    env = config.build(seed=0)
    env.reset()
    play(env, np.zeros((3, 1), np.int64))
    clip = {"_target_": "gymnasium.wrappers.ClipReward", "min_reward": 0.0, "max_reward": 0.5}
    _, inexact = GymEnv(id="CartPole-v1", wrappers=[clip]).build(seed=0).restore(env.snapshot())
    assert inexact == [0]


def damaged():
    yield "nothing", lambda s: s.clear()
    yield "not a list", lambda s: s.update(envs={})
    yield "fewer", lambda s: s["envs"].pop()
    yield "missing key", lambda s: s["envs"][0].pop("actions")
    yield "unknown key", lambda s: s["envs"][0].update(more=1)
    yield "not a dict", lambda s: s["envs"].__setitem__(0, 3)
    yield "type", lambda s: s["envs"][0].update(seed="0")
    yield "index", lambda s: s["envs"][0].update(index=2)
    yield "length", lambda s: s["envs"][0].update(length=1)
    yield "dtype", lambda s: s["envs"][0].update(actions=s["envs"][0]["actions"].astype(np.float32))
    yield "action shape", lambda s: s["envs"][0].update(actions=s["envs"][0]["actions"][:, None])
    yield "obs", lambda s: s["envs"][0].update(obs=[])
    yield "negative episode", lambda s: s["envs"][0].update(episode=-1)


@pytest.mark.parametrize("damage", [pytest.param(change, id=name) for name, change in damaged()])
def test_a_malformed_snapshot_is_refused(damage):
    env = counting(length=9).build(seed=0)
    env.reset()
    play(env, random_actions(env, 3))
    state = env.snapshot()
    damage(state)
    with pytest.raises(CheckpointError, match="saved"):
        env.restore(state)


def test_a_malformed_snapshot_is_the_same_error_from_a_worker():
    env = counting("subprocess").build(seed=0)
    env.reset()
    state = env.snapshot()
    state["envs"][2]["length"] = 5
    with pytest.raises(CheckpointError, match="environment 2"):
        env.restore(state)


def test_the_number_of_environments_is_named_when_it_differs():
    env = counting(num_envs=3).build(seed=0)
    env.reset()
    with pytest.raises(CheckpointError, match=r"of 3 environments.*env.num_envs=3"):
        counting(num_envs=2).build(seed=0).restore(env.snapshot())


def test_there_is_nothing_to_save_before_the_first_reset():
    with pytest.raises(RuntimeError, match="reset"):
        counting().build(seed=0).snapshot()
