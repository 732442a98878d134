"""Frames stored once: the stacks that come out are those that went in."""

import numpy as np
import pytest
from naive_ring import NaiveBuffer

from rlexp.buffers import HerBuffer, PrioritizedBuffer, ReplayBuffer
from rlexp.buffers.frames import whole_stacks
from rlexp.envs.spec import ActionSpec, EnvSpec, Leaf, ObsSpec
from rlexp.envs.vector import VecStep
from rlexp.tree import tree_map
from tests.trees import tree_equal

DISCRETE = ActionSpec("discrete", (), nvec=(5,))
IMAGE = EnvSpec("Image-v0", ObsSpec({"": Leaf("box", (4, 1, 2), "uint8", stack=4)}, single=True), DISCRETE)
MIXED = {
    "image": Leaf("box", (3, 2), "uint8", stack=3),
    "speed": Leaf("box", (2, 1), "float32", stack=2),
    "n": Leaf("discrete", (), "int64", nvec=(99,)),
}
DICT = EnvSpec("Dict-v0", ObsSpec(MIXED, single=False), DISCRETE)
ATARI = EnvSpec("Atari-v0", ObsSpec({"": Leaf("box", (4, 84, 84), "uint8", stack=4)}, single=True), DISCRETE)


class Stacks:
    """N environments of random frames, whose episodes begin with zeros, repeated frames, or those of the last one."""

    def __init__(self, spec: EnvSpec, num_envs: int, seed: int = 0) -> None:
        self.spec, self.num_envs, self.rng = spec, num_envs, np.random.default_rng(seed)
        self.now = {name: np.zeros((num_envs, *leaf.shape), leaf.dtype) for name, leaf in spec.obs.leaves.items()}
        for name in self.now:
            self.now[name] = self._first(name, self.now[name])

    def _values(self, leaf: Leaf, shape) -> np.ndarray:
        return (self.rng.random((self.num_envs, *shape)) * (99 if leaf.dtype != "float32" else 1)).astype(leaf.dtype)

    def _pushed(self, name: str, stack: np.ndarray) -> np.ndarray:
        leaf = self.spec.obs.leaves[name]
        if leaf.stack == 1:
            return self._values(leaf, leaf.shape)
        return np.concatenate([stack[:, 1:], self._values(leaf, leaf.shape[1:])[:, None]], 1)

    def _first(self, name: str, last: np.ndarray) -> np.ndarray:
        leaf = self.spec.obs.leaves[name]
        if leaf.stack == 1:
            return self._values(leaf, leaf.shape)
        kind, frame = self.rng.integers(3), self._values(leaf, leaf.shape[1:])[:, None]
        if kind == 0:
            return last.copy()  # the next life
        return np.concatenate([(frame * (kind == 2)).astype(leaf.dtype)] * (leaf.stack - 1) + [frame], 1)

    def obs(self):
        tree = {name: leaf.copy() for name, leaf in self.now.items()}
        return tree[""] if self.spec.obs.single else tree

    def step(self, ends: np.ndarray) -> VecStep:
        final = {name: self._pushed(name, stack) for name, stack in self.now.items()}
        ended = ends > 0
        first = {name: self._first(name, stack) for name, stack in final.items()} if ended.any() else final
        self.now = {
            name: np.where(ended.reshape(-1, *(1,) * (final[name].ndim - 1)), first[name], final[name])
            for name in final
        }
        obs = self.obs()
        next_obs = obs if not ended.any() else (final[""] if self.spec.obs.single else final)
        reward = self.rng.normal(size=self.num_envs).astype(np.float32)
        return VecStep(obs, next_obs, reward, ends == 1, ends == 2, [])

    def ends(self, chance: float) -> np.ndarray:
        return np.where(self.rng.random(self.num_envs) < chance, self.rng.integers(1, 3, self.num_envs), 0)


def built(spec, rows, num_envs, kind=ReplayBuffer, **settings):
    buffer = kind(capacity=rows * num_envs, **settings)
    buffer.build(spec, num_envs, 0.9, 0)
    return buffer


def places(buffer, row, env):
    return (row % buffer._ring) * buffer._num_envs + env


def same_batch(left, right) -> bool:
    pairs = [(left.obs, right.obs), (left.next_obs, right.next_obs)]
    columns = [(left.reward, right.reward), (left.discount, right.discount), (left.action, right.action)]
    arrays = [(tree_map(lambda x: x.numpy(), a), tree_map(lambda x: x.numpy(), b)) for a, b in pairs + columns]
    return all(tree_equal(a, b) for a, b in arrays)


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_hundred_thousand_insertions_give_what_a_store_of_whole_stacks_gives(n_step):
    rows, num_envs = 701, 20
    frames, whole = (
        built(IMAGE, rows, num_envs, n_step=n_step),
        built(whole_stacks(IMAGE), rows, num_envs, n_step=n_step),
    )
    world, rng = Stacks(IMAGE, num_envs), np.random.default_rng(1)
    frames.start(world.obs())
    whole.start(world.obs())
    for t in range(5_000):
        step, action = world.step(world.ends(0.08)), rng.integers(0, 5, num_envs)
        frames.add(action, step)
        whole.add(action, step)
        if t % 40 == 3:
            row, env = rng.integers(max(t + 1 - rows, 0), t + 1, 256), rng.integers(0, num_envs, 256)
            row[0], row[1], row[2] = max(t + 1 - rows, 0), t, min(max(t + 1 - rows, 0) + 1, t)  # the ends of the ring
            assert same_batch(frames.gather(places(frames, row, env)), whole.gather(places(whole, row, env)))
    assert frames._obs[0].shape[1:] == (1, 2)


