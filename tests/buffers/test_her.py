"""Hindsight replay against an implementation that keeps whole episodes and relabels one transition at a time."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_ring import RUNNING, TERMINATED, TRUNCATED, NaiveBuffer, World

from rlexp.buffers import HerBuffer, ReplayBuffer
from rlexp.envs.spec import ActionSpec, EnvSpec, Leaf, ObsSpec
from rlexp.envs.vector import VecStep
from rlexp.seeding import numpy_generator
from rlexp.tree import tree_map
from tests.trees import tree_equal

GAMMA, GOALS = 0.9, 3
GOAL = Leaf("multi_binary", (2,), "int8")
LEAVES = {"achieved_goal": GOAL, "desired_goal": GOAL, "observation": Leaf("box", (2,), "float32")}
SPEC = EnvSpec("Goals-v0", ObsSpec(LEAVES, single=False, achieved_unseen=True), ActionSpec("discrete", (), nvec=(5,)))
END = st.sampled_from([RUNNING] * 6 + [TERMINATED, TRUNCATED])


class GoalWorld(World):
    """Random observations, of few goals, so that some are achieved again."""

    def obs(self):
        return {name: leaf % GOALS if "goal" in name else leaf for name, leaf in super().obs().items()}


class Rewards:
    """What a goal environment says: −1 until the goal is reached, which ends the episode if ``terminates``."""

    def __init__(self, terminates: bool) -> None:
        self.terminates = terminates

    def reward(self, achieved: Any, desired: Any) -> Any:
        return -(achieved != desired).any(-1).astype(np.float32)

    def check(self, achieved: Any, desired: Any, rewards: Any) -> None:
        """The world's own rewards are random."""

    def terminated(self, achieved: Any, desired: Any) -> Any:
        return (achieved == desired).all(-1) & self.terminates


def build(num_envs=1, rows=10, n_step=1, strategy="future", k=4, terminates=True, seed=0) -> HerBuffer:
    buffer = HerBuffer(capacity=rows * num_envs, n_step=n_step, strategy=strategy, n_sampled_goal=k)
    buffer.goals = Rewards(terminates)  # type: ignore[assignment]
    buffer.build(SPEC, num_envs, GAMMA, seed)
    buffer.derive(["next_action"])
    return buffer


def episode_of(naive: NaiveBuffer, row: int, env: int) -> list[int]:
    """The stored rows of the episode that a transition belongs to; up to now, if it has not ended."""
    stored = naive.stored()
    first = last = row
    while first - 1 in stored and naive.rows[first - 1][env]["end"] == RUNNING:
        first -= 1
    while naive.rows[last][env]["end"] == RUNNING and last + 1 in stored:
        last += 1
    return list(range(first, last + 1))


def relabelled(naive: NaiveBuffer, row: int, env: int, strategy: str, chance: float, terminates: bool) -> dict:
    """The n-step transition that begins at a row, towards a goal that was achieved in its episode."""
    episode = episode_of(naive, row, env)
    candidates = {"future": [r for r in episode if r >= row], "final": episode[-1:], "episode": episode}[strategy]
    goal = naive.rows[candidates[int(chance * len(candidates))]][env]["next_obs"]["achieved_goal"]
    reward, steps, terminated = 0.0, 0, False
    for step in [r for r in episode if r >= row][: naive.n_step]:
        each = naive.rows[step][env]
        reached = np.array_equal(each["next_obs"]["achieved_goal"], goal)
        own = np.array_equal(each["next_obs"]["achieved_goal"], each["next_obs"]["desired_goal"])
        reward += naive.gamma**steps * (0.0 if reached else -1.0)
        steps += 1
        terminated = (terminates and reached) or (each["end"] == TERMINATED and not (terminates and own))
        if terminated:
            break
    first = naive.rows[row][env]
    goes_on = each["end"] == RUNNING and step + 1 in naive.stored()
    return {
        "obs": first["obs"] | {"desired_goal": goal},
        "action": first["action"],
        "reward": reward,
        "next_obs": each["next_obs"] | {"desired_goal": goal},
        "discount": 0.0 if terminated else naive.gamma**steps,
        "next_action": naive.rows[step + 1][env]["action"] if goes_on else each["action"],
    }


