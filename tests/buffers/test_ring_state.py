import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_ring import DICT, EXTRAS, RUNNING, TERMINATED, TRUNCATED, VECTOR, World

from rlexp.buffers.ring import ReplayBuffer
from rlexp.datasets.transitions import Transitions
from rlexp.errors import CheckpointError
from rlexp.tree import tree_map

END = st.sampled_from([RUNNING] * 5 + [TERMINATED, TRUNCATED])


def build(spec, num_envs, rows, n_step, seed=0, extras=None):
    buffer = ReplayBuffer(capacity=rows * num_envs, n_step=n_step)
    buffer.build(spec, num_envs, 0.9, seed, extras=extras)
    return buffer


def assert_same_batch(left, right):
    for name in left._fields:
        a, b = getattr(left, name), getattr(right, name)
        if isinstance(a, torch.Tensor):
            assert torch.equal(a, b), name
        elif isinstance(a, dict):
            assert a.keys() == b.keys()
            assert all(torch.equal(a[key], b[key]) for key in a), name
        else:
            assert a is b is None


class Saver:
    """Writes what is new as segments that are never touched again, as checkpoints do."""

    def __init__(self):
        self.segments = []
        self.mark = 0

    def save(self, buffer):
        start = max(self.mark, buffer.oldest_row)
        self.segments.append((start, copy.deepcopy(buffer.rows_between(start, buffer.stable_rows))))
        self.mark = buffer.stable_rows
        return through_json(buffer.state_dict(rows=False)), list(self.segments)


def through_json(state):
    """Everything but the arrays survives JSON; no key holds a slash."""
    if isinstance(state, dict):
        assert all(isinstance(key, str) and "/" not in key for key in state)
        return {key: through_json(value) for key, value in state.items()}
    return state.copy() if isinstance(state, np.ndarray) else json.loads(json.dumps(state))


@st.composite
def histories(draw):
    num_envs = draw(st.integers(1, 3))
    steps = st.lists(END, min_size=num_envs, max_size=num_envs)
    other = st.one_of(st.integers(0, num_envs - 1), st.sampled_from(["sample", "save", "save"]))
    events = draw(st.lists(st.one_of(steps, steps, steps, other), min_size=5, max_size=50))
    return num_envs, draw(st.integers(1, 9)), draw(st.integers(1, 3)), draw(st.integers(0, 99)), events


def happen(buffer, world, event):
    if isinstance(event, int):
        buffer._cut(event, buffer._leaves(tree_map(lambda leaf: leaf[0], world.obs())))
    elif event == "sample" and len(buffer):
        buffer.sample(5)
    elif isinstance(event, list):
        buffer.add(world.action(), world.step(event), extras=world.extras())


