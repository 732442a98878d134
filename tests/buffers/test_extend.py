"""A dataset that was read with room for one row more becomes the buffer's memory instead of being copied."""

import numpy as np
from naive_ring import VECTOR

from rlexp.buffers.ring import ReplayBuffer
from rlexp.datasets.files import read_hdf5, save_hdf5
from rlexp.datasets.transitions import Transitions


def data(count: int = 9) -> Transitions:
    rng = np.random.default_rng(0)
    chain = rng.normal(size=(count + 1, 3)).astype(np.float32)
    next_obs = chain[1:].copy()
    next_obs[4] += 1
    flags = np.arange(count) == 4, np.zeros(count, bool)
    action = rng.uniform(-1, 1, (count, 2)).astype(np.float32)
    return Transitions(chain[:-1].copy(), action, np.arange(count, dtype=np.float32), next_obs, *flags)


def filled(given: Transitions) -> ReplayBuffer:
    buffer = ReplayBuffer(n_step=2)
    buffer.build(VECTOR, 1, 0.9, 0, capacity=len(given))
    buffer.extend(given)
    return buffer


def test_observations_of_a_file_are_not_held_twice(tmp_path):
    save_hdf5(tmp_path / "data.hdf5", data())
    read = Transitions.from_d4rl(read_hdf5(tmp_path / "data.hdf5")).check(VECTOR)
    taken, copied = filled(read), filled(data())
    assert np.shares_memory(taken._obs[0], read.obs)
    assert not np.shares_memory(copied._obs[0], data().obs)
    ours, theirs = (buffer.gather(np.arange(9)) for buffer in (taken, copied))
    for name in ("obs", "action", "reward", "next_obs", "discount"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert taken.state_dict()["next_obs"]["obs"].tolist() == copied.state_dict()["next_obs"]["obs"].tolist()


def test_parts_of_other_arrays_are_copied():
    whole = data(12)
    part = Transitions(
        *(getattr(whole, name)[2:11] for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated"))
    )
    buffer = filled(part)
    assert not np.shares_memory(buffer._obs[0], whole.obs)
    np.testing.assert_array_equal(buffer.gather(np.arange(9)).obs, whole.obs[2:11])
    first = Transitions(
        *(getattr(whole, name)[:9] for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated"))
    )
    assert not np.shares_memory(filled(first)._obs[0], whole.obs)
