"""The mathematics of the DQN family: numbers worked out by hand, and plain loops on random inputs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rlexp.algos.c51 import c51_cross_entropy, c51_loss, c51_projection
from rlexp.algos.dqn import dueling_values, value_taken
from rlexp.algos.iqn import iqn_cosines
from rlexp.algos.losses import quantile_huber, td_priority
from rlexp.algos.qrdqn import qrdqn_fractions, qrdqn_loss


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def close(found: Tensor, expected: object, tolerance: float = 1e-5) -> None:
    wanted = torch.as_tensor(np.asarray(expected), dtype=torch.float32)
    torch.testing.assert_close(found.detach(), wanted, rtol=tolerance, atol=tolerance)


# ---- pieces


def test_dueling_values_centre_the_advantages() -> None:
    # V 10, A (1, 2, 6) with mean 3 -> 8, 9, 13; a second atom: V 1, A (0, 0, 3) -> 0, 0, 3
    close(dueling_values(torch.tensor([[10.0, 1, 2, 6]])), [[8, 9, 13]])
    out = torch.tensor([[[10.0, 1], [1, 0], [2, 0], [6, 3]]])
    close(dueling_values(out), [[[8, 0], [9, 0], [13, 3]]])


def test_value_taken_is_that_of_each_rows_own_action() -> None:
    head = torch.arange(12.0).view(2, 3, 2)
    close(value_taken(head, torch.tensor([2, 0])), [[4, 5], [6, 7]])
    close(value_taken(head[..., 0], torch.tensor([2, 0])), [4, 6])


def test_td_priority_is_the_mean_error_of_an_ensemble_and_only_given_where_it_is_read() -> None:
    q, target = torch.tensor([[1.0, 4.0], [2.0, -1.0]]), torch.tensor([2.0, 2.0])
    assert td_priority(q, target, None) is None
    weight = torch.ones(2)
    close(td_priority(q, target, weight), [0.5, 2.5])  # errors (1, 2) and (0, 3)
    close(td_priority(q[0], target, weight), [1, 2])
    assert not td_priority(q.requires_grad_(), target, weight).requires_grad


# ---- C51


def test_c51_projection_shares_a_shifted_atom_between_its_neighbours() -> None:
    support = torch.tensor([0.0, 1.0, 2.0])
    probs = torch.tensor([[0.2, 0.3, 0.5]])
    # 0.25 + 0.5·(0, 1, 2) = 0.25, 0.75, 1.25: atom 0 gets 0.75·0.2 + 0.25·0.3, atom 2 gets 0.25·0.5
    found = c51_projection(probs, torch.tensor([0.25]), torch.tensor([0.5]), support)
    close(found, [[0.225, 0.65, 0.125]])
    # exactly onto atoms, and beyond the last one: 1, 2, 3 -> 1, 2, 2
    close(c51_projection(probs, torch.tensor([1.0]), torch.tensor([1.0]), support), [[0, 0.2, 0.8]])
    # a terminal state: all mass at the reward, here halfway
    close(c51_projection(probs, torch.tensor([1.5]), torch.tensor([0.0]), support), [[0, 0.5, 0.5]])
    # below the first
    close(c51_projection(probs, torch.tensor([-9.0]), torch.tensor([1.0]), support), [[1, 0, 0]])


def naive_projection(probs: np.ndarray, reward: float, discount: float, support: np.ndarray) -> np.ndarray:
    """Algorithm 1 of the paper, with the atom an integer position falls onto kept whole."""
    low, high, last = support[0], support[-1], len(support) - 1
    projected = np.zeros(len(support))
    for p, z in zip(probs, support):
        position = (min(max(reward + discount * z, low), high) - low) / (high - low) * last
        lower, upper = math.floor(position), math.ceil(position)
        if lower == upper:
            projected[lower] += p
        else:
            projected[lower] += p * (upper - position)
            projected[upper] += p * (position - lower)
    return projected


@pytest.mark.parametrize(("low", "high", "atoms"), [(-10.0, 10.0, 51), (0.0, 99.0, 51), (-1.0, 1.0, 2), (-3.0, 4.0, 8)])
def test_c51_projection_conserves_mass_and_equals_a_plain_loop(
    low: float, high: float, atoms: int, rng: np.random.Generator
) -> None:
    rows = 300
    support = torch.linspace(low, high, atoms)
    probs = torch.from_numpy(rng.dirichlet(np.full(atoms, 0.3), rows)).float()
    reward = rng.normal(size=rows) * (high - low) / 3
    reward[:100] = np.round(reward[:100])  # onto atoms exactly, with discounts of 0 and 1
    discount = rng.choice([0.0, 1.0, 0.99, 0.99**3], rows)
    discount[:100] = rng.choice([0.0, 1.0], 100)
    found = c51_projection(probs, torch.from_numpy(reward).float(), torch.from_numpy(discount).float(), support)
    np.testing.assert_allclose(found.double().sum(1), probs.double().sum(1), rtol=0, atol=1e-6)
    assert (found >= 0).all()
    for row in range(rows):
        expected = naive_projection(probs[row].double().numpy(), reward[row], discount[row], support.double().numpy())
        np.testing.assert_allclose(found[row], expected, atol=2e-5)


def test_c51_loss_is_the_weighted_cross_entropy() -> None:
    logits = torch.tensor([[0.0, 0.0], [0.0, math.log(3.0)]])  # probabilities (½, ½) and (¼, ¾)
    target = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    rows = [math.log(2), 0.5 * math.log(4) + 0.5 * math.log(4 / 3)]
    close(c51_cross_entropy(logits, target), rows)
    close(c51_loss(logits, target), sum(rows) / 2)
    close(c51_loss(logits, target, torch.tensor([1.0, 0.5])), (rows[0] + 0.5 * rows[1]) / 2)


# ---- quantiles


def test_fractions_are_midpoints() -> None:
    close(qrdqn_fractions(4), [0.125, 0.375, 0.625, 0.875])


def test_quantile_huber_by_hand() -> None:
    # θ (0, 2) at τ (¼, ¾), one target 1, κ 1: u = 1 -> ¼ · ½;  u = −1 -> |¾ − 1| · ½;  sum ¼
    close(quantile_huber(torch.tensor([[0.0, 2.0]]), torch.tensor([0.25, 0.75]), torch.tensor([[1.0]]), 1.0), [0.25])
    # θ 0 at τ ¼, targets (3, −0.5), κ 2: ¼ · 2 (3 − 1) = 1 and ¾ · 0.125, their mean over κ
    found = quantile_huber(torch.tensor([[0.0]]), torch.tensor([0.25]), torch.tensor([[3.0, -0.5]]), 2.0)
    close(found, [(1 + 0.75 * 0.125) / 2 / 2])


@pytest.mark.parametrize("kappa", [0.3, 1.0])
@pytest.mark.parametrize("own_fractions", [False, True])
def test_quantile_losses_and_gradients_equal_a_plain_double_loop(
    own_fractions: bool, kappa: float, rng: np.random.Generator
) -> None:
    rows, n, m = 5, 7, 4
    theta, y = rng.normal(size=(rows, n)), rng.normal(size=(rows, m))
    tau = rng.random((rows, n)) if own_fractions else np.broadcast_to(rng.random(n), (rows, n))
    weight = rng.random(rows)
    expected, gradient = np.zeros(rows), np.zeros((rows, n))
    for b in range(rows):
        for i in range(n):
            for j in range(m):
                u = y[b, j] - theta[b, i]
                huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
                slope = u if abs(u) <= kappa else kappa * np.sign(u)
                tilt = abs(tau[b, i] - (u < 0))
                expected[b] += tilt * huber / kappa / m
                gradient[b, i] -= weight[b] * tilt * slope / kappa / m / rows
    quantiles = torch.from_numpy(theta).float().requires_grad_()
    fraction = torch.from_numpy(tau if own_fractions else tau[0].copy()).float()
    target = torch.from_numpy(y).float()
    close(quantile_huber(quantiles, fraction, target, kappa), expected)
    loss = qrdqn_loss(quantiles, fraction, target, kappa, torch.from_numpy(weight).float())
    close(loss, (weight * expected).mean())
    close(torch.autograd.grad(loss, quantiles)[0], gradient)
    close(qrdqn_loss(quantiles, fraction, target, kappa), expected.mean())


def test_quantile_regression_finds_the_quantiles() -> None:
    """The minimum of the loss is what it is named after: with κ small, the quantiles of the samples."""
    target = torch.arange(1001.0).view(1, -1) / 1000
    theta = torch.zeros(1, 4, requires_grad=True)
    for _ in range(800):
        (gradient,) = torch.autograd.grad(qrdqn_loss(theta, qrdqn_fractions(4), target, 1e-3), theta)
        with torch.no_grad():
            theta -= 0.01 * gradient
    close(theta[0], [0.125, 0.375, 0.625, 0.875], tolerance=0.01)


def test_iqn_cosines_begin_with_the_constant() -> None:
    close(iqn_cosines(torch.tensor([[0.0, 0.5, 1.0]]), 3), [[[1, 1, 1], [1, 0, -1], [1, -1, 1]]])
