"""Repairs of known defects: what is left is what was observed, and says of itself what is missing."""

import dataclasses

import numpy as np
import pytest
from small_data import VECTOR, FixedEnv, vector_data

from rlexp.datasets import NpzDataset
from rlexp.datasets.files import save_npz
from rlexp.datasets.repairs import Repair, repaired
from rlexp.datasets.transitions import Transitions, joined
from rlexp.errors import DataError

LIMITED = dataclasses.replace(VECTOR, max_episode_steps=4)


def episodes(*lengths: int, next_obs: bool = True) -> dict[str, np.ndarray]:
    """Episodes of numbered rows, each terminated at its end, with a final observation of its own."""
    count = sum(lengths)
    obs = np.repeat(np.arange(count, dtype=np.float32)[:, None], 3, 1)
    ends = np.isin(np.arange(count), np.cumsum(lengths) - 1)
    arrays = {"observations": obs, "actions": np.zeros((count, 2), np.float32)}
    arrays |= {"rewards": np.arange(count, dtype=np.float32), "terminals": ends, "timeouts": np.zeros(count, bool)}
    if next_obs:
        arrays["next_observations"] = obs + np.where(ends, 0.5, 1)[:, None].astype(np.float32)
    return arrays


def mend(arrays: dict[str, np.ndarray], *repairs: str, spec=LIMITED) -> Transitions:
    return repaired(Transitions.from_d4rl(arrays), spec, [Repair(each) for each in repairs], "it")[0]


def test_a_time_limit_without_a_recorded_next_observation_is_no_loop_onto_itself():
    data = mend(episodes(4, 2, 4, next_obs=False), "time_limits")
    assert data.reward.tolist() == [0, 1, 2, 4, 5, 6, 7, 8]  # 3 and 9 are gone, with what followed them
    assert np.flatnonzero(data.truncated).tolist() == [2, 7]
    assert np.flatnonzero(data.terminated).tolist() == [4]
    bootstrapped = ~data.terminated
    np.testing.assert_array_equal(data.next_obs[bootstrapped], data.obs[bootstrapped] + 1)


def test_a_time_limit_with_its_next_observation_is_kept():
    data = mend(episodes(4, 2, 4), "time_limits")
    assert np.flatnonzero(data.truncated).tolist() == [3, 9]
    assert data.next_obs[[3, 9], 0].tolist() == [3.5, 9.5]


@pytest.mark.parametrize("column", ["observations", "rewards"])
@pytest.mark.parametrize("order", [("drop_nan", "time_limits"), ("time_limits", "drop_nan")])
def test_a_row_that_is_dropped_does_not_hide_a_time_limit(column, order):
    arrays = episodes(4, 4)
    arrays[column][1] = np.nan
    data = mend(arrays, *order)
    assert data.reward.tolist() == [0, 2, 3, 4, 5, 6, 7]
    assert not data.terminated.any()
    assert np.flatnonzero(data.truncated).tolist() == [0, 2, 6]


def test_a_time_limit_that_crosses_is_seen_once_it_is_one():
    arrays = episodes(4, 4, 4)
    arrays["next_observations"][[3, 7]] = arrays["observations"][[4, 8]]
    data = mend(arrays, "drop_crossing", "time_limits")
    assert data.reward.tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10, 11]
    assert np.flatnonzero(data.truncated).tolist() == [2, 5, 9]


def test_without_a_known_limit_one_long_episode_may_end_by_itself():
    assert mend(episodes(3, 5, 2), "time_limits", spec=VECTOR).terminated.sum() == 3
    data = mend(episodes(3, 5, 2, 5), "time_limits", spec=VECTOR)
    assert (np.flatnonzero(data.terminated).tolist(), np.flatnonzero(data.truncated).tolist()) == ([2, 9], [7, 14])


@pytest.mark.parametrize(
    ("bad", "starts"),
    [
        (4, [0, 7]),  # its first row: how it began is not known
        (6, [0, 4, 7]),  # in the middle: the second begins, and goes on unseen
        (7, [0, 4, 7]),  # its last row
    ],
)
def test_pieces_of_an_episode_with_a_hole_are_no_whole_episodes(bad, starts):
    arrays = episodes(4, 4, 4)
    arrays["rewards"][bad] = np.nan
    data = mend(arrays, "drop_nan")
    assert data.starts().tolist() == starts
    assert data.episode_returns().tolist() == [0 + 1 + 2 + 3, 8 + 9 + 10 + 11]
    assert data.best_episodes(1.0).reward.tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    both = joined([data, data])
    assert both.starts().tolist() == [*data.starts(), *data.starts() + len(data)]
    assert both.best_episodes(0.5).reward.tolist() == [8, 9, 10, 11] * 2


def test_where_all_episodes_have_holes_their_pieces_are_what_there_is():
    arrays = episodes(4)
    arrays["rewards"][0] = np.nan
    data = mend(arrays, "drop_nan")
    assert data.starts().tolist() == [0]
    assert data.episode_returns().tolist() == [6]
    with pytest.raises(DataError, match="no complete episode"):
        data.best_episodes(0.5)


def test_shapes_are_compared_before_anything_is_repaired(tmp_path):
    data = vector_data()
    wide = dataclasses.replace(data, next_obs=np.zeros((12, 4), np.float32))
    save_npz(tmp_path / "data.npz", wide)
    dataset = NpzDataset(path=str(tmp_path / "data.npz"), repair=["drop_crossing"])
    with pytest.raises(DataError, match=r"next_observations have the shape \(4,\), those of observations \(3,\)"):
        dataset.load(FixedEnv(VECTOR))
    with pytest.raises(DataError, match=r"next_observations have the shape"):
        dataset.prepared(wide, VECTOR, "it")
