import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_ring import DICT, RUNNING, TERMINATED, TRUNCATED, VECTOR, World

from rlexp.buffers.rollout import RolloutBuffer
from rlexp.tree import tree_map
from rlexp.types import Act

END = st.sampled_from([RUNNING] * 3 + [TERMINATED, TRUNCATED])


def value_fn(obs):
    """Any function of one observation will do, so long as no two observations share a value."""
    if isinstance(obs, dict):
        return obs["a/b"].sum(-1) + obs["image"].float().sum((-1, -2)) + obs["n"]
    return obs @ torch.tensor([1.0, 10.0, 100.0])


def tensors(obs):
    return tree_map(torch.from_numpy, obs)


def collect(spec, ends, buffer, seed=0):
    """A rollout, and by the side of it each step's true next observation."""
    world = World(spec, len(ends[0]), seed)
    obs, seen = world.obs(), []
    for t, row in enumerate(ends):
        action, step = torch.from_numpy(world.action()), world.step(row)
        extras = {"value": value_fn(tensors(obs)), "log_prob": torch.rand(len(row))}
        act = Act(action, None, extras)
        buffer.add(t, tensors(obs), act, step)
        seen.append((obs, act, step))
        obs = step.obs
    return buffer.finish(value_fn, obs), seen


@pytest.mark.parametrize("spec", [VECTOR, DICT], ids=["vector", "dict"])
@given(st.lists(st.lists(END, min_size=2, max_size=2), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_next_value_is_that_of_the_true_next_observation(spec, ends):
    buffer = RolloutBuffer()
    buffer.build(spec, 2, len(ends))
    for seed in (0, 1):  # the second rollout overwrites the first
        rollout, seen = collect(spec, ends, buffer, seed)
        for t, (obs, act, step) in enumerate(seen):
            expected = value_fn(tensors(step.next_obs))
            expected[torch.from_numpy(step.terminated)] = 0
            torch.testing.assert_close(rollout.next_value[t], expected)
            torch.testing.assert_close(rollout.value[t], value_fn(tensors(obs)))
            stored = tree_map(lambda leaf, t=t: leaf[t], rollout.obs)
            tree_map(lambda a, b: np.testing.assert_array_equal(a.numpy(), b), stored, obs)
            assert torch.equal(rollout.action[t], act.action)
            assert torch.equal(rollout.extras["log_prob"][t], act.extras["log_prob"])
            np.testing.assert_array_equal(rollout.reward[t], step.reward)
            np.testing.assert_array_equal(rollout.terminated[t], step.terminated)
            np.testing.assert_array_equal(rollout.done[t], step.terminated | step.truncated)


def test_values_that_acts_did_not_bring_are_computed_from_what_was_stored():
    def normalize(obs):
        return obs * 0.5 - 1

    buffer, world = RolloutBuffer(), World(VECTOR, 2)
    buffer.build(VECTOR, 2, 3)
    obs, following = world.obs(), []
    for t, row in enumerate([[RUNNING, TRUNCATED], [TERMINATED, RUNNING], [RUNNING, RUNNING]]):
        step = world.step(row)
        buffer.add(t, normalize(tensors(obs)), Act(torch.from_numpy(world.action())), step)
        following.append((tensors(obs), tensors(step.next_obs), torch.from_numpy(step.terminated)))
        obs = step.obs
    rollout = buffer.finish(value_fn, obs, normalize)
    for t, (now, then, terminated) in enumerate(following):
        torch.testing.assert_close(rollout.value[t], value_fn(normalize(now)))
        expected = value_fn(normalize(then)).masked_fill(terminated, 0.0)
        torch.testing.assert_close(rollout.next_value[t], expected)


def test_values_are_computed_in_two_calls_and_without_gradients():
    parameter, sizes = torch.ones(3, requires_grad=True), []

    def value(obs):
        sizes.append(len(obs))
        return obs @ parameter

    buffer, world = RolloutBuffer(), World(VECTOR, 3)
    buffer.build(VECTOR, 3, 4)
    obs = world.obs()
    for t, row in enumerate([[0, 2, 0], [2, 2, 1], [0, 0, 0], [0, 0, 2]]):
        step = world.step(row)
        buffer.add(t, tensors(obs), Act(torch.from_numpy(world.action()), None, {"value": torch.zeros(3)}), step)
        obs = step.obs
    rollout = buffer.finish(value, obs)
    assert sizes == [3, 4]
    assert not rollout.next_value.requires_grad


def test_extras_of_the_first_act_and_a_given_reward_are_stored():
    buffer, world = RolloutBuffer(), World(VECTOR, 2)
    buffer.build(VECTOR, 2, 1)
    mean = torch.rand(2, 3)
    act = Act(torch.from_numpy(world.action()), None, {"value": torch.zeros(2), "mean": mean})
    buffer.add(0, tensors(world.obs()), act, world.step([0, 0]), np.array([5, 6], np.float32))
    rollout = buffer.finish(value_fn, world.obs())
    assert list(rollout.extras) == ["mean"]
    assert torch.equal(rollout.extras["mean"][0], mean)
    assert rollout.reward.tolist() == [[5, 6]]


def test_a_tensor_of_another_dtype_is_refused_rather_than_converted():
    buffer, world = RolloutBuffer(), World(VECTOR, 2)
    buffer.build(VECTOR, 2, 1)
    act = Act(torch.from_numpy(world.action()), None, {"value": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"obs/ should be torch.float32 \(2, 3\)"):
        buffer.add(0, tensors(world.obs()).double(), act, world.step([0, 0]))


def test_truncations_of_an_abandoned_rollout_are_forgotten():
    buffer, world = RolloutBuffer(), World(VECTOR, 1)
    buffer.build(VECTOR, 1, 2)
    act = Act(torch.from_numpy(world.action()), None, {"value": torch.zeros(1)})
    buffer.add(0, tensors(world.obs()), act, world.step([TRUNCATED]))
    for t in range(2):
        buffer.add(t, tensors(world.obs()), act, world.step([RUNNING]))
    rollout = buffer.finish(lambda obs: torch.full((len(obs),), 7.0), world.obs())
    assert rollout.next_value[:, 0].tolist() == [0.0, 7.0]
