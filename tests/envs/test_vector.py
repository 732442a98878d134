"""Stepping, ends of episodes and seeding, the same through both backends."""

import numpy as np
import pytest

from rlexp.envs import GymEnv
from rlexp.tree import tree_leaves
from tests.counting import ACTION_SPACES, COUNTING, OBS_SPACES, bits, episode_seed, image, offset
from tests.envs.common import BACKENDS, WORKERS, ExpectedEnv, counting, play, random_actions, same_steps
from tests.trees import tree_equal


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("end", ["terminated", "truncated", "mixed"])
def test_every_number_of_a_run_is_what_arithmetic_says(backend, end):
    env = counting(backend, num_envs=5, length=4, stagger=3, end=end).build(seed=11)
    expected = [ExpectedEnv(11, i, 4, 3, end) for i in range(5)]
    np.testing.assert_array_equal(env.reset(), [e.obs() for e in expected])
    actions = random_actions(env, 40)
    flags = set()
    for action in actions:
        step, wanted = env.step(action), [e.step(int(a)) for e, a in zip(expected, action)]
        for name in ("obs", "next_obs", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(step, name), [w[name] for w in wanted], err_msg=name)
        ended = [w["episode"] for w in wanted if "episode" in w]
        assert [(e.env, e.ret, e.length, e.info) for e in step.episodes] == ended
        assert (step.next_obs is step.obs) == (not ended)
        flags |= set(zip(step.terminated.tolist(), step.truncated.tolist()))
    env.close()
    ends = {"terminated": {(True, False)}, "truncated": {(False, True)}, "mixed": {(True, False), (False, True)}}
    assert flags == {(False, False)} | ends[end]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_environment_that_raises_both_flags_has_terminated(backend):
    env = counting(backend, num_envs=2, length=2, end="both").build(seed=0)
    env.reset()
    first, second = play(env, random_actions(env, 2))
    assert not first.terminated.any()
    assert second.terminated.all()
    assert not second.truncated.any()
    env.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_time_limit_truncates_with_the_true_final_observation(backend):
    env = GymEnv(id=COUNTING, kwargs={"end": "never"}, max_episode_steps=3, num_envs=2, vectorization=backend).build(0)
    env.reset()
    step = play(env, np.zeros((3, 2), np.int64))[-1]
    assert step.truncated.all()
    assert not step.terminated.any()
    np.testing.assert_array_equal(step.next_obs[:, 1], [3, 3])
    np.testing.assert_array_equal(step.obs[:, 1], [0, 0])
    env.close()


@pytest.mark.parametrize(
    ("obs", "action"),
    [*[(obs, "discrete") for obs in OBS_SPACES], *[("vector", action) for action in ACTION_SPACES]],
)
def test_both_backends_give_the_same_bits_for_every_space(obs, action):
    runs = []
    for backend in BACKENDS:
        env = counting(backend, num_envs=3, length=3, stagger=2, end="mixed", obs=obs, action=action).build(seed=5)
        runs.append((env.reset(), play(env, random_actions(env, 12))))
        env.close()
    assert tree_equal(runs[0][0], runs[1][0])
    assert same_steps(runs[0][1], runs[1][1])
    assert any(step.episodes for step in runs[0][1])


def test_dict_observations_arrive_under_flat_names_with_their_values():
    env = counting(num_envs=2, length=10, obs="dict").build(seed=1)
    env.reset()
    obs = play(env, np.zeros((3, 2), np.int64))[-1].obs
    for i in range(2):
        mark = offset(episode_seed(1, i, 0))
        np.testing.assert_array_equal(obs["vector"][i], [mark, 3, -6])
        np.testing.assert_array_equal(obs["image"][i], image(mark, 3))
        np.testing.assert_array_equal(obs["inner/bits"][i], bits(3))
        assert obs["inner/count"][i] == 3  # zero-based, though the space starts at -2
    assert list(obs) == ["image", "inner/bits", "inner/count", "vector"]


