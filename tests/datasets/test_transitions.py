import dataclasses

import numpy as np
import pytest
from small_data import DICT, VECTOR, dict_data, vector_data

from rlexp.datasets.transitions import Transitions
from rlexp.envs.spec import ActionSpec, EnvSpec, Leaf, ObsSpec
from rlexp.errors import DataError
from tests.trees import tree_equal

GRID = EnvSpec(
    "Grid-v0", ObsSpec({"": Leaf("discrete", (), "int64", (10,))}, True), ActionSpec("discrete", (), nvec=(4,))
)


def assert_same(left, right):
    assert tree_equal(left.obs, right.obs)
    assert tree_equal(left.next_obs, right.next_obs)
    for name in ("action", "reward", "terminated", "truncated"):
        assert getattr(left, name).dtype == getattr(right, name).dtype
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))


@pytest.mark.parametrize(("data", "spec"), [(vector_data(), VECTOR), (dict_data(), DICT)], ids=["vector", "dict"])
def test_d4rl_names_and_back(data, spec):
    arrays = data.to_d4rl()
    assert ("observations/arm/joint" in arrays) == (spec is DICT)
    assert_same(Transitions.from_d4rl(arrays).check(spec), data)


def numbered(count, terminals=(), timeouts=None):
    rows = np.arange(count)
    arrays = {
        "observations": np.repeat(rows[:, None], 3, 1).astype(np.float64),
        "actions": np.zeros((count, 2)),
        "rewards": rows.astype(np.float64),
        "terminals": np.isin(rows, terminals),
    }
    return arrays if timeouts is None else arrays | {"timeouts": np.isin(rows, timeouts)}


def test_without_next_observations_the_row_at_a_timeout_is_dropped_and_the_one_before_is_truncated():
    data = Transitions.from_d4rl(numbered(7, terminals=[1], timeouts=[4])).check(VECTOR)
    assert data.reward.tolist() == [0, 1, 2, 3, 5]  # 4 timed out; 6 is the last and has no successor
    assert data.next_obs[:, 0].tolist() == [1, 1, 3, 4, 6]  # row 1 terminated: its next observation is a placeholder
    assert data.terminated.tolist() == [False, True, False, False, False]
    assert data.truncated.tolist() == [False, False, False, True, True]
    assert data.obs.dtype == data.reward.dtype == np.float32


def test_without_next_observations_a_terminal_last_row_is_kept():
    data = Transitions.from_d4rl(numbered(3, terminals=[2])).check(VECTOR)
    assert data.reward.tolist() == [0, 1, 2]
    assert data.truncated.tolist() == [False, False, False]


def test_a_dropped_row_after_an_end_truncates_nothing():
    data = Transitions.from_d4rl(numbered(5, terminals=[1, 4], timeouts=[2]))
    assert data.reward.tolist() == [0, 1, 3, 4]
    assert data.truncated.tolist() == [False] * 4


def test_with_next_observations_a_timeout_is_kept_and_terminal_wins_over_timeout():
    arrays = numbered(4, terminals=[1], timeouts=[1, 3]) | {"next_observations": np.full((4, 3), 9.0)}
    data = Transitions.from_d4rl(arrays).check(VECTOR)
    assert len(data) == 4
    assert data.terminated.tolist() == [False, True, False, False]
    assert data.truncated.tolist() == [False, False, False, True]


def test_unknown_ends_of_episodes_are_told_and_either_column_settles_them():
    arrays = numbered(6, terminals=[2])
    data = Transitions.from_d4rl(arrays, "old.npz")
    assert data.doubt.startswith("old.npz has neither timeouts nor next_observations, so of its 6 rows only the 1 term")
    assert data.check(VECTOR).doubt == data.doubt
    assert Transitions.from_d4rl(arrays | {"timeouts": np.zeros(6, bool)}).doubt is None
    assert Transitions.from_d4rl(arrays | {"next_observations": np.ones((6, 3))}).doubt is None


def test_names_that_resemble_none_of_the_keys_are_left_alone():
    extra = {"infos/goal": np.zeros(6), "metadata": np.zeros(3), "log_probs": np.zeros(6)}
    assert len(Transitions.from_d4rl(numbered(6, terminals=[5]) | extra)) == 6


def test_columns_of_one_and_flags_as_numbers_are_understood():
    arrays = {
        "observations": np.arange(4)[:, None],
        "actions": np.array([[0], [1], [2], [3]], np.uint8),
        "rewards": np.ones((4, 1)),
        "terminals": np.array([[0.0], [0.0], [0.0], [1.0]]),
    }
    data = Transitions.from_d4rl(arrays).check(GRID)
    assert data.obs.shape == data.action.shape == data.reward.shape == data.terminated.shape == (4,)
    assert (data.obs.dtype, data.action.dtype) == (np.int64, np.int64)


