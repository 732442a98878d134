"""The loss functions of A2C, TRPO and RecurrentPPO: numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlexp.algos.a2c import a2c_loss
from rlexp.algos.actor_critic import explained_variance
from rlexp.algos.trpo import conjugate_gradient, flat, move_to, trpo_loss, unflat
from rlexp.contrib.recurrent_ppo import cut_sequences, masked_normalize, recurrent_ppo_loss


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_a2c_weighs_log_probabilities_by_advantages() -> None:
    # −(2·log ½ + (−1)·log ¼) / 2 = −(2·(−0.6931) + 1.3863) / 2 = 0; value errors (1 − 3)² and (0 − 1)² -> 2.5
    loss = a2c_loss(t(math.log(0.5), math.log(0.25)), t(2.0, -1.0), t(1.0, 0.0), t(3.0, 1.0))
    assert loss.policy.item() == pytest.approx(0.0, abs=1e-6)
    assert loss.value.item() == pytest.approx(2.5)
    # without the second row: −2·log ½ = 1.3863
    assert a2c_loss(t(math.log(0.5)), t(2.0), t(0.0), t(0.0)).policy.item() == pytest.approx(2 * math.log(2))


def test_explained_variance_is_one_less_the_share_of_the_residual() -> None:
    # returns 1, 3 have variance 1; residuals 0, 1 have variance ¼
    assert explained_variance(t(1.0, 2.0), t(1.0, 3.0)).item() == pytest.approx(0.75)
    assert explained_variance(t(2.0, 2.0), t(1.0, 3.0)).item() == pytest.approx(0.0)  # their mean explains nothing
    assert math.isfinite(explained_variance(t(1.0, 2.0), t(1.0, 1.0)).item())  # returns that are all alike


def test_trpo_weighs_probability_ratios_by_advantages() -> None:
    # ratios 2 and ½, advantages 3 and −2: −(6 − 1) / 2
    loss = trpo_loss(t(math.log(0.8), math.log(0.1)), t(math.log(0.4), math.log(0.2)), t(3.0, -2.0))
    assert loss.item() == pytest.approx(-2.5)


def test_conjugate_gradient_solves_a_small_system_and_then_stands_still() -> None:
    # [[4, 1], [1, 3]] x = [1, 2] has the solution [1/11, 7/11], found in two iterations
    matrix = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
    for iterations in (2, 3, 30):
        x = conjugate_gradient(lambda v: matrix @ v, t(1.0, 2.0), iterations)
        torch.testing.assert_close(x, t(1 / 11, 7 / 11))
    assert torch.equal(conjugate_gradient(lambda v: matrix @ v, torch.zeros(2), 5), torch.zeros(2))


def test_parameters_become_one_vector_and_move_by_fractions_of_it() -> None:
    parameters = [torch.zeros(2, 2), torch.tensor(1.0)]
    vector = flat([torch.arange(4.0).view(2, 2), torch.tensor(9.0)])
    assert vector.tolist() == [0, 1, 2, 3, 9]
    moves = unflat(vector, parameters)
    assert moves[0].tolist() == [[0, 1], [2, 3]]
    move_to(parameters, [torch.ones(2, 2), torch.tensor(1.0)], moves, torch.tensor(0.5))
    assert parameters[0].tolist() == [[1, 1.5], [2, 2.5]]
    assert parameters[1].item() == 5.5


def test_recurrent_ppo_averages_over_real_steps_only() -> None:
    # real: ratios 2 (clipped to 1.2) and ½ with advantages 1 and 1; value errors 4 and 0. The rest is padding.
    mask = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    log_prob = torch.tensor([[math.log(2.0), 5.0], [math.log(0.5), -3.0]])
    value, returns = torch.tensor([[1.0, 9.0], [2.0, 9.0]]), torch.tensor([[3.0, -9.0], [2.0, 0.0]])
    nothing, advantage = torch.zeros(2, 2), torch.tensor([[1.0, 8.0], [1.0, -8.0]])
    loss = recurrent_ppo_loss(log_prob, nothing, advantage, value, nothing, returns, mask, 0.2)
    assert loss.policy.item() == pytest.approx(-(1.2 + 0.5) / 2)
    assert loss.value.item() == pytest.approx(2.0)
    assert loss.clip_fraction.item() == pytest.approx(1.0)
    # ρ − 1 − log ρ: 1 − log 2 and −½ + log 2, their mean ¼
    assert loss.approx_kl.item() == pytest.approx(0.25)


def test_masked_normalize_sees_real_steps_only() -> None:
    found = masked_normalize(t(1.0, 3.0, 100.0, 5.0), t(1.0, 1.0, 0.0, 1.0))
    torch.testing.assert_close(found[[0, 1, 3]], t(-1.0, 0.0, 1.0))  # mean 3, deviation 2
    assert math.isfinite(masked_normalize(t(1.0, 2.0), t(1.0, 0.0))[0].item())


def test_sequences_follow_environments_and_are_padded_at_the_end() -> None:
    # step t of environment n is 10 t + n; five steps in sequences of two
    rollout = 10 * torch.arange(5)[:, None] + torch.arange(2)
    assert cut_sequences(rollout, 2).tolist() == [[0, 10], [1, 11], [20, 30], [21, 31], [40, 0], [41, 0]]
    assert cut_sequences(rollout, 5).tolist() == [[0, 10, 20, 30, 40], [1, 11, 21, 31, 41]]
    assert cut_sequences(torch.zeros(4, 3, 7), 2).shape == (6, 2, 7)