@pytest.mark.parametrize("spec", [VECTOR, DICT], ids=["vector", "dict"])
@given(history=histories(), order=st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_a_restored_buffer_samples_and_continues_bit_for_bit(spec, history, order):
    num_envs, rows, n_step, seed, events = history
    world, saver, restored = World(spec, num_envs, seed), Saver(), []
    buffer = build(spec, num_envs, rows, n_step, extras=EXTRAS)
    buffer.start(world.obs())
    for event in events:
        if event == "save":
            state, segments = saver.save(buffer)
            order.shuffle(segments)
            other = build(spec, num_envs, rows, n_step, seed=1, extras=EXTRAS)
            other.load_state_dict(state)
            for start, arrays in segments:
                other.load_rows(start, arrays)
            obs = [leaf[buffer._cursor] for leaf in buffer._obs_rows]
            other.start(buffer._tree(obs))  # as after an exact restore of the environments
            restored.append((other, copy.deepcopy(world)))
            continue
        for other, its_world in restored:
            happen(other, its_world, event)
        happen(buffer, world, event)
    for other, _ in restored:
        assert len(other) == len(buffer)
        if len(buffer):
            state = copy.deepcopy(buffer._generator.bit_generator.state)
            assert_same_batch(other.sample(40), buffer.sample(40))
            buffer._generator.bit_generator.state = state
        assert other._final.first == buffer._final.first
        assert other._final.next == buffer._final.next


def filled(spec=VECTOR, num_envs=2, rows=6, steps=15, n_step=2, seed=0):
    world = World(spec, num_envs, seed)
    buffer = build(spec, num_envs, rows, n_step)
    buffer.start(world.obs())
    for i in range(steps):
        buffer.add(world.action(), world.step([(i % 4 == 0) * TRUNCATED, (i % 3 == 0) * TERMINATED]))
    return buffer


def test_state_with_rows_is_the_whole_buffer():
    buffer, other = filled(), build(VECTOR, 2, 6, 2, seed=5)
    other.load_state_dict(through_json(buffer.state_dict()))
    assert_same_batch(other.sample(50), buffer.sample(50))


def test_state_replaces_what_the_buffer_held_before():
    buffer, other = filled(), filled(steps=11, seed=3)
    other.load_state_dict(through_json(buffer.state_dict()))
    assert_same_batch(other.sample(50), buffer.sample(50))


def test_no_end_of_an_earlier_content_survives_a_restore():
    buffer, other = filled(steps=1), filled(steps=5)
    other.load_state_dict(through_json(buffer.state_dict()))
    for one in (buffer, other):
        world = World(VECTOR, 2, seed=9)
        for _ in range(4):
            one.add(world.action(), world.step([RUNNING, RUNNING]))
    assert_same_batch(other.sample(50), buffer.sample(50))


def test_cutting_the_newest_row_cannot_contradict_a_written_segment():
    buffer = filled(steps=6)
    segment = copy.deepcopy(buffer.rows_between(0, buffer.stable_rows))
    for env in (0, 1):
        buffer._cut(env, buffer._leaves(np.zeros(3, np.float32)))
    after = buffer.rows_between(0, 5)
    assert all(np.array_equal(segment[key], after[key]) for key in segment)
    assert buffer.stable_rows == 5


def test_rows_carry_the_final_observations_of_their_ends():
    buffer = filled(steps=6, rows=10)
    arrays = buffer.rows_between(2, 5)
    np.testing.assert_array_equal(arrays["truncated"], [[False, False], [False, False], [True, False]])
    np.testing.assert_array_equal(arrays["terminated"], [[False, False], [False, True], [False, False]])
    expected = buffer.gather(np.array([3 * 2 + 1, 4 * 2])).next_obs.numpy()  # (row 3, env 1) and (row 4, env 0)
    np.testing.assert_array_equal(arrays["final_obs"], expected)


def test_rows_no_longer_stored_cannot_be_asked_for():
    buffer = filled(rows=6, steps=15)
    assert (buffer.oldest_row, buffer.stable_rows) == (9, 14)
    with pytest.raises(ValueError, match="not all stored"):
        buffer.rows_between(8, 12)


def test_state_of_a_dataset_is_restored_without_its_rows():
    world = World(VECTOR, 20)
    ends = np.arange(20) % 7 == 6
    data = Transitions(world.obs(), world.action(), np.ones(20, np.float32), world.obs(), ends, np.zeros(20, bool))
    buffers = []
    for _ in range(2):
        buffer = ReplayBuffer()
        buffer.build(VECTOR, 1, 0.9, 0, capacity=20)
        buffer.extend(data)
        buffers.append(buffer)
    buffers[0].sample(7)
    buffers[1].load_state_dict(through_json(buffers[0].state_dict(rows=False)))
    assert_same_batch(buffers[0].sample(30), buffers[1].sample(30))
    assert buffers[1]._missing == 0


def test_a_missing_segment_is_noticed_before_anything_is_collected():
    buffer, other = filled(), build(VECTOR, 2, 6, 2)
    other.load_state_dict(buffer.state_dict(rows=False))
    with pytest.raises(CheckpointError, match="lacks 5 rows"):
        other.start(np.zeros((2, 3), np.float32))


def test_a_buffer_of_another_size_is_refused():
    with pytest.raises(CheckpointError, match=r"buffer.capacity and env.num_envs"):
        build(VECTOR, 2, 7, 2).load_state_dict(filled().state_dict())


def damage(change):
    state = filled().state_dict()
    change(state)
    return state


DAMAGES = {
    "no counter": lambda s: s.pop("rows"),
    "text counter": lambda s: s.update(rows="5"),
    "negative counter": lambda s: s.update(first_end=-1),
    "bool counter": lambda s: s.update(rows=True),
    "huge counter": lambda s: s.update(rows=10**30),
    "many ends": lambda s: s.update(next_end=10**9),
    "ends reversed": lambda s: s.update(first_end=s["next_end"] + 1),
    "no generator": lambda s: s.pop("generator"),
    "bad generator": lambda s: s.update(generator={"bit_generator": "PCG64", "state": "x"}),
    "other generator": lambda s: s.update(generator={"bit_generator": "MT19937"}),
    "no newest row": lambda s: s.pop("newest_row"),
    "no next obs": lambda s: s["next_obs"].pop("obs"),
    "text for rows": lambda s: s.update(older_rows="rows"),
    "wrong shape": lambda s: s["older_rows"].update(action=s["older_rows"]["action"][:, :, :1]),
    "wrong dtype": lambda s: s["older_rows"].update(obs=s["older_rows"]["obs"].astype(np.float64)),
    "fewer finals": lambda s: s["older_rows"].update(final_obs=s["older_rows"]["final_obs"][:-1]),
    "unknown ends": lambda s: s["older_rows"].update(end=s["older_rows"]["end"] + 99),
    "no rewards": lambda s: s["older_rows"].pop("reward"),
    "scalar rewards": lambda s: s["older_rows"].update(reward=np.float32(1)),
    "extra rows": lambda s: s["older_rows"].update({k: np.concatenate([v, v]) for k, v in s["older_rows"].items()}),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_state_is_refused(name):
    with pytest.raises(CheckpointError):
        build(VECTOR, 2, 6, 2).load_state_dict(damage(DAMAGES[name]))


@pytest.mark.parametrize("start", [-1, 2.5, True, 10**30, None])
def test_a_segment_must_begin_at_a_row_number(start):
    buffer = filled()
    with pytest.raises(CheckpointError):
        buffer.load_rows(start, buffer.rows_between(10, 12))