def test_continuous_actions_reach_the_environment_clipped():
    env = counting(num_envs=1, length=10, action="continuous").build(seed=0)
    env.reset()
    step = env.step(np.array([[-9, 9]], np.float32))
    assert step.obs[0, 2] == -1 + 4


def test_the_action_limit_clips_what_the_space_leaves_open():
    env = GymEnv(id=COUNTING, kwargs={"action": "unbounded"}, action_limit=2.5)
    assert env.spec().action.high == (2.5, 2.5)
    vec = env.build(seed=0)
    vec.reset()
    assert vec.step(np.array([[100, 100]], np.float32)).obs[0, 2] == 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_arrays_are_the_callers_to_keep_and_to_change(backend):
    env, twin = (counting(backend, num_envs=2, length=3, obs="dict").build(seed=2) for _ in range(2))
    kept = [env.reset()]
    twin.reset()
    before = [{name: array.copy() for name, array in kept[0].items()}]
    for action in random_actions(env, 7):
        step = env.step(action)
        kept += [step.obs, step.next_obs]
        before += [{name: array.copy() for name, array in tree.items()} for tree in (step.obs, step.next_obs)]
        assert tree_equal(twin.step(action).obs, step.obs)
    assert all(tree_equal(a, b) for a, b in zip(kept, before))
    for tree in kept:
        for _, array in tree_leaves(tree):
            array[...] = 0
    assert env.snapshot()["envs"][0]["obs"][0].any()  # what the environment remembers is its own
    env.close()
    twin.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_seed_gives_the_same_stream_and_reset_begins_it_again(backend):
    env = GymEnv(id="CartPole-v1", num_envs=2, vectorization=backend, workers=WORKERS[backend]).build(seed=3)
    actions = random_actions(env, 60)
    first = (env.reset(), play(env, actions))
    again = (env.reset(), play(env, actions))
    assert tree_equal(first[0], again[0])
    assert same_steps(first[1], again[1])
    assert any(step.episodes for step in first[1])
    other = (env.reset(seed=4), play(env, actions))
    assert not tree_equal(first[0], other[0])
    back = (env.reset(seed=3), play(env, actions))
    assert same_steps(first[1], back[1])
    env.close()


def test_environments_and_episodes_have_streams_of_their_own():
    env = GymEnv(id="CartPole-v1", num_envs=4, max_episode_steps=1).build(seed=0)
    starts = [env.reset()] + [step.obs for step in play(env, np.zeros((5, 4), np.int64))]
    assert len(np.unique(np.concatenate(starts), axis=0)) == 24


def test_an_environment_does_not_depend_on_how_many_there_are():
    few, many = (GymEnv(id="CartPole-v1").build(seed=0, num_envs=n) for n in (1, 3))
    np.testing.assert_array_equal(few.reset()[0], many.reset()[0])


def test_an_episode_does_not_depend_on_how_earlier_ones_were_played():
    starts = []
    for choice in (0, 1):
        env = GymEnv(id="CartPole-v1").build(seed=0)
        env.reset()
        found = []
        while len(found) < 3:
            step = env.step(np.array([choice]))
            found += [step.obs[0]] * len(step.episodes)
        starts.append(found)
    np.testing.assert_array_equal(starts[0], starts[1])


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        ("discrete", np.zeros((3, 1), np.int64)),
        ("discrete", np.zeros(2, np.int64)),
        ("discrete", np.zeros(3, np.float32)),
        ("continuous", np.zeros((3, 3), np.float32)),
        ("continuous", np.zeros((3, 2), np.int64)),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_actions_of_the_wrong_shape_or_kind_are_refused(backend, kind, action):
    env = counting(backend, action=kind).build(seed=0)
    env.reset()
    with pytest.raises(ValueError, match=r"step\(\) takes a"):
        env.step(action)
    env.close()
