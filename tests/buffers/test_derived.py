"""The columns mc_return and next_action, against a naive buffer of lists and numbers worked out by hand."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_ring import DICT, RUNNING, TERMINATED, TRUNCATED, VECTOR, NaiveBuffer, World

from rlexp.buffers.derived import ReturnsToGo, discounted_returns, lambda_returns
from rlexp.buffers.prioritized import PrioritizedBuffer
from rlexp.buffers.ring import ReplayBuffer
from rlexp.datasets.transitions import Transitions
from rlexp.errors import ConfigError
from rlexp.tree import tree_map

GAMMA = 0.9
BOTH = frozenset({"mc_return", "next_action"})
END = st.sampled_from([RUNNING] * 5 + [TERMINATED, TRUNCATED])


def build(spec=VECTOR, num_envs=1, rows=10, n_step=1, kind=ReplayBuffer, names=BOTH):
    buffer = kind(capacity=rows * num_envs, n_step=n_step)
    buffer.build(spec, num_envs, GAMMA, 0)
    buffer.derive(names, GAMMA)
    return buffer


FAILING = [
    # rewards, ends; returns with γ = 0.5, where −1 is the reward of failing and so −2 the return of an endless failure
    ([-1, -1, -1], [0, 0, 1], [-2, -2, -2]),
    ([-1, -1, 0], [0, 0, 1], [-1.5, -1, 0]),  # success at the end
    ([-1, 5, -1, -1], [0, 0, 0, 1], [1.125, 4.25, -2, -2]),  # and only before
    ([-1, -1, 0, -1, -1], [0, 1, 1, 0, 1], [-2, -2, 0, -2, -2]),  # three episodes
    ([-1, -1, -1, -1], [0, 1, 0, 0], [-2, -2, -1.5, -1]),  # the last one is still running
]


@pytest.mark.parametrize(("reward", "ended", "returns"), FAILING)
def test_an_episode_that_fails_in_a_sparse_task_fails_for_ever(reward, ended, returns):
    reward, ended = np.array(reward, np.float32), np.array(ended, bool)
    np.testing.assert_allclose(discounted_returns(reward, ended, 0.5, failure_reward=-1.0), returns)
    # step by step, beside an environment that ends nothing, in a ring that the rows wrap around in
    columns = ReturnsToGo(len(reward) + 1, 2, 0.5, failure_reward=-1.0)
    for i in range(len(reward)):
        columns.add((i + 3) % (len(reward) + 1), np.array([reward[i], 1.0]), np.array([ended[i], False]))
    places = [(i + 3) % (len(reward) + 1) for i in range(len(reward))]
    np.testing.assert_allclose(columns.rows[places, 0], returns)
    assert (columns.rows[places, 1] > 0).all()


def expected(naive: NaiveBuffer, row: int, env: int) -> tuple[float, np.ndarray]:
    """The two columns from their definitions."""
    rows = [each[env] for each in naive.rows]
    total, k = 0.0, row
    while True:
        total += naive.gamma ** (k - row) * rows[k]["reward"]
        if rows[k]["end"] != RUNNING or k + 1 == len(rows):
            break
        k += 1
    last = row
    while last - row + 1 < naive.n_step and rows[last]["end"] == RUNNING and last + 1 < len(rows):
        last += 1
    follows = rows[last]["end"] == RUNNING and last + 1 < len(rows)
    return total, rows[last + 1 if follows else last]["action"], follows


def assert_derived(buffer: ReplayBuffer, naive: NaiveBuffer) -> None:
    for row in naive.stored():
        for env in range(naive.num_envs):
            batch = buffer.gather(np.array([(row % buffer._ring) * buffer._num_envs + env]))
            mc_return, next_action, known = expected(naive, row, env)
            np.testing.assert_allclose(batch.extras["mc_return"].item(), mc_return, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(batch.extras["next_action"][0].numpy(), next_action)
            assert batch.extras["next_action_known"].tolist() == [known]


@st.composite
def histories(draw):
    num_envs = draw(st.integers(1, 3))
    steps = st.lists(END, min_size=num_envs, max_size=num_envs)
    events = draw(st.lists(st.one_of(steps, steps, steps, st.integers(0, num_envs - 1)), min_size=1, max_size=30))
    return num_envs, draw(st.integers(1, 9)), draw(st.integers(1, 3)), draw(st.integers(0, 99)), events


@pytest.mark.parametrize("spec", [VECTOR, DICT], ids=["vector", "dict"])
@given(history=histories())
@settings(max_examples=30, deadline=None)
def test_derived_columns_equal_those_of_a_naive_buffer_and_come_back_to_the_bit(spec, history):
    num_envs, rows, n_step, seed, events = history
    world, naive = World(spec, num_envs, seed), NaiveBuffer(rows, num_envs, n_step, GAMMA)
    buffer = build(spec, num_envs, rows, n_step)
    first = world.obs()
    buffer.start(first)
    naive.start(first)
    for event in events:
        if isinstance(event, int):
            obs = tree_map(lambda leaf: leaf[0], world.obs())
            buffer._cut(event, buffer._leaves(obs))
            naive.cut(event, obs)
        else:
            action, step = world.action(), world.step(event)
            buffer.add(action, step)
            naive.add(action, step)
    assert_derived(buffer, naive)

    again = build(spec, num_envs, rows, n_step)
    again.load_state_dict(copy.deepcopy(buffer.state_dict()))
    for _ in range(3):  # it also goes on as it would have
        if len(buffer):
            places = np.arange(buffer._flat)
            for name, column in buffer.gather(places).extras.items():
                rows = np.arange(buffer.oldest_row, buffer._rows) % buffer._ring
                stored = (rows[:, None] * num_envs + np.arange(num_envs)).reshape(-1)
                np.testing.assert_array_equal(column[stored], again.gather(places).extras[name][stored])
        action, step = world.action(), world.step([RUNNING] * num_envs)
        buffer.add(action, step)
        again.add(action, step)


def chain(rewards, terminated, truncated):
    """One-dimensional actions 0, 1, 2, … on a chain of observations."""
    count = len(rewards)
    obs = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    next_obs = np.concatenate([obs[1:], obs[-1:] + 3])
    action = np.repeat(np.arange(count, dtype=np.float32)[:, None], 2, 1)
    flags = [np.isin(np.arange(count), which) for which in (terminated, truncated)]
    return Transitions(obs, action, np.array(rewards, np.float32), next_obs, *flags)


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedBuffer])
def test_a_dataset_gets_its_returns_and_next_actions_by_hand(kind):
    data = chain([1, 2, 4, 8, 16], terminated=[1], truncated=[3])
    data.next_obs[2] += 100  # the chain is broken after row 2
    buffer = build(rows=5, kind=kind)
    buffer.extend(data)
    batch = buffer.gather(np.arange(5))
    np.testing.assert_allclose(batch.extras["mc_return"].numpy(), [1 + 0.9 * 2, 2, 4, 8, 16], rtol=1e-6)
    np.testing.assert_array_equal(batch.extras["next_action"][:, 0].numpy(), [1, 1, 2, 3, 4])
    assert batch.extras["next_action_known"].tolist() == [True, False, False, False, False]


def test_returns_of_long_data_equal_a_sum_over_definitions():
    rng = np.random.default_rng(0)
    reward, ended = rng.normal(size=140_000).astype(np.float32), rng.random(140_000) < 0.01
    returns = discounted_returns(reward, ended, 0.99)
    for row in (0, 65_535, 65_536, 131_072, 139_999):
        stop = next((i for i in range(row, len(reward)) if ended[i]), len(reward) - 1)
        truth = sum(0.99 ** (i - row) * float(reward[i]) for i in range(row, stop + 1))
        assert returns[row] == pytest.approx(truth, rel=1e-5)


def test_a_running_episode_counts_what_it_has_earned_so_far():
    world, buffer = World(VECTOR, 1), build(rows=3)
    buffer.start(world.obs())
    for reward in (1.0, 2.0, 4.0, 8.0):  # the ring holds the newest three
        buffer.add(world.action(), world.step([RUNNING]), np.array([reward], np.float32))
    batch = buffer.gather(np.array([1, 2, 3]))
    truth = [2 + 0.9 * 4 + 0.81 * 8, 4 + 0.9 * 8, 8]
    np.testing.assert_allclose(batch.extras["mc_return"].numpy(), truth, rtol=1e-6)


def test_only_what_is_asked_for_is_delivered():
    for names in (frozenset(), frozenset({"mc_return"}), frozenset({"next_action"})):
        buffer = build(rows=2, names=names)
        buffer.extend(chain([1, 2], [], []))
        together = {"next_action_known"} if "next_action" in names else set()
        assert set(buffer.gather(np.arange(2)).extras) == names | together


def test_a_column_that_nobody_can_derive_is_refused():
    with pytest.raises(ConfigError, match=r"'advantage'.*mc_return"):
        build(names=frozenset({"advantage"}))


# ---- lambda_return


def test_lambda_returns_by_hand():
    # V = 10, 20, 30 and 40 of the next state; γ = 0.5; the second episode is terminated at once
    value, next_value = np.array([10.0, 20.0, 30.0]), np.array([20.0, 40.0, 99.0])
    reward, discount, ended = np.ones(3), np.array([0.5, 0.5, 0.0]), np.array([False, True, True])
    # λ = 1: 1 + 0.5 (1 + 0.5 · 40), 1 + 0.5 · 40, 1.  λ = 0: 1 + 0.5 V(s′)
    assert lambda_returns(reward, discount, ended, value, next_value, 0.5).tolist() == [11.5, 21.0, 1.0]
    assert lambda_returns(reward, discount, ended, value, next_value, 0.0).tolist() == [11.0, 21.0, 1.0]


def test_lambda_returns_of_a_dataset_mix_the_n_step_returns_of_each_row():
    rng = np.random.default_rng(0)
    count, lam = 23, 0.7
    obs = rng.normal(size=(count + 1, 3)).astype(np.float32)
    terminated, truncated = np.arange(count) == 8, np.arange(count) == 15
    next_obs = obs[1:] + np.where(terminated | truncated, 1.0, 0.0)[:, None].astype(np.float32)
    reward = rng.normal(size=count).astype(np.float32)
    action = np.zeros((count, *VECTOR.action.shape), VECTOR.action.dtype)
    buffer = build(rows=count, names={"lambda_return"})
    buffer.extend(Transitions(obs[:-1], action, reward, next_obs, terminated, truncated))
    v = lambda states: states.sum(-1)  # noqa: E731
    buffer.value_dataset(lambda batch: (v(batch.obs.numpy()), v(batch.next_obs.numpy())), lam)
    found = buffer.gather(np.arange(count)).extras["lambda_return"].numpy()
    for t in range(count):
        end = min(e for e in (8, 15, count - 1) if e >= t)
        returns, total = [], 0.0  # G^(1), G^(2), … up to the end of the episode
        for n in range(1, end - t + 2):
            total += GAMMA ** (n - 1) * reward[t + n - 1]
            bootstrap = 0.0 if terminated[t + n - 1] else v(next_obs[t + n - 1])
            returns.append(total + GAMMA**n * bootstrap)
        mixed = (1 - lam) * sum(lam**k * g for k, g in enumerate(returns[:-1])) + lam ** (len(returns) - 1) * returns[
            -1
        ]
        assert found[t] == pytest.approx(mixed, rel=1e-4, abs=1e-4), t