@pytest.mark.parametrize("spec", [IMAGE, DICT])
def test_every_transition_is_what_a_list_of_transitions_says(spec):
    buffer, naive, world = built(spec, 7, 2, n_step=2), NaiveBuffer(7, 2, 2, 0.9), Stacks(spec, 2)
    buffer.start(world.obs())
    naive.start(world.obs())
    for t in range(60):
        step, action = world.step(world.ends(0.3)), world.rng.integers(0, 5, 2)
        buffer.add(action, step)
        naive.add(action, step)
        if t % 9 == 4:  # an environment that could not be restored begins anew
            world.now = {
                name: np.where(np.arange(2).reshape(-1, *(1,) * (leaf.ndim - 1)) == 1, world._first(name, leaf), leaf)
                for name, leaf in world.now.items()
            }
            naive_obs = tree_map(lambda leaf: leaf[1], world.obs())
            before = tree_map(lambda leaf: leaf[1], naive.obs)
            if not tree_equal(naive_obs, before):
                naive.cut(1, naive_obs)
            buffer.start(world.obs())
        pairs = [(row, env) for row in naive.stored() for env in range(2)]
        batch = buffer.gather(np.array([places(buffer, row, env) for row, env in pairs]))
        for i, (row, env) in enumerate(pairs):
            expected = naive.sample_at(row, env)
            assert tree_equal(tree_map(lambda leaf, i=i: leaf[i].numpy(), batch.obs), expected["obs"])
            assert tree_equal(tree_map(lambda leaf, i=i: leaf[i].numpy(), batch.next_obs), expected["next_obs"])


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedBuffer])
@pytest.mark.parametrize("rows", [5, 30, 41])
def test_a_restored_buffer_samples_the_same_and_goes_on_the_same(kind, rows):
    """Saved in segments: rows that were written once, the rest in the state."""
    first, world = built(DICT, 20, 2, kind), Stacks(DICT, 2)
    first.start(world.obs())
    segments = []
    for t in range(rows):
        first.add(np.zeros(2, np.int64), world.step(world.ends(0.2)))
        if t % 8 == 7 or t == rows - 1:
            begin = max(segments[-1][1] if segments else 0, first.oldest_row)
            segments.append((begin, first.stable_rows, first.rows_between(begin, first.stable_rows)))
    state = first.state_dict(rows=False)
    second = built(DICT, 20, 2, kind)
    second.load_state_dict(state)
    for begin, stop, arrays in segments:
        if stop > first.oldest_row:
            second.load_rows(begin, arrays)
    second.start(world.obs())
    assert same_batch(first.sample(64), second.sample(64))
    for _ in range(25):
        step = world.step(world.ends(0.2))
        for buffer in (first, second):
            buffer.add(np.ones(2, np.int64), step)
    assert same_batch(first.sample(64), second.sample(64))


def test_prioritized_sampling_never_takes_a_row_that_left_the_window():
    buffer, world = built(IMAGE, 6, 2, PrioritizedBuffer), Stacks(IMAGE, 2)
    buffer.start(world.obs())
    for t in range(30):
        buffer.add(np.zeros(2, np.int64), world.step(world.ends(0.2)))
        rows = buffer._row_of(buffer.sample(64).index.numpy())
        assert rows.min() >= max(t + 1 - 6, 0)
        assert rows.max() <= t


class SameParity:
    """A goal is reached by what is odd or even as it is."""

    terminates = True

    def reward(self, achieved, desired):
        return self.terminated(achieved, desired).astype(np.float32) - 1

    def terminated(self, achieved, desired):
        return (achieved % 2 == desired % 2).all(-1)


@pytest.mark.parametrize("n_step", [1, 3])
def test_hindsight_and_whole_memories_of_frames_are_those_of_whole_stacks(n_step):
    goal = Leaf("multi_binary", (2,), "int8")
    leaves = {"achieved_goal": goal, "desired_goal": goal, "observation": Leaf("box", (3, 2), "uint8", stack=3)}
    spec, buffers = EnvSpec("Goals-v0", ObsSpec(leaves, single=False, achieved_unseen=True), DISCRETE), []
    for each in (spec, whole_stacks(spec)):
        buffers.append(HerBuffer(capacity=18, n_step=n_step))
        buffers[-1].goals = SameParity()
        buffers[-1].build(each, 2, 0.9, 0)
    world = Stacks(spec, 2)
    for buffer in buffers:
        buffer.start(world.obs())
    for _ in range(40):
        step, action = world.step(world.ends(0.2)), world.rng.integers(0, 5, 2)
        for buffer in buffers:
            buffer.add(action, step)
        assert same_batch(*(buffer.sample(30) for buffer in buffers))
    left, right = (buffer.transitions() for buffer in buffers)
    assert tree_equal(left.obs, right.obs)
    assert tree_equal(left.next_obs, right.next_obs)


def test_a_million_atari_transitions_need_about_seven_gigabytes():
    each = ReplayBuffer().bytes_per_transition(ATARI)
    assert each == 84 * 84 + 8 + 4 + 1 + 8
    assert ReplayBuffer(capacity=1_000_000).memory(ATARI, 8) < 7.5e9
    assert ReplayBuffer().bytes_per_transition(whole_stacks(ATARI)) == 4 * 84 * 84 + 21
