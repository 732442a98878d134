import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_ring import RUNNING, TERMINATED, TRUNCATED, VECTOR, NaiveBuffer, World

from rlexp.buffers import PrioritizedBuffer
from rlexp.datasets.transitions import Transitions
from rlexp.errors import CheckpointError, RunError

END = st.sampled_from([RUNNING] * 5 + [TERMINATED, TRUNCATED])


def build(num_envs=1, rows=10, n_step=1, seed=0, **settings):
    buffer = PrioritizedBuffer(capacity=rows * num_envs, n_step=n_step, **settings)
    buffer.build(VECTOR, num_envs, 0.9, seed)
    return buffer


def filled(steps, num_envs=1, **settings):
    """A buffer after some steps in which nothing ended, and the world they came from."""
    buffer, world = build(num_envs, **settings), World(VECTOR, num_envs)
    buffer.start(world.obs())
    step(buffer, world, steps)
    return buffer, world


def step(buffer, world, steps=1):
    for _ in range(steps):
        buffer.add(world.action(), world.step([RUNNING] * world.num_envs))


def assert_same_batch(left, right):
    for name in ("obs", "action", "reward", "next_obs", "discount", "weight", "index"):
        assert torch.equal(getattr(left, name), getattr(right, name)), name


# --- how it samples -----------------------------------------------------------------------------------------------


def test_places_are_drawn_in_proportion_to_their_priorities():
    buffer, _ = filled(4, alpha=0.5, epsilon=1e-9)
    buffer.sample(1)
    buffer.update_priorities(np.arange(4), np.array([1.0, 4.0, 9.0, 16.0]))  # to the power of 0.5: 1, 2, 3, 4
    counts = np.bincount(np.concatenate([buffer.sample(1).index.numpy() for _ in range(4000)]), minlength=4)
    np.testing.assert_allclose(counts / 4000, [0.1, 0.2, 0.3, 0.4], atol=0.03)


def test_a_batch_takes_one_from_each_equal_share_of_the_total():
    buffer, _ = filled(4, alpha=1.0, epsilon=1e-9)
    buffer.sample(1)
    buffer.update_priorities(np.arange(4), np.array([1.0, 4.0, 3.0, 2.0]))
    for _ in range(20):  # ten shares of one each
        assert np.bincount(buffer.sample(10).index.numpy(), minlength=4).tolist() == [1, 4, 3, 2]


def test_weights_are_importance_ratios_divided_by_the_largest_of_the_batch():
    buffer, _ = filled(4, alpha=1.0, beta=0.5, final_beta=0.9, epsilon=1e-9)
    buffer.sample(1)
    buffer.update_priorities(np.arange(4), np.array([1.0, 4.0, 3.0, 2.0]))
    for progress, beta in ((0.0, 0.5), (0.25, 0.6), (1.0, 0.9)):
        buffer.set_progress(progress)
        batch = buffer.sample(10, batches=2)
        probability = np.array([0.1, 0.4, 0.3, 0.2])[batch.index.numpy()]
        ratio = (4 * probability) ** -beta
        np.testing.assert_allclose(batch.weight.numpy(), ratio / ratio.max(), rtol=1e-6)
        assert batch.weight.dtype == torch.float32


def test_each_of_several_batches_is_stratified_and_weighted_by_itself():
    """A rare transition with the largest weight of all lies in few batches: it must not shrink the others' weights."""
    buffer, _ = filled(50, rows=50, alpha=1.0, epsilon=1e-9)
    buffer.sample(1)
    buffer.update_priorities(np.arange(50), np.linspace(0.01, 1.0, 50))
    together = buffer.sample(5, batches=40)
    index, weight = together.index.reshape(40, 5), together.weight.reshape(40, 5)
    assert (weight.amax(1) == 1).all()
    assert len({tuple(row.tolist()) for row in index}) > 20
    assert (index.diff(dim=1) >= 0).all()  # a batch runs over all shares, from the first place to the last


def test_batches_drawn_together_or_one_by_one_are_the_same():
    (one, _), (other, _) = filled(30), filled(30)
    for buffer in (one, other):
        buffer.sample(8)
        buffer.update_priorities(np.arange(10), np.linspace(0.1, 3.0, 10))
    together = one.sample(8, batches=3)
    for i in range(3):
        alone = other.sample(8)
        assert torch.equal(together.index[8 * i : 8 * i + 8], alone.index)
        assert torch.equal(together.weight[8 * i : 8 * i + 8], alone.weight)


def test_alpha_zero_is_uniform_with_weights_of_one():
    buffer, _ = filled(5, alpha=0.0)
    buffer.sample(1)
    buffer.update_priorities(np.arange(5), np.array([1.0, 100.0, 0.0, 5.0, 3.0]))
    batch = buffer.sample(20)
    assert np.bincount(batch.index.numpy()).tolist() == [4] * 5
    assert (batch.weight == 1).all()


# --- what priorities transitions have -------------------------------------------------------------------------------


def test_new_transitions_have_the_largest_priority_seen_so_far():
    buffer, world = filled(3, alpha=1.0, epsilon=0.5)
    buffer.sample(1)
    assert buffer._priorities[np.arange(5)].tolist() == [1, 1, 1, 0, 0]  # one, as long as nothing is known
    buffer.update_priorities(np.array([0, 1, 1]), np.array([7.0, 3.0, -2.0]))  # of the second one the later error
    step(buffer, world)
    buffer.sample(1)
    assert buffer._priorities[np.arange(5)].tolist() == [7.5, 2.5, 1, 7.5, 0]
    buffer.update_priorities(np.arange(4), np.zeros(4))
    step(buffer, world)
    buffer.sample(1)
    assert buffer._priorities[np.arange(6)].tolist() == [0.5] * 4 + [7.5, 0]  # the largest of all time