def test_a_row_that_the_next_does_not_follow_from_breaks_the_chain():
    data = vector_data()  # ends in rows 3 and 7
    assert not data.breaks().any()
    data.next_obs[9] += 1
    data.next_obs[3] += 1  # an end, which breaks nothing
    assert np.flatnonzero(data.breaks()).tolist() == [9]


def test_a_broken_chain_in_one_leaf_of_a_dict_is_seen():
    data = dict_data()
    next_obs = {name: np.concatenate([leaf[1:], leaf[-1:]]) for name, leaf in data.obs.items()}
    next_obs["image"] = next_obs["image"].copy()
    next_obs["image"][2, 1, 1] ^= 1
    assert np.flatnonzero(dataclasses.replace(data, next_obs=next_obs).breaks()).tolist() == [2]


def test_hash_depends_on_every_field_and_on_nothing_else():
    original = vector_data().sha256
    assert vector_data().sha256 == original
    assert len(original) == 64
    for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated"):
        data = vector_data()
        array = getattr(data, name)
        array.reshape(-1)[5] = ~array.reshape(-1)[5] if array.dtype == bool else array.reshape(-1)[5] + 1
        assert data.sha256 != original, name
    shorter = vector_data()
    shorter = dataclasses.replace(shorter, obs=np.asfortranarray(shorter.obs))
    assert shorter.sha256 == original


def edit(**changes):
    data = vector_data()
    for name, change in changes.items():
        data = dataclasses.replace(data, **{name: change(getattr(data, name).copy())})
    return data


def put(value, *where):
    def change(array):
        array[where] = value
        return array

    return change


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (edit(obs=put(np.nan, 4, 1)), r"file: observations is NaN.* row 4"),
        (edit(next_obs=put(np.inf, 5, 0)), r"next_observations is NaN.* row 5"),
        (edit(reward=put(-np.inf, 6)), r"rewards is NaN.* row 6"),
        (edit(reward=lambda r: r.astype(np.float64) * 1e300), r"rewards is NaN, infinite or too large"),
        (edit(action=put(np.nan, 7, 0)), r"actions is NaN.* row 7"),
        (edit(action=put(2.5, 1, 0)), r"actions\[:, 0\] lies in .*takes \[-2, 2\].*Rescale"),
        (edit(action=put(-1.5, 1, 1)), r"actions\[:, 1\] lies in .*takes \[-1, inf\]"),
        (
            edit(obs=lambda o: o[:, :2]),
            r"observations has shape \(12, 2\), but 12 transitions of Vector-v0 have \(12, 3\)",
        ),
        (edit(next_obs=lambda o: o[:-1]), r"next_observations has shape"),
        (edit(action=lambda a: a[:, 0]), r"actions has shape \(12,\)"),
        (edit(terminated=lambda t: t[1:]), r"terminals or timeouts do not have 12 rows"),
        (edit(reward=lambda r: np.stack([r, r], 1)), r"rewards is float32 \(12, 2\)"),
        (dict_data(), r"the entries .*but Vector-v0 has one array"),
    ],
)
def test_data_that_does_not_fit_is_refused_with_the_reason(data, message):
    with pytest.raises(DataError, match=message):
        data.check(VECTOR, "file")


def test_rounding_outside_the_bounds_is_clipped_and_the_unbounded_side_left_alone():
    data = edit(action=put([2.0001, 50.0], 3)).check(VECTOR)
    assert data.action[3].tolist() == [2.0, 50.0]


@pytest.mark.parametrize(
    ("obs", "action", "message"),
    [
        (np.array([0, 10]), np.array([0, 1]), "observations goes from 0 to 10"),
        (np.array([0, -1]), np.array([0, 1]), "observations goes from -1"),
        (np.array([0, 1]), np.array([1, 4]), "actions goes from 1 to 4.*below 4"),
        (np.array([0, 1]), np.array([0.0, 1.0]), "actions is float64.*Save integers"),
        (np.array([0.0, 1.0]), np.array([0, 1]), "observations is float64.*Save integers"),
    ],
)
def test_discrete_values_must_be_whole_and_in_range(obs, action, message):
    flags = np.zeros(2, bool)
    with pytest.raises(DataError, match=message):
        Transitions(obs, action, np.zeros(2, np.float32), obs, flags, flags).check(GRID)