def assert_sampled_as_by_hand(buffer: HerBuffer, naive: NaiveBuffer, seed: int, terminates: bool, n=10) -> None:
    """Two batches by the same random numbers; the generator is put back, so that every call draws those of ``seed``."""
    buffer._generator = numpy_generator(seed, "buffer")
    draws = numpy_generator(seed, "buffer").random((2, 2, n))
    batch = buffer.sample(n, 2)
    stored, share = naive.stored(), round(n * buffer.n_sampled_goal / (buffer.n_sampled_goal + 1))
    for i in range(2 * n):
        number, chance = draws[i // n, :, i % n]
        row, env = divmod(int(number * len(stored) * naive.num_envs), naive.num_envs)
        row += stored[0]
        if i % n < share:
            expected = relabelled(naive, row, env, buffer.strategy.value, chance, terminates)
        else:
            expected = naive.sample_at(row, env)
        pick = lambda leaf, i=i: leaf[i].numpy()  # noqa: E731
        assert tree_equal(tree_map(pick, batch.obs), expected["obs"])
        assert tree_equal(tree_map(pick, batch.next_obs), expected["next_obs"])
        assert batch.action[i].item() == expected["action"]
        assert i % n >= share or batch.extras["next_action"][i].item() == expected["next_action"]
        np.testing.assert_allclose(batch.reward[i].item(), expected["reward"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch.discount[i].item(), expected["discount"], rtol=1e-6)


@st.composite
def histories(draw):
    """Settings of a buffer, and a list of what happens to it: the ends at a step, or the index of an episode cut."""
    num_envs = draw(st.integers(1, 3))
    steps = st.lists(END, min_size=num_envs, max_size=num_envs)
    events = draw(st.lists(st.one_of(steps, steps, steps, steps, st.integers(0, num_envs - 1)), max_size=40))
    return num_envs, draw(st.integers(1, 12)), draw(st.integers(1, 4)), draw(st.integers(0, 99)), events


@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@given(history=histories())
@settings(max_examples=25, deadline=None)
def test_batches_are_those_of_an_implementation_with_whole_episodes(strategy, terminates, history):
    num_envs, rows, n_step, seed, events = history
    world, naive = GoalWorld(SPEC, num_envs, seed), NaiveBuffer(rows, num_envs, n_step, GAMMA)
    buffer = build(num_envs, rows, n_step, strategy, terminates=terminates)
    first = world.obs()
    buffer.start(first)
    naive.start(first)
    for number, event in enumerate(events):
        if isinstance(event, int):
            obs = tree_map(lambda leaf: leaf[0], world.obs())
            buffer._cut(event, buffer._leaves(obs))
            naive.cut(event, obs)
        else:
            action, step = world.action(), world.step(event)
            buffer.add(action, step)
            naive.add(action, step)
        if len(buffer) and number % 3 == 0:
            assert_sampled_as_by_hand(buffer, naive, seed, terminates)


BITS = np.array([[0, 0], [0, 1], [1, 1]], np.int8)  # goals: achieved at first, after one step, after two


def two_steps(terminates: bool, n_step: int, own: int, end: int) -> HerBuffer:
    """An episode of two steps whose own goal is ``BITS[own]``, which ends as ``end`` says."""
    buffer = build(n_step=n_step, strategy="episode", terminates=terminates)

    def obs(goal: int) -> dict[str, np.ndarray]:
        return {"achieved_goal": BITS[[goal]], "desired_goal": BITS[[own]], "observation": np.zeros((1, 2), np.float32)}

    buffer.start(obs(0))
    going = obs(1)
    nothing, ends = np.array([False]), np.array([True])
    buffer.add(np.array([0]), VecStep(going, going, np.array([-1.0], np.float32), nothing, nothing, []))
    flags = (ends, nothing) if end == TERMINATED else (nothing, ends)
    buffer.add(np.array([1]), VecStep(obs(0), obs(2), np.array([0.0], np.float32), *flags, []))
    return buffer


@pytest.mark.parametrize(
    ("terminates", "own", "end", "goal", "discounts"),
    [
        (True, 2, TERMINATED, 2, (GAMMA, 0.0)),  # as it was
        (True, 2, TERMINATED, 1, (0.0, GAMMA)),  # the other goal ends it earlier, and the own one no longer
        (True, 1, TERMINATED, 1, (0.0, 0.0)),  # the second step fell over: no goal changes that
        (True, 1, TRUNCATED, 2, (GAMMA, 0.0)),
        (True, 2, TRUNCATED, 1, (0.0, GAMMA)),
        (False, 2, TERMINATED, 1, (GAMMA, 0.0)),  # an environment that does not say: ends stay
    ],
)
def test_a_transition_is_terminal_where_its_new_goal_ends_the_episode(terminates, own, end, goal, discounts):
    buffer = two_steps(terminates, 1, own, end)
    last, reward, discount = buffer._windows_to(np.array([0, 1]), BITS[[goal, goal]])
    assert last.tolist() == [0, 1]
    assert reward.tolist() == [0.0 if goal == 1 else -1.0, 0.0 if goal == 2 else -1.0]
    np.testing.assert_allclose(discount, discounts, rtol=1e-6)


def test_a_window_stops_where_the_new_goal_ends_the_episode():
    buffer = two_steps(True, 3, 2, TRUNCATED)
    last, reward, discount = buffer._windows_to(np.array([0, 0]), BITS[[1, 2]])
    assert last.tolist() == [0, 1]
    assert reward.tolist() == [0.0, -1.0]  # reached at once; one step too early, then reached
    assert discount.tolist() == [0.0, 0.0]


def test_the_next_action_is_the_one_after_a_window_that_the_new_goal_ends():
    buffer, nothing = build(n_step=2), np.array([False])

    def obs(goal: int) -> dict[str, np.ndarray]:
        return {"achieved_goal": BITS[[goal]], "desired_goal": BITS[[0]], "observation": np.zeros((1, 2), np.float32)}

    buffer.start(obs(0))
    for action, goal in enumerate([1, 2, 2]):
        buffer.add(np.array([action]), VecStep(obs(goal), obs(goal), np.zeros(1, np.float32), nothing, nothing, []))
    first = np.array([0])
    batch = buffer.gather(first)
    assert batch.extras["next_action"].tolist() == [2]  # after two steps
    buffer._replace_goals(batch, first, first, BITS[[1]])
    assert batch.extras["next_action"].tolist() == [1]  # after one, which reached the goal


def filled(steps=60, num_envs=2, **changes) -> tuple[HerBuffer, GoalWorld]:
    world, buffer = GoalWorld(SPEC, num_envs, 1), build(num_envs, **changes)
    buffer.start(world.obs())
    play(buffer, world, steps)
    return buffer, world


def play(buffer: HerBuffer, world: GoalWorld, steps: int) -> None:
    for _ in range(steps):
        ends = world.rng.choice([RUNNING] * 8 + [TERMINATED, TRUNCATED], world.num_envs)
        buffer.add(world.action(), world.step(ends))


@pytest.mark.parametrize("in_segments", [False, True])
@pytest.mark.parametrize("steps", [7, 60])
def test_a_restored_buffer_goes_on_with_the_same_batches(steps, in_segments):
    buffer, world = filled(steps, rows=20, strategy="episode", n_step=2)
    buffer.sample(5)
    other = build(2, 20, 2, "episode")
    other.load_state_dict(buffer.state_dict(rows=not in_segments))
    if in_segments:
        middle = (buffer.oldest_row + buffer.stable_rows) // 2
        for start, stop in ((buffer.oldest_row, middle), (middle, buffer.stable_rows)):
            other.load_rows(start, buffer.rows_between(start, stop))
    for _ in range(30):
        world_state = world.rng.bit_generator.state
        play(buffer, world, 1)
        world.rng.bit_generator.state = world_state
        play(other, world, 1)
        left, right = buffer.sample(16), other.sample(16)
        assert all(tree_equal(tree_map(np.asarray, a), tree_map(np.asarray, b)) for a, b in zip(left[:5], right[:5]))


def test_several_batches_at_once_are_those_drawn_one_after_the_other():
    buffer, _ = filled()
    state = buffer.state_dict()
    together = buffer.sample(8, 3)
    buffer.load_state_dict(state)
    parts = [buffer.sample(8) for _ in range(3)]
    assert together.index.tolist() == [i for part in parts for i in part.index.tolist()]
    assert together.reward.tolist() == [r for part in parts for r in part.reward.tolist()]


@pytest.mark.parametrize(("k", "share"), [(0, 0), (1, 50), (4, 80)])
def test_the_share_of_other_goals_is_k_of_k_plus_one(k, share):
    buffer, _ = filled(rows=100, k=k)
    batch = buffer.sample(100)
    own = buffer.gather(batch.index.numpy()).obs["desired_goal"]
    other = (batch.obs["desired_goal"] != own).any(-1)
    assert not other[share:].any()
    assert bool(other[:share].any()) == (share > 0)


def test_a_source_of_data_is_sampled_by_its_weight_also_in_hindsight():
    played, _ = filled(rows=40, num_envs=1)
    data = dataclasses.replace(played.transitions(), sources=((10, 3.0), (30, 1.0)))
    buffer = build(rows=40)
    buffer.extend(data)
    assert np.mean(buffer.sample(1000, 20).index.numpy() < 10) == pytest.approx(0.75, abs=0.01)


def test_what_is_stored_is_not_changed_by_sampling():
    buffer, _ = filled()
    before = buffer.state_dict()
    buffer.sample(64, 4)
    after = buffer.state_dict()
    for part in ("older_rows", "newest_row", "next_obs"):
        assert all(np.array_equal(before[part][name], after[part][name]) for name in before[part])


def test_memory_counts_the_place_in_the_episode():
    assert build().bytes_per_transition(SPEC) == ReplayBuffer().bytes_per_transition(SPEC) + 8
