import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_ring import ACTION, DICT, EXTRAS, RUNNING, TERMINATED, TRUNCATED, VECTOR, NaiveBuffer, World

import rlexp.buffers.ring as ring_module
from rlexp.buffers.ring import ReplayBuffer
from rlexp.datasets.transitions import Transitions
from rlexp.envs.spec import EnvSpec, Leaf, ObsSpec
from rlexp.envs.vector import VecStep
from rlexp.errors import ConfigError
from rlexp.tree import tree_map
from tests.trees import tree_equal

END = st.sampled_from([RUNNING] * 5 + [TERMINATED, TRUNCATED])
SCALAR = EnvSpec("Scalar-v0", ObsSpec({"": Leaf("box", (1,), "float32")}, single=True), ACTION)


def build(spec=VECTOR, num_envs=1, rows=10, n_step=1, gamma=0.9, seed=0, extras=None):
    buffer = ReplayBuffer(capacity=rows * num_envs, n_step=n_step)
    buffer.build(spec, num_envs, gamma, seed, extras=extras)
    return buffer


def numpy_tree(obs):
    return tree_map(lambda leaf: leaf.numpy(), obs)


def place(buffer, row, env):
    return (row % buffer._ring) * buffer._num_envs + env


def assert_same(buffer: ReplayBuffer, naive: NaiveBuffer) -> None:
    """Every stored transition, gathered by place, is what the naive buffer says."""
    pairs = [(row, env) for row in naive.stored() for env in range(naive.num_envs)]
    assert len(buffer) == len(pairs)
    if not pairs:
        return
    batch = buffer.gather(np.array([place(buffer, row, env) for row, env in pairs]))
    for i, (row, env) in enumerate(pairs):
        expected = naive.sample_at(row, env)
        pick = lambda leaf, i=i: leaf[i].numpy()  # noqa: E731
        assert tree_equal(tree_map(pick, batch.obs), expected["obs"])
        assert tree_equal(tree_map(pick, batch.next_obs), expected["next_obs"])
        np.testing.assert_array_equal(batch.action[i].numpy(), expected["action"])
        np.testing.assert_allclose(batch.reward[i].item(), expected["reward"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch.discount[i].item(), expected["discount"], rtol=1e-6)
        assert tree_equal(tree_map(pick, batch.extras), expected["extras"])


@st.composite
def histories(draw):
    """Settings of a buffer, and a list of what happens to it: the ends at a step, or the index of an episode cut."""
    num_envs = draw(st.integers(1, 3))
    steps = st.lists(END, min_size=num_envs, max_size=num_envs)
    events = draw(st.lists(st.one_of(steps, steps, steps, steps, st.integers(0, num_envs - 1)), max_size=40))
    return num_envs, draw(st.integers(1, 9)), draw(st.integers(1, 4)), draw(st.integers(0, 99)), events


@pytest.mark.parametrize("spec", [VECTOR, DICT], ids=["vector", "dict"])
@given(history=histories())
@settings(max_examples=60, deadline=None)
def test_every_stored_transition_equals_that_of_a_naive_buffer(spec, history):
    num_envs, rows, n_step, seed, events = history
    world = World(spec, num_envs, seed)
    buffer = build(spec, num_envs, rows, n_step, extras=EXTRAS)
    naive = NaiveBuffer(rows, num_envs, n_step, 0.9)
    first = world.obs()
    buffer.start(first)
    naive.start(first)
    for event in events:
        if isinstance(event, int):
            obs = tree_map(lambda leaf: leaf[0], world.obs())
            buffer._cut(event, buffer._leaves(obs))
            naive.cut(event, obs)
        else:
            action, step, extras = world.action(), world.step(event), world.extras()
            buffer.add(action, step, extras=extras)
            naive.add(action, step, extras)
        assert_same(buffer, naive)


def scalar_step(obs, reward, end=RUNNING, final=None):
    obs = np.array([[obs]], np.float32)
    next_obs = obs if end == RUNNING else np.array([[final]], np.float32)
    flags = np.array([end == TERMINATED]), np.array([end == TRUNCATED])
    return VecStep(obs, next_obs, np.array([reward], np.float32), *flags, [])


def scalar_buffer(steps, rows=10, n_step=3, gamma=0.5):
    buffer = build(SCALAR, rows=rows, n_step=n_step, gamma=gamma)
    buffer.start(np.array([[0.0]], np.float32))
    for step in steps:
        buffer.add(np.zeros((1, 2), np.float32), step)
    return buffer


def three(buffer, row):
    batch = buffer.gather(np.array([row % buffer._ring]))
    return batch.reward.item(), batch.discount.item(), batch.next_obs.item()


def test_three_steps_are_summed_and_discounted_by_hand():
    buffer = scalar_buffer([scalar_step(1, 1), scalar_step(2, 2), scalar_step(3, 4), scalar_step(4, 8)])
    assert three(buffer, 0) == (1 + 0.5 * 2 + 0.25 * 4, 0.125, 3.0)


def test_window_at_the_newest_row_is_shorter_and_bootstraps_from_the_newest_observation():
    buffer = scalar_buffer([scalar_step(1, 1), scalar_step(2, 2), scalar_step(3, 4)])
    assert three(buffer, 1) == (2 + 0.5 * 4, 0.25, 3.0)
    assert three(buffer, 2) == (4.0, 0.5, 3.0)


def test_termination_ends_the_window_with_discount_zero_and_shows_the_final_observation():
    buffer = scalar_buffer([scalar_step(1, 1), scalar_step(50, 2, TERMINATED, final=9), scalar_step(51, 4)])
    assert three(buffer, 0) == (1 + 0.5 * 2, 0.0, 9.0)
    assert three(buffer, 1) == (2.0, 0.0, 9.0)
    assert three(buffer, 2) == (4.0, 0.5, 51.0)


def test_truncation_bootstraps_with_the_final_observation():
    buffer = scalar_buffer([scalar_step(1, 1), scalar_step(50, 2, TRUNCATED, final=9), scalar_step(51, 4)])
    assert three(buffer, 0) == (1 + 0.5 * 2, 0.25, 9.0)
    assert three(buffer, 1) == (2.0, 0.5, 9.0)
    assert buffer.gather(np.array([2])).obs.item() == 50.0


def test_a_window_crosses_the_seam_of_the_ring():
    steps = [scalar_step(i + 1, 2.0**i) for i in range(9)]
    buffer = scalar_buffer(steps, rows=4)  # rows 5 to 8 are stored in places 0, 1, 2, 3 of five
    assert three(buffer, 5) == (32 + 0.5 * 64 + 0.25 * 128, 0.125, 8.0)
    assert three(buffer, 8) == (256.0, 0.5, 9.0)
    buffer = scalar_buffer(steps[:6], rows=4)  # rows 2 to 5 in places 2, 3, 4, 0
    assert three(buffer, 3) == (8 + 0.5 * 16 + 0.25 * 32, 0.125, 6.0)


def test_an_overwritten_end_does_not_end_a_later_episode():
    steps = [scalar_step(1, 1, TERMINATED, final=7)] + [scalar_step(i, 1) for i in range(2, 8)]
    buffer = scalar_buffer(steps, rows=3)
    batch = buffer.sample(200)
    assert (batch.discount > 0).all()
    assert len(buffer._final) == 0


def test_places_of_final_observations_are_recycled():
    buffer = scalar_buffer([scalar_step(i, 1, TERMINATED, final=-i) for i in range(1000)], rows=10)
    assert len(buffer._final) == 10
    assert buffer._final.size == 16


def test_final_observations_survive_the_growth_of_their_store():
    steps = [scalar_step(i, 1, TERMINATED, final=-i) for i in range(200)]
    for last in (7, 16, 17, 40, 200):  # the ring of 50 rows has also dropped some by then
        buffer = scalar_buffer(steps[:last], rows=50)
        first = max(last - 50, 0)
        batch = buffer.gather(np.arange(first, last) % buffer._ring)
        assert batch.next_obs[:, 0].tolist() == [-i for i in range(first, last)]
        assert buffer._final.rows[np.arange(first, last) % buffer._final.size].tolist() == list(range(first, last))


def test_the_store_of_final_observations_grows_while_its_queue_is_wrapped():
    ends = [RUNNING] * 30 + [TERMINATED] * 10 + [RUNNING] * 35 + [TERMINATED] * 30
    buffer = scalar_buffer([scalar_step(i, 1, end, final=-i) for i, end in enumerate(ends)], rows=40)
    assert buffer._final.first == 10
    assert buffer._final.size == 32
    batch = buffer.gather(np.arange(75, 105) % buffer._ring)
    assert batch.next_obs[:, 0].tolist() == [-i for i in range(75, 105)]


def test_cut_truncates_the_last_transition_with_its_stored_next_observation():
    buffer = scalar_buffer([scalar_step(1, 1), scalar_step(2, 2)])
    buffer._cut(0, buffer._leaves(np.array([77.0], np.float32)))
    buffer.add(np.zeros((1, 2), np.float32), scalar_step(78, 4))
    assert three(buffer, 0) == (1 + 0.5 * 2, 0.25, 2.0)
    batch = buffer.gather(np.array([2]))
    assert (batch.obs.item(), batch.next_obs.item()) == (77.0, 78.0)


def test_cut_twice_or_after_an_end_only_replaces_the_first_observation():
    buffer = scalar_buffer([scalar_step(5, 1, TERMINATED, final=9)])
    buffer._cut(0, buffer._leaves(np.array([6.0], np.float32)))
    buffer._cut(0, buffer._leaves(np.array([7.0], np.float32)))
    buffer.add(np.zeros((1, 2), np.float32), scalar_step(8, 4))
    assert three(buffer, 0) == (1.0, 0.0, 9.0)
    assert buffer.gather(np.array([1])).obs.item() == 7.0
    assert len(buffer._final) == 1


def test_start_with_the_expected_observations_changes_nothing_and_with_others_cuts():
    world = World(VECTOR, 2)
    buffer = build(num_envs=2)
    buffer.start(world.obs())
    step = world.step([RUNNING, RUNNING])
    buffer.add(world.action(), step)
    buffer.start(step.obs)
    assert len(buffer._final) == 0
    other = step.obs.copy()
    other[1] += 1
    buffer.start(other)
    assert buffer._flag_rows[0].tolist() == [0, 2]
    np.testing.assert_array_equal(buffer.gather(np.array([1])).next_obs[0].numpy(), step.obs[1])
    np.testing.assert_array_equal(buffer._obs_rows[0][1], other)


def test_samples_are_uniform_over_all_stored_transitions():
    world = World(VECTOR, 3)
    buffer = build(num_envs=3, rows=7)
    buffer.start(world.obs())
    for _ in range(17):
        buffer.add(world.action(), world.step([RUNNING] * 3))
    index = buffer.sample(210_000).index.numpy()
    places, counts = np.unique(index, return_counts=True)
    assert sorted(places) == sorted(place(buffer, row, env) for row in range(10, 17) for env in range(3))
    chi_square = ((counts - 10_000) ** 2 / 10_000).sum()
    assert chi_square < 50  # 20 degrees of freedom: exceeded with probability 0.0002


def test_samples_are_drawn_by_the_seed_and_are_own_memory():
    batches = []
    for seed in (1, 1, 2):
        world, buffer = World(VECTOR, 1), build(seed=seed)
        buffer.start(world.obs())
        for _ in range(6):
            buffer.add(world.action(), world.step([RUNNING]))
        batches.append(buffer.sample(64))
    assert torch.equal(batches[0].index, batches[1].index)
    assert not torch.equal(batches[0].index, batches[2].index)
    before = buffer._obs_rows[0].copy()
    batches[2].obs.fill_(0)
    np.testing.assert_array_equal(buffer._obs_rows[0], before)


def test_batch_has_the_specs_dtypes():
    world, buffer = World(DICT, 2), build(DICT, num_envs=2)
    buffer.start(world.obs())
    buffer.add(world.action(), world.step([RUNNING, TRUNCATED]))
    batch = buffer.sample(5)
    assert {name: leaf.dtype for name, leaf in batch.obs.items()} == {
        "a/b": torch.float32,
        "image": torch.uint8,
        "n": torch.int64,
    }
    assert batch.action.dtype == torch.int64
    assert batch.reward.dtype == batch.discount.dtype == torch.float32
    assert batch.weight is None
    assert batch.index.dtype == torch.int64


def test_a_given_reward_replaces_the_steps_own():
    world, buffer = World(VECTOR, 2), build(num_envs=2)
    buffer.start(world.obs())
    buffer.add(world.action(), world.step([0, 0]), reward=np.array([3, 4], np.float32))
    assert buffer.gather(np.array([0, 1])).reward.tolist() == [3, 4]


def test_set_gamma_applies_to_the_next_sample():
    buffer = scalar_buffer([scalar_step(1, 1), scalar_step(2, 2), scalar_step(3, 4)])
    buffer.set_gamma(1.0)
    assert three(buffer, 0) == (7.0, 1.0, 3.0)


def test_capacity_counts_transitions_of_all_environments():
    world, buffer = World(VECTOR, 3), ReplayBuffer(capacity=10)
    buffer.build(VECTOR, 3, 0.9, 0)
    buffer.start(world.obs())
    for _ in range(8):
        buffer.add(world.action(), world.step([0, 0, 0]))
    assert len(buffer) == 9


def test_empty_buffer_refuses_to_sample():
    with pytest.raises(ValueError, match="empty"):
        build().sample(1)


def test_memory_that_does_not_fit_is_refused_before_allocating(monkeypatch):
    monkeypatch.setattr(ring_module, "available_memory", lambda: 100_000)
    buffer = ReplayBuffer(capacity=1_000_000)
    each = 3 * 4 + 2 * 4 + 4 + 1 + 8
    assert buffer.bytes_per_transition(VECTOR) == each
    assert buffer.memory(VECTOR, 4) == 1_000_004 * each
    with pytest.raises(
        ConfigError, match=r"buffer.capacity=1000000 needs 0.033 GB \(33 bytes.*capacity of (\d+)"
    ) as error:
        buffer.build(VECTOR, 4, 0.9, 0)
    fits = int(str(error.value).split("capacity of ")[1].split()[0])
    assert 2_900 <= fits <= 3_030
    ReplayBuffer(capacity=fits).build(VECTOR, 4, 0.9, 0)


def test_capacity_below_the_number_of_environments_is_refused():
    with pytest.raises(ConfigError, match=r"buffer\.capacity=4 or more"):
        ReplayBuffer(capacity=3).build(VECTOR, 4, 0.9, 0)


@given(
    ends=st.lists(END, min_size=1, max_size=30),
    broken=st.sets(st.integers(0, 29)),
    n_step=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_extend_equals_a_naive_buffer_in_which_broken_chains_are_truncated(ends, broken, n_step):
    world, naive = World(VECTOR, 1), NaiveBuffer(len(ends), 1, n_step, 0.9)
    naive.start(world.obs())
    for i, end in enumerate(ends):
        naive.add(world.action(), world.step([end]))
        if i in broken and i < len(ends) - 1:
            naive.cut(0, world.obs()[0])
    rows = [row[0] for row in naive.rows]
    column = lambda key: np.stack([row[key] for row in rows])  # noqa: E731
    data = Transitions(
        obs=column("obs"),
        action=column("action"),
        reward=column("reward").astype(np.float32),
        next_obs=column("next_obs"),
        terminated=np.array(ends) == TERMINATED,
        truncated=np.array(ends) == TRUNCATED,  # without the broken ones
    )
    buffer = ReplayBuffer(n_step=n_step)
    buffer.build(VECTOR, 1, 0.9, 0, capacity=len(ends))
    buffer.extend(data)
    assert_same(buffer, naive)
    kept = sum(row["end"] != RUNNING for row in rows)
    assert len(buffer._final) == kept  # every other observation is stored once


def test_a_dataset_can_be_followed_by_steps():
    world = World(VECTOR, 1)
    naive = NaiveBuffer(8, 1, 2, 0.9)
    naive.start(world.obs())
    for end in (RUNNING, TRUNCATED, RUNNING):
        naive.add(world.action(), world.step([end]))
    buffer = build(rows=8, n_step=2)
    rows = [row[0] for row in naive.rows]
    columns = {key: np.stack([row[key] for row in rows]) for key in ("obs", "action", "reward", "next_obs", "end")}
    ends = columns.pop("end")
    buffer.extend(Transitions(**columns, terminated=ends == TERMINATED, truncated=ends == TRUNCATED))
    first = world.obs()
    buffer.start(first)
    naive.cut(0, first[0])
    for _ in range(9):
        action, step = world.action(), world.step([RUNNING])
        buffer.add(action, step)
        naive.add(action, step)
        assert_same(buffer, naive)


def test_extend_refuses_what_does_not_fit():
    world = World(VECTOR, 5)
    flags = np.zeros(5, bool)
    data = Transitions(world.obs(), world.action(), np.zeros(5, np.float32), world.obs(), flags, flags)
    with pytest.raises(ConfigError, match="dataset of 5"):
        build(rows=4).extend(data)
    with pytest.raises(ValueError, match="one environment"):
        build(rows=10, num_envs=2).extend(data)


@given(history=histories())
@settings(max_examples=40, deadline=None)
def test_transitions_give_back_what_is_stored_in_time_order(history):
    num_envs, rows, _, seed, events = history
    world, buffer, naive = World(DICT, num_envs, seed), build(DICT, num_envs, rows), NaiveBuffer(rows, num_envs, 1, 0.9)
    first = world.obs()
    buffer.start(first)
    naive.start(first)
    for event in events:
        if not isinstance(event, int):
            action, step = world.action(), world.step(event)
            buffer.add(action, step)
            naive.add(action, step)
    data = buffer.transitions()
    expected = [(naive.rows[row][env], row) for env in range(num_envs) for row in naive.stored()]
    assert len(data) == len(expected)
    for i, (transition, row) in enumerate(expected):
        pick = lambda leaf, i=i: leaf[i]  # noqa: E731
        assert tree_equal(tree_map(pick, data.obs), transition["obs"])
        assert tree_equal(tree_map(pick, data.next_obs), transition["next_obs"])
        assert data.action[i] == transition["action"]
        assert math.isclose(data.reward[i], transition["reward"])
        newest = row == len(naive.rows) - 1
        assert data.terminated[i] == (transition["end"] == TERMINATED)
        assert data.truncated[i] == (transition["end"] == TRUNCATED or (newest and not data.terminated[i]))


def test_an_empty_observation_array_is_stored():
    spec = EnvSpec("Blind-v0", ObsSpec({"": Leaf("box", (0,), "float32")}, single=True), ACTION)
    world, buffer = World(spec, 2), build(spec, num_envs=2)
    buffer.start(world.obs())
    buffer.add(world.action(), world.step([RUNNING, TERMINATED]))
    buffer.start(world.obs())
    assert buffer.sample(4).next_obs.shape == (4, 0)