def test_each_part_of_a_multi_discrete_action_has_its_own_range():
    data = dict_data()
    data.action[0] = (2, 4)
    data.check(DICT)
    data.action[0] = (3, 0)
    with pytest.raises(DataError, match="actions goes from"):
        data.check(DICT)


def test_images_must_be_bytes_and_names_must_match():
    data = dict_data()
    floats = dataclasses.replace(data, obs=data.obs | {"image": data.obs["image"].astype(np.float32)})
    with pytest.raises(DataError, match="uint8 images"):
        floats.check(DICT)
    with pytest.raises(DataError, match="entries"):
        dataclasses.replace(data, obs={"image": data.obs["image"]}).check(DICT)
    bits = dataclasses.replace(data, obs=data.obs | {"keys": data.obs["keys"] + np.int8(1)})
    with pytest.raises(DataError, match="counts from 0 to below 2"):
        bits.check(DICT)


def test_an_empty_dataset_is_refused():
    with pytest.raises(DataError, match="no transitions"):
        Transitions.from_d4rl(numbered(0)).check(VECTOR)
    with pytest.raises(DataError, match="no transitions"):
        Transitions.from_d4rl(numbered(1)).check(VECTOR)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("rewards"), r"has no rewards \(it has actions, observations, terminals\)"),
        (lambda a: a.pop("observations"), "has no observations"),
        (lambda a: a.update(terminals=np.full(6, 2)), "terminals holds values other than 0 and 1"),
        (lambda a: a.update(timeouts=np.full(6, np.nan)), "timeouts holds values other than 0 and 1"),
        (lambda a: a.update(actions=np.zeros((5, 2))), "actions has 5 rows but rewards has 6"),
        (lambda a: a.update(actions=np.array(["a"] * 6)), "actions holds <U1 values"),
        (lambda a: a.update(rewards=np.float32(1)), "rewards is a single number"),
        (lambda a: a.update({"observations/x": np.zeros((6, 1))}), "both observations and observations/x"),
        (lambda a: a.update({"next_observations/x": np.zeros((6, 1))}), "other entries"),
        (lambda a: a.update({"next_observations": np.zeros((3, 3))}), "next_observations has 3 rows"),
    ],
)
def test_wrong_keys_and_lengths_are_named(change, message):
    arrays = numbered(6)
    change(arrays)
    with pytest.raises(DataError, match=message):
        Transitions.from_d4rl(arrays, "file")


def test_the_best_episodes_are_those_of_the_highest_return_in_their_old_order():
    data = vector_data(12)  # rows 0–3, 4–7, and 8–11 without an end
    reward = np.array([0, 0, 0, 5, 1, 1, 1, 1, 100, 100, 100, 100], np.float32)
    data = dataclasses.replace(data, reward=reward)
    half = data.best_episodes(0.5)
    assert half.reward.tolist() == [0, 0, 0, 5]
    assert (half.terminated.tolist(), half.truncated.any()) == ([False, False, False, True], False)
    np.testing.assert_array_equal(half.obs, data.obs[:4])
    np.testing.assert_array_equal(half.next_obs, data.next_obs[:4])
    assert data.best_episodes(1.0).reward.tolist() == reward[:8].tolist()  # what the last would come to is unknown
    assert dataclasses.replace(data, reward=-reward).best_episodes(0.01).reward.tolist() == [
        -1,
        -1,
        -1,
        -1,
    ]  # at least one


def test_episodes_of_equal_return_are_taken_from_the_front_and_dicts_go_along():
    data = dict_data(6)
    data = dataclasses.replace(data, reward=np.ones(6, np.float32), truncated=np.array([False, True] * 3))
    best = data.best_episodes(0.34)
    assert len(best) == 2
    for name, leaf in best.obs.items():
        np.testing.assert_array_equal(leaf, data.obs[name][:2])


def test_sources_keep_their_weights_for_the_episodes_that_are_left():
    data = vector_data(16)
    data = dataclasses.replace(data, truncated=np.arange(16) % 4 == 3, terminated=np.zeros(16, bool))
    data = dataclasses.replace(data, reward=np.repeat([4.0, 1.0, 3.0, 2.0], 4).astype(np.float32))
    data = dataclasses.replace(data, sources=((4, 0.5), (4, 0.2), (8, 0.3)))
    assert data.best_episodes(0.5).sources == ((4, 0.5), (4, 0.3))  # nothing of the second is left
    assert vector_data(12).best_episodes(0.5).sources == ()


def test_without_a_complete_episode_there_is_no_best_one():
    data = vector_data(3)
    with pytest.raises(DataError, match=r"trainer\.best_episodes=1"):
        data.best_episodes(0.5)
