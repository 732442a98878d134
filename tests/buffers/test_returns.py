import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.buffers.returns import gae


def naive_gae(reward, value, next_value, terminated, done, gamma, gae_lambda):
    """One environment and one step at a time, in double precision, by the definition: a sum over future deltas."""
    steps, envs = reward.shape
    advantage = np.zeros((steps, envs))
    for n in range(envs):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                bootstrap = 0.0 if terminated[k, n] else gamma * float(next_value[k, n])
                advantage[t, n] += weight * (float(reward[k, n]) + bootstrap - float(value[k, n]))
                if done[k, n]:
                    break
                weight *= gamma * gae_lambda
    return advantage, advantage + value.numpy()


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 999), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=80, deadline=None)
def test_gae_equals_the_sum_over_future_deltas(steps, envs, seed, gamma, gae_lambda):
    torch.manual_seed(seed)
    reward, value, next_value = torch.randn(3, steps, envs)
    terminated = torch.rand(steps, envs) < 0.2
    done = terminated | (torch.rand(steps, envs) < 0.2)
    arguments = (reward, value, next_value, terminated, done, gamma, gae_lambda)
    for ours, expected in zip(gae(*arguments), naive_gae(*arguments)):
        assert ours.dtype == torch.float32
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-4, atol=1e-5)


def column(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)[:, None]


def flags(*values):
    return column(*values, dtype=torch.bool)


def test_with_lambda_one_the_return_is_the_discounted_sum_of_rewards():
    steps, gamma = 50, 0.9
    zeros, ones = torch.zeros(steps, 1), torch.ones(steps, 1)
    last = torch.zeros(steps, 1, dtype=torch.bool)
    last[-1] = True
    _, returns = gae(ones, zeros, zeros, last, last, gamma, 1.0)
    expected = [(1 - gamma ** (steps - t)) / (1 - gamma) for t in range(steps)]
    np.testing.assert_allclose(returns[:, 0], expected, rtol=1e-5)


def test_with_lambda_zero_the_advantage_is_the_one_step_error():
    advantage, _ = gae(column(1, 2), column(3, 5), column(5, 7), flags(0, 0), flags(0, 0), 0.5, 0.0)
    assert advantage[:, 0].tolist() == [1 + 0.5 * 5 - 3, 2 + 0.5 * 7 - 5]


def test_truncation_bootstraps_with_the_final_observation_and_cuts_the_trace():
    # value 100 begins the next episode; the truncated step must see the final observation's 8 and nothing beyond
    reward, value, next_value = column(1, 2, 4), column(0, 0, 100), column(0, 8, 0)
    advantage, _ = gae(reward, value, next_value, flags(0, 0, 1), flags(0, 1, 1), 0.5, 1.0)
    assert advantage[:, 0].tolist() == [1 + 0.5 * (2 + 0.5 * 8), 2 + 0.5 * 8, 4 - 100]


def test_termination_does_not_bootstrap_even_from_an_infinite_value():
    next_value = column(0, float("inf"), 3)
    advantage, returns = gae(column(1, 2, 4), column(0, 0, 0), next_value, flags(0, 1, 0), flags(0, 1, 0), 0.5, 1.0)
    assert advantage[:, 0].tolist() == [2, 2, 5.5]
    assert torch.equal(returns, advantage)


def test_environments_do_not_mix():
    torch.manual_seed(0)
    reward, value, next_value = torch.randn(3, 6, 3)
    done = torch.rand(6, 3) < 0.3
    together, _ = gae(reward, value, next_value, done, done, 0.9, 0.8)
    for n in range(3):
        alone, _ = gae(*(x[:, n : n + 1] for x in (reward, value, next_value, done, done)), 0.9, 0.8)
        assert torch.equal(alone[:, 0], together[:, n])


def test_arguments_are_left_as_they_were():
    arguments = [torch.randn(4, 2) for _ in range(3)] + [torch.rand(4, 2) < 0.5 for _ in range(2)]
    before = [x.clone() for x in arguments]
    gae(*arguments, 0.9, 0.9)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before))


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_extreme_discounts_are_exact(gamma):
    advantage, _ = gae(column(1, 2), column(0, 0), column(0, 4), flags(0, 0), flags(0, 0), gamma, 1.0)
    assert advantage[:, 0].tolist() == ([1, 2] if gamma == 0 else [7, 6])
