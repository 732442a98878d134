"""The losses of algorithms that clone actions: numbers worked out by hand, and plain loops written from the papers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rlexp.algos.awac import awac_loss, awac_weight
from rlexp.algos.awr import awr_loss, awr_weight
from rlexp.algos.bc import bc_loss, bc_mse_loss
from rlexp.algos.iql import iql_actor_loss, iql_value_loss, iql_weight
from rlexp.algos.marwil import RunningRMS, marwil_loss, marwil_weight
from rlexp.algos.xql import xql_value_loss
from tests.algos.test_losses import close, draw, t


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# ---- BC


def test_bc_loss_is_the_mean_negative_log_likelihood() -> None:
    close(bc_loss(t(-1.0, -3.0)), 2.0)
    close(bc_loss(t(-1.0, -3.0), t(2.0, 0.0)), 1.0)  # (2·1 + 0·3) / 2


def test_bc_mse_loss_is_the_mean_over_rows_and_dimensions() -> None:
    policy, action = torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    close(bc_mse_loss(policy, action), (0.5 + 2.0) / 2)
    close(bc_mse_loss(policy, action, t(4.0, 1.0)), (4 * 0.5 + 2.0) / 2)


def test_bc_equals_a_loop(rng: np.random.Generator) -> None:
    (a, a_t), (b, b_t), (log_prob, log_prob_t) = draw(rng, 7, 3), draw(rng, 7, 3), draw(rng, 7)
    total = sum(sum((a[i, d] - b[i, d]) ** 2 for d in range(3)) / 3 for i in range(7)) / 7
    close(bc_mse_loss(a_t, b_t), total)
    close(bc_loss(log_prob_t), -sum(log_prob) / 7)


# ---- AWAC


def test_awac_weight_is_exponential_and_bounded() -> None:
    close(awac_weight(t(0.0, 1.0, -1.0, 100.0), 0.5, 100.0), [1.0, math.e**2, math.e**-2, 100.0])
    close(awac_weight(t(1e6, -1e6), 1.0, 100.0), [100.0, 0.0])  # infinite before it is bounded


def test_awac_loss_is_a_mean_whatever_the_size_of_the_batch() -> None:
    close(awac_loss(t(-1.0, -2.0), t(3.0, 0.5)), (3.0 + 1.0) / 2)
    close(awac_loss(t(-1.0, -2.0, -1.0, -2.0), t(3.0, 0.5, 3.0, 0.5)), (3.0 + 1.0) / 2)


def test_awac_equals_a_loop(rng: np.random.Generator) -> None:
    (advantage, advantage_t), (log_prob, log_prob_t) = draw(rng, 9), draw(rng, 9)
    lam, bound, total = 0.4, 3.0, 0.0
    for b in range(9):
        total -= min(math.exp(advantage[b] / lam), bound) * log_prob[b] / 9
    close(awac_loss(log_prob_t, awac_weight(advantage_t, lam, bound)), total)


# ---- IQL


def test_iql_value_loss_weighs_what_lies_above_and_below() -> None:
    # u = 2 counts with τ, u = −1 with 1 − τ
    close(iql_value_loss(t(2.0, 0.0), t(0.0, 1.0), 0.7), (0.7 * 4 + 0.3 * 1) / 2)
    close(iql_value_loss(t(2.0, 0.0), t(0.0, 1.0), 0.7, t(1.0, 3.0)), (0.7 * 4 + 3 * 0.3 * 1) / 2)
    close(iql_value_loss(t(5.0, 1.0), t(3.0, 2.0), torch.tensor(0.5)), 0.5 * (4 + 1) / 2)  # the squared error, halved


def test_iql_value_loss_is_smallest_at_the_expectile(rng: np.random.Generator) -> None:
    q = torch.from_numpy(rng.normal(size=400)).float()
    grid = torch.linspace(-2, 2, 801)
    losses = torch.stack([iql_value_loss(q, v, 0.9) for v in grid])
    best = grid[losses.argmin()].item()
    # by its definition: the forces from above and below are in balance
    above, below = (q - best).clamp(min=0).sum().item(), (best - q).clamp(min=0).sum().item()
    assert 0.9 * above == pytest.approx(0.1 * below, rel=0.05)


def test_iql_weight_has_an_inverse_temperature() -> None:
    close(iql_weight(t(0.0, 1.0, -1.0, 9.0), 3.0, 100.0), [1.0, math.e**3, math.e**-3, 100.0])
    close(iql_weight(t(5.0, -5.0), 0.0, 100.0), [1.0, 1.0])


def test_iql_equals_a_loop(rng: np.random.Generator) -> None:
    (q, q_t), (v, v_t), (log_prob, log_prob_t) = draw(rng, 9), draw(rng, 9), draw(rng, 9)
    value = actor = 0.0
    for b in range(9):
        u = q[b] - v[b]
        value += abs(0.8 - float(u < 0)) * u * u / 9
        actor -= min(math.exp(2.0 * u), 4.0) * log_prob[b] / 9
    close(iql_value_loss(q_t, v_t, 0.8), value)
    close(iql_actor_loss(log_prob_t, iql_weight(q_t - v_t, 2.0, 4.0)), actor)


# ---- XQL


def test_xql_value_loss_is_gumbel_regression_rescaled_by_its_largest_z() -> None:
    # z = 1 and −1, m = 1: (e^0 − 2/e + e^−2 − 0) / 2
    close(xql_value_loss(t(2.0, 0.0), t(0.0, 2.0), 2.0, 7.0), (1 - 2 / math.e + math.e**-2) / 2)
    close(xql_value_loss(t(1.0, 1.0), t(1.0, 1.0), 0.5, 7.0), 0.0)  # z = 0 everywhere: the minimum


def test_xql_value_loss_bounds_z_and_then_has_no_gradient() -> None:
    value = torch.zeros(2, requires_grad=True)
    loss = xql_value_loss(t(1e4, 1.0), value, 1.0, 5.0)
    loss.backward()
    assert math.isfinite(loss.item())
    assert value.grad is not None
    assert value.grad[0] == 0
    # d/dv of e^{z − m} − z e^{−m} with z = 1 − v, m = 5, over two rows
    assert value.grad[1].item() == pytest.approx(-(math.e**-4 - math.e**-5) / 2, rel=1e-4)


def test_xql_value_loss_is_smallest_at_the_soft_maximum(rng: np.random.Generator) -> None:
    q = torch.from_numpy(rng.normal(size=200)).float()
    grid = torch.linspace(-1, 3, 1601)
    z = (q[None] - grid[:, None]) / 0.7
    losses = (z.exp() - z - 1).mean(1)
    best = grid[losses.argmin()]
    soft_maximum = 0.7 * math.log(np.mean(np.exp(q.numpy() / 0.7)))
    assert best.item() == pytest.approx(soft_maximum, abs=0.005)
    at = best.clone().requires_grad_()
    gradient = torch.autograd.grad(xql_value_loss(q, at.expand(200), 0.7, 50.0), at)[0]
    assert abs(gradient.item()) < 5e-3  # ours has its minimum there too


@pytest.mark.parametrize("shift", [0.0, -6.0])  # all z below −1: the factor stays e
def test_xql_equals_a_loop(rng: np.random.Generator, shift: float) -> None:
    (q, q_t), (v, v_t) = draw(rng, 9), draw(rng, 9)
    z = [min((q[b] + shift - v[b]) / 0.6, 1.5) for b in range(9)]
    largest = max(max(z), -1.0)
    total = sum(math.exp(each - largest) - each * math.exp(-largest) - math.exp(-largest) for each in z) / 9
    close(xql_value_loss(q_t + shift, v_t, 0.6, 1.5), total)


# ---- MARWIL


def test_marwil_weight_is_measured_in_norms_of_the_advantage() -> None:
    close(marwil_weight(t(0.0, 2.0, -4.0), 2.0, 0.5), [1.0, math.e**0.5, math.e**-1])
    close(marwil_weight(t(3.0, 80.0), 2.0, 1.0, 20.0), [math.e**1.5, 20.0])
    close(marwil_weight(t(3.0, -3.0), 2.0, 0.0), [1.0, 1.0])  # β = 0 is behaviour cloning
    close(marwil_loss(t(-1.0, -2.0), t(1.0, 1.0)), 1.5)


def test_marwil_keeps_the_running_norm_of_the_advantages(rng: np.random.Generator) -> None:
    norm, mean = RunningRMS(), 0.0
    for step in range(1, 6):
        (x, x_t) = draw(rng, 8)
        mean += 0.25 * (sum(each**2 for each in x) / 8 - mean)
        close(norm(3.0 * x_t, 0.25), 3.0 * math.sqrt(mean / (1 - 0.75**step)))


def test_marwil_equals_a_loop(rng: np.random.Generator) -> None:
    (advantage, advantage_t), (log_prob, log_prob_t) = draw(rng, 9), draw(rng, 9)
    total = -sum(math.exp(1.5 * advantage[b] / 0.8) * log_prob[b] for b in range(9)) / 9
    close(marwil_loss(log_prob_t, marwil_weight(advantage_t, 0.8, 1.5)), total)


# ---- AWR


def test_awr_weight_is_of_standardised_advantages_and_bounded() -> None:
    # mean 3, deviation 2: −1 and 1
    close(awr_weight(t(1.0, 5.0), 0.5, 20.0), [math.e**-2, math.e**2], 1e-4)
    close(awr_weight(t(1.0, 5.0), 0.25, 20.0), [math.e**-4, 20.0], 1e-4)
    close(awr_weight(t(7.0, 7.0, 7.0), 1.0, 20.0), [1.0, 1.0, 1.0])  # nothing to tell them apart


def test_awr_equals_a_loop(rng: np.random.Generator) -> None:
    (advantage, advantage_t), (log_prob, log_prob_t) = draw(rng, 9), draw(rng, 9)
    mean = sum(advantage) / 9
    deviation = math.sqrt(sum((each - mean) ** 2 for each in advantage) / 9)
    total = 0.0
    for b in range(9):
        total -= min(math.exp((advantage[b] - mean) / (deviation + 1e-5) / 0.6), 2.5) * log_prob[b] / 9
    close(awr_loss(log_prob_t, awr_weight(advantage_t, 0.6, 2.5)), total)
