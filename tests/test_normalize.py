"""Against NumPy over whole streams."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from rlexp.envs.spec import Leaf, ObsSpec
from rlexp.errors import CheckpointError
from rlexp.normalize import ObsNormalizer, RewardNormalizer, RunningNorm

BOX = Leaf("box", (3,), "float32")


def chunks(rng: np.random.Generator, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Batches of different sizes whose distribution drifts, far from zero."""
    sizes = (1, 7, 1, 64, 2, 30)
    return [rng.normal(100 + 5 * i, 1 + i, (size, *shape)).astype(np.float32) for i, size in enumerate(sizes)]


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_batches_merge_to_the_statistics_of_the_whole_stream(shape: tuple[int, ...]) -> None:
    stream = chunks(np.random.default_rng(0), shape)
    norm = RunningNorm(shape)
    for batch in stream:
        norm.update(torch.from_numpy(batch))
    rows = np.concatenate(stream).astype(np.float64)
    assert norm.count == len(rows)
    np.testing.assert_allclose(norm.mean.numpy(), rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(norm.var.numpy(), rows.var(0), rtol=1e-12)
    x = stream[3][:5]
    expected = (x - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-8)
    normalized = norm(torch.from_numpy(x))
    assert normalized.dtype == torch.float32
    np.testing.assert_allclose(normalized.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_leading_axes_count_as_rows() -> None:
    x = torch.randn(4, 5, 3)
    one, other = RunningNorm((3,)), RunningNorm((3,))
    one.update(x)
    other.update(x.flatten(0, 1))
    assert one.count == 20
    assert torch.equal(one.mean, other.mean)
    torch.testing.assert_close(one(x).flatten(0, 1), other(x.flatten(0, 1)))


def test_far_values_are_clipped_and_constant_ones_only_centred() -> None:
    norm = RunningNorm((2,), clip=3.0)
    assert norm(torch.tensor([1.0, -2.0])).tolist() == [1.0, -2.0]  # nothing is known yet
    norm.update(torch.tensor([[0.0, 5.0], [2.0, 5.0]]))
    assert norm(torch.tensor([100.0, 5.5])).tolist() == [3.0, 0.5]
    assert norm(torch.tensor([-100.0, 5.0])).tolist() == [-3.0, 0.0]


def test_an_empty_batch_changes_nothing() -> None:
    norm = RunningNorm((2,))
    norm.update(torch.zeros(0, 2))
    assert norm.count == 0
    assert norm(torch.ones(2)).tolist() == [1.0, 1.0]


def test_a_restored_norm_continues_bit_for_bit() -> None:
    stream = [torch.from_numpy(batch) for batch in chunks(np.random.default_rng(1), (3,))]
    norm, restored = RunningNorm((3,)), RunningNorm((3,))
    for batch in stream[:3]:
        norm.update(batch)
    restored.load_state_dict(copy.deepcopy(norm.state_dict()))
    assert torch.equal(restored(stream[0]), norm(stream[0]))
    for batch in stream[3:]:
        norm.update(batch)
        restored.update(batch)
    assert torch.equal(restored.mean, norm.mean)
    assert torch.equal(restored.m2, norm.m2)
    assert torch.equal(restored(stream[5]), norm(stream[5]))
    restored.load_state_dict(RunningNorm((3,)).state_dict())
    assert torch.equal(restored(torch.ones(3)), torch.ones(3))
    with pytest.raises(CheckpointError, match=r"\(3,\).*\(4,\)"):
        RunningNorm((4,)).load_state_dict(norm.state_dict())


def test_only_float_boxes_of_an_observation_are_normalised() -> None:
    leaves = {
        "a/speed": BOX,
        "camera": Leaf("box", (4,), "uint8", low=0.0, high=255.0),
        "gear": Leaf("discrete", (), "int64", (3,)),
    }
    normalizer = ObsNormalizer(ObsSpec(leaves, single=False))
    obs = {
        "a/speed": torch.randn(10, 3) * 5 + 2,
        "camera": torch.randint(256, (10, 4), dtype=torch.uint8),
        "gear": torch.randint(3, (10,)),
    }
    normalizer.update(obs)
    result = normalizer(obs)
    assert list(result) == list(obs)
    assert result["camera"] is obs["camera"]
    assert result["gear"] is obs["gear"]
    speed = obs["a/speed"].double()
    expected = (speed - speed.mean(0)) / speed.var(0, unbiased=False).sqrt()
    torch.testing.assert_close(result["a/speed"], expected.float(), rtol=1e-4, atol=1e-5)
    restored = ObsNormalizer(ObsSpec(leaves, single=False))
    restored.load_state_dict(normalizer.state_dict())
    assert torch.equal(restored(obs)["a/speed"], result["a/speed"])
    assert all("/" not in key for key in normalizer.state_dict())
    with pytest.raises(CheckpointError, match="1 arrays"):
        ObsNormalizer(ObsSpec({"gear": leaves["gear"]}, single=False)).load_state_dict(normalizer.state_dict())


def test_a_bare_observation_is_normalised_without_changing_it() -> None:
    normalizer = ObsNormalizer(ObsSpec({"": BOX}, single=True))
    obs = torch.randn(10, 3) + 5
    kept = obs.clone()
    normalizer.update(obs)
    assert normalizer(obs).mean(0).abs().max() < 1e-5
    assert torch.equal(obs, kept)
    integers = ObsNormalizer(ObsSpec({"": Leaf("discrete", (), "int64", (3,))}, single=True))
    state = torch.tensor([0, 2])
    integers.update(state)
    assert integers(state) is state


def test_statistics_can_be_updated_and_used_in_and_out_of_inference_mode() -> None:
    norm = RunningNorm((3,))
    with torch.inference_mode():
        norm.update(torch.randn(5, 3))
    norm.update(torch.randn(5, 3))
    weight = torch.ones(3, requires_grad=True)
    (norm(torch.randn(5, 3)) * weight).sum().backward()
    assert weight.grad is not None


def naive_returns(rewards: np.ndarray, dones: np.ndarray, gamma: float) -> np.ndarray:
    """Discounted sums [T, N] as each environment has them after each reward of its running episode."""
    returns = np.zeros(rewards.shape)
    for n in range(rewards.shape[1]):
        running = 0.0
        for t in range(len(rewards)):
            running = running * gamma + float(rewards[t, n])
            returns[t, n] = running
            if dones[t, n]:
                running = 0.0
    return returns


def test_rewards_are_divided_by_the_deviation_of_the_discounted_returns() -> None:
    rng = np.random.default_rng(0)
    rewards, dones = rng.normal(2, 3, (50, 4)).astype(np.float32), rng.random((50, 4)) < 0.1
    normalizer = RewardNormalizer(4, 0.9)
    returns = naive_returns(rewards, dones, 0.9)
    for t in range(50):
        normalizer.update(rewards[t], dones[t])
        deviation = np.sqrt(returns[: t + 1].var() + 1e-8)
        scaled = normalizer(rewards[t])
        assert scaled.dtype == np.float32
        np.testing.assert_allclose(scaled, np.clip(rewards[t] / deviation, -10, 10), rtol=1e-5)
    batch = torch.tensor([[-1.0, 0.0], [2.0, 1e6]])
    expected = torch.tensor([[-1.0, 0.0], [2.0, 1e6]]) / deviation
    torch.testing.assert_close(normalizer.scale(batch), expected.clamp(-10, 10), rtol=1e-5, atol=0)


def test_rewards_keep_their_scale_until_returns_vary() -> None:
    normalizer = RewardNormalizer(3, 0.99)
    normalizer.update(np.ones(3, np.float32), np.zeros(3, bool))
    np.testing.assert_array_equal(normalizer(np.ones(3, np.float32)), np.ones(3))


def test_a_restored_reward_normaliser_continues_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    normalizer, restored = RewardNormalizer(4, 0.9), RewardNormalizer(4, 0.9)
    for _ in range(5):
        normalizer.update(rng.normal(size=4), rng.random(4) < 0.3)
    state = normalizer.state_dict()
    restored.load_state_dict(copy.deepcopy(state))
    for _ in range(5):
        reward, done = rng.normal(size=4), rng.random(4) < 0.3
        normalizer.update(reward, done)
        restored.update(torch.from_numpy(reward), torch.from_numpy(done))
        np.testing.assert_array_equal(restored(reward), normalizer(reward))
    np.testing.assert_array_equal(restored.returns, normalizer.returns)
    assert not np.array_equal(state["returns"], normalizer.returns)  # a state is not changed by going on
    with pytest.raises(CheckpointError, match="num_envs"):
        RewardNormalizer(3, 0.9).load_state_dict(state)