@given(st.integers(1, 3), st.integers(1, 9), st.lists(st.integers(1, 30), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_only_stored_transitions_have_priorities_however_the_ring_wraps(num_envs, rows, bursts):
    buffer, world = filled(0, num_envs, rows=rows)
    total = 0
    for burst in bursts:
        step(buffer, world, burst)
        total += burst
        index = buffer.sample(64).index.numpy()
        stored = np.arange(max(total - rows, 0), total) % (rows + 1)
        ranked = np.flatnonzero(buffer._priorities[np.arange(buffer._flat)])
        assert sorted(ranked) == sorted((stored[:, None] * num_envs + np.arange(num_envs)).reshape(-1))
        assert set(index) <= set(ranked)
        buffer.update_priorities(index, np.full(64, 1.0 + burst))


def test_errors_that_are_not_finite_end_the_run_with_a_reason():
    buffer, _ = filled(3)
    index = buffer.sample(2).index.numpy()
    for bad in (np.nan, np.inf):
        with pytest.raises(RunError, match="diverged"):
            buffer.update_priorities(index, np.array([1.0, bad]))


# --- with n-step returns ------------------------------------------------------------------------------------------


@st.composite
def histories(draw):
    num_envs = draw(st.integers(1, 3))
    steps = st.lists(END, min_size=num_envs, max_size=num_envs)
    events = draw(st.lists(st.one_of(steps, steps, steps, st.integers(0, num_envs - 1)), min_size=1, max_size=40))
    return num_envs, draw(st.integers(1, 9)), draw(st.integers(1, 4)), draw(st.integers(0, 99)), events


@given(histories())
@settings(max_examples=80, deadline=None)
def test_n_step_windows_are_those_of_a_plain_loop_however_episodes_end(history):
    num_envs, rows, n_step, seed, events = history
    world, rng = World(VECTOR, num_envs, seed), np.random.default_rng(seed)
    buffer, naive = build(num_envs, rows, n_step), NaiveBuffer(rows, num_envs, n_step, 0.9)
    obs = world.obs()
    buffer.start(obs)
    naive.start(obs)
    for event in events:
        if isinstance(event, int):
            first = world.obs()[0]
            buffer._cut(event, buffer._leaves(first))
            naive.cut(event, first)
            continue
        action, happened = world.action(), world.step(event)
        buffer.add(action, happened)
        naive.add(action, happened)
        batch = buffer.sample(6)
        for i, place in enumerate(batch.index.tolist()):
            at, env = divmod(place, num_envs)
            row = next(row for row in naive.stored() if row % (rows + 1) == at)
            expected = naive.sample_at(row, env)
            np.testing.assert_array_equal(batch.obs[i], expected["obs"])
            np.testing.assert_array_equal(batch.next_obs[i], expected["next_obs"])
            np.testing.assert_allclose(batch.reward[i], expected["reward"], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(batch.discount[i], expected["discount"], rtol=1e-6)
        buffer.update_priorities(batch.index.numpy(), rng.exponential(size=6))


# --- saving -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("steps", [5, 12, 47])
def test_a_restored_buffer_draws_and_learns_bit_for_bit(steps, segments):
    buffer, _ = filled(steps, 2, n_step=2)
    for _ in range(3):
        batch = buffer.sample(8)
        buffer.update_priorities(batch.index.numpy(), batch.reward.numpy())
    step(buffer, World(VECTOR, 2, seed=1))  # rows that have no priority yet
    other = build(2, n_step=2, seed=9)
    other.load_state_dict(buffer.state_dict(rows=not segments))
    if segments:
        other.load_rows(buffer.oldest_row, buffer.rows_between(buffer.oldest_row, buffer.stable_rows))
    worlds = World(VECTOR, 2, seed=5), World(VECTOR, 2, seed=5)
    for _ in range(4):
        left, right = buffer.sample(8), other.sample(8)
        assert_same_batch(left, right)
        for each, batch, world in zip((buffer, other), (left, right), worlds):
            each.update_priorities(batch.index.numpy(), batch.reward.numpy())
            step(each, world, 3)
    for mine, theirs in zip(buffer._priorities.levels, other._priorities.levels, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    "damage",
    [
        {"priority": None},
        {"priority": np.ones(3)},
        {"priority": np.ones(4, np.float32)},
        {"priority": np.array([1, 1, np.nan, 1.0])},
        {"priority": np.array([1, 1, 0, 1.0])},
        {"largest_priority": np.inf},
        {"largest_priority": "1"},
    ],
)
def test_damaged_priorities_are_refused(damage):
    buffer, _ = filled(4)
    with pytest.raises(CheckpointError, match="priorit"):
        build().load_state_dict(buffer.state_dict() | damage)


def test_a_dataset_is_sampled_by_priority_too():
    buffer = build(rows=6, alpha=1.0)
    obs = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    flags = np.zeros(6, bool)
    data = Transitions(obs, np.zeros((6, 2), np.float32), np.ones(6, np.float32), obs + 1, flags, flags)
    buffer.extend(data)
    assert sorted(buffer.sample(6).index.tolist()) == list(range(6))
    buffer.update_priorities(np.arange(6), np.array([0, 0, 0, 0, 0, 1.0]))
    assert buffer.sample(6).index.tolist() == [5] * 6
