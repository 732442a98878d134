"""The losses of the offline algorithms that stay near their data, by hand and by plain loops from the papers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlexp.algos import samples
from rlexp.algos.bcq import bcq_perturbed, bcq_target_value
from rlexp.algos.bear import Kernel, bear_actor_loss, bear_mmd, bear_multiplier_loss
from rlexp.algos.cal_ql import cal_ql_bound
from rlexp.algos.cql import cql_gap, cql_loss, cql_multiplier_loss
from rlexp.algos.discrete_bcq import discrete_bcq_imitation_loss, discrete_bcq_unlikely
from rlexp.algos.discrete_cql import discrete_cql_gap
from rlexp.algos.edac import edac_similarity
from rlexp.algos.losses import vae_loss
from rlexp.algos.rebrac import rebrac_actor_loss, rebrac_penalty
from rlexp.algos.samples import repeat_obs, values_of_samples
from rlexp.algos.td3_bc import td3_bc_loss
from tests.algos.test_losses import close, draw, t


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1)


# ---- several actions for each state


class Sums(nn.Module):
    """A pair of critics whose values show which state met which action."""

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        value = 10 * obs.sum(-1, keepdim=True) + action.sum(-1, keepdim=True)
        return torch.stack((value, -value))


@pytest.mark.parametrize("rows", [1, 4, 768])  # one action at a time, two and one, all three
def test_every_sampled_action_is_valued_at_its_own_state(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "CPU_ROWS", rows)
    obs, actions = torch.tensor([[1.0], [2.0]]), torch.tensor([[[0.1], [0.2]], [[0.3], [0.4]], [[0.5], [0.6]]])
    expected = [[10.1, 20.2], [10.3, 20.4], [10.5, 20.6]]
    close(values_of_samples(Sums(), obs, actions), [expected, [[-x for x in row] for row in expected]])
    close(repeat_obs(obs, 3), [[1], [2], [1], [2], [1], [2]])


# ---- CQL


def test_cql_gap_by_hand() -> None:
    # one critic, one state, two actions of density ½: log(2e⁰ + 2e^log3) = log 8, over the data's value 1
    gap = cql_gap(torch.tensor([[1.0]]), torch.tensor([[[0.0], [math.log(3)]]]), torch.full((2, 1), math.log(0.5)))
    close(gap, [math.log(8) - 1])


def test_cql_gap_estimates_the_integral_over_all_actions() -> None:
    # Q(s, a) = −a²/2 on [−1, 1]: log ∫ exp Q da = log 1.711249. Samples of any density give it, up to log m.
    generator = torch.Generator().manual_seed(0)
    m = 400_000
    uniform = torch.rand(m, 1, generator=generator) * 2 - 1
    triangle = 1 - (torch.rand(m, 1, generator=generator)).sqrt()  # density 2 (1 − a) on [0, 1], half of the integral
    for actions, log_density, integral in (
        (uniform, torch.full((m, 1), math.log(0.5)), 1.711249),
        (triangle, (2 * (1 - triangle)).log(), 1.711249 / 2),
    ):
        gap = cql_gap(torch.zeros(1, 1), -0.5 * actions[None].square(), log_density)
        close(gap - math.log(m), [math.log(integral)], 1e-2)


def test_cql_gap_equals_a_loop(rng: np.random.Generator) -> None:
    n, m, b = 3, 7, 11
    (q, q_t), (sampled, sampled_t), (density, density_t) = draw(rng, n, b), draw(rng, n, m, b), draw(rng, m, b)
    expected = [
        sum(
            math.log(sum(math.exp(sampled[i][j][k]) / math.exp(density[j][k]) for j in range(m))) - q[i][k]
            for k in range(b)
        )
        / b
        for i in range(n)
    ]
    close(cql_gap(q_t, sampled_t, density_t), expected)


def test_cql_loss_adds_the_weighted_excess_of_every_critic() -> None:
    close(cql_loss(torch.tensor(7.0), t(2.0, 3.0), 5.0), 7 + 5 * (2 + 3))
    close(cql_loss(torch.tensor(7.0), t(2.0, 3.0), torch.tensor(5.0), 4.0), 7 + 5 * (2 - 4 + 3 - 4))


@pytest.mark.parametrize(("excess", "grows"), [(2.0, True), (-2.0, False)])
def test_cql_multiplier_grows_while_the_gap_is_too_large(excess: float, grows: bool) -> None:
    log_multiplier = torch.tensor(math.log(3.0), requires_grad=True)
    loss = cql_multiplier_loss(log_multiplier, torch.tensor(excess))
    close(loss, -3 * excess)
    (gradient,) = torch.autograd.grad(loss, log_multiplier)
    assert (gradient < 0) == grows  # a step goes against the gradient


def test_cql_multiplier_is_bounded() -> None:
    close(cql_multiplier_loss(torch.tensor(50.0), torch.tensor(1.0)), -1e6)


# ---- Cal-QL


def test_cal_ql_takes_the_larger_of_value_and_return_and_does_not_push_below_the_return() -> None:
    q = torch.tensor([[[1.0, 5.0], [3.0, -2.0]]], requires_grad=True)  # one critic, two actions, two states
    bound = cal_ql_bound(q, t(2.0, 4.0))
    close(bound, [[[2, 5], [3, 4]]])
    (gradient,) = torch.autograd.grad(bound.sum(), q)
    close(gradient, [[[0, 1], [1, 0]]])


def test_cal_ql_equals_a_loop(rng: np.random.Generator) -> None:
    (q, q_t), (returns, returns_t) = draw(rng, 2, 4, 9), draw(rng, 9)
    close(
        cal_ql_bound(q_t, returns_t),
        [[[max(q[i][j][b], returns[b]) for b in range(9)] for j in range(4)] for i in range(2)],
    )


# ---- EDAC


def test_edac_similarity_by_hand() -> None:
    # Three critics in one state, directions →, → (longer) and ↑: ordered pairs 2·(1 + 0 + 0), over N − 1 = 2
    close(edac_similarity(torch.tensor([[[1.0, 0.0]], [[5.0, 0.0]], [[0.0, 2.0]]])), 1.0)
    close(edac_similarity(torch.tensor([[[1.0, 0.0]], [[-3.0, 0.0]]])), -2.0)  # opposed: 2·(−1) / 1


def test_edac_similarity_equals_a_loop(rng: np.random.Generator) -> None:
    n, b = 5, 13
    gradient, gradient_t = draw(rng, n, b, 3)
    total = 0.0
    for k in range(b):
        for i in range(n):
            for j in range(n):
                if i != j:
                    x, y = gradient[i][k], gradient[j][k]
                    total += float(x @ y / math.sqrt((x @ x) * (y @ y))) / (n - 1) / b
    close(edac_similarity(gradient_t), total)


def test_edac_similarity_of_one_dimensional_actions_has_no_gradient() -> None:
    gradient = torch.tensor([[[0.5]], [[-2.0]], [[3.0]]], requires_grad=True)
    similarity = edac_similarity(gradient)
    close(similarity, -1.0)  # one pair alike, two opposed: 2·(1 − 1 − 1) / 2
    close(*torch.autograd.grad(similarity, gradient), torch.zeros(3, 1, 1))


def test_edac_similarity_of_flat_critics_is_zero_not_undefined() -> None:
    gradient = torch.zeros(3, 2, 4, requires_grad=True)
    similarity = edac_similarity(gradient)
    close(similarity, 0.0)
    assert torch.isfinite(torch.autograd.grad(similarity, gradient)[0]).all()


# ---- the model of the data's actions


def test_vae_loss_equals_a_loop(rng: np.random.Generator) -> None:
    b, a, latent, weight = 6, 2, 4, 0.5
    (made, made_t), (action, action_t) = draw(rng, b, a), draw(rng, b, a)
    (mean, mean_t), (log_std, log_std_t) = draw(rng, b, latent), draw(rng, b, latent)
    total = 0.0
    for i in range(b):
        for j in range(a):
            total += (made[i][j] - action[i][j]) ** 2 / (b * a)
        for j in range(latent):
            sigma2 = math.exp(log_std[i][j]) ** 2
            total -= weight * 0.5 * (1 + math.log(sigma2) - mean[i][j] ** 2 - sigma2) / (b * latent)
    close(vae_loss(made_t, action_t, mean_t, log_std_t, weight), total)
    same = torch.ones(3, 2)
    close(vae_loss(same, same, torch.zeros(3, 4), torch.zeros(3, 4), 1.0), 0.0)  # perfect, and at the prior


# ---- BCQ


def test_bcq_target_by_hand() -> None:
    # two critics, two actions: 0.75·1 + 0.25·5 = 2 and 0.75·2 + 0.25·3 = 2.25, of which the best
    close(bcq_target_value(torch.tensor([[[1.0], [3.0]], [[5.0], [2.0]]]), 0.75), [2.25])


def test_bcq_target_equals_a_loop(rng: np.random.Generator) -> None:
    q, q_t = draw(rng, 3, 5, 8)
    expected = []
    for b in range(8):
        soft = [0.6 * min(q[i][j][b] for i in range(3)) + 0.4 * max(q[i][j][b] for i in range(3)) for j in range(5)]
        expected.append(max(soft))
    close(bcq_target_value(q_t, 0.6), expected)


def test_bcq_moves_actions_by_at_most_phi_and_keeps_to_the_bounds() -> None:
    # tanh(100) = 1, tanh(0.5) = 0.462117
    moved = bcq_perturbed(t(0.0, 0.98, -0.98, 0.2), t(100.0, 100.0, -100.0, 0.5), 0.05)
    close(moved, [0.05, 1.0, -1.0, 0.2 + 0.05 * 0.462117])


# ---- BEAR


@pytest.mark.parametrize("kernel", list(Kernel))
def test_bear_mmd_equals_a_loop(rng: np.random.Generator, kernel: Kernel) -> None:
    m, other, b, sigma = 4, 5, 6, 1.5
    (x, x_t), (y, y_t) = draw(rng, m, b, 2), draw(rng, other, b, 2)

    def likeness(p: np.ndarray, q: np.ndarray) -> float:
        distance = abs(p - q).sum() if kernel.name == "laplacian" else ((p - q) ** 2).sum()
        return math.exp(-distance / (2 * sigma))

    expected = []
    for k in range(b):
        same = sum(likeness(x[i][k], x[j][k]) for i in range(m) for j in range(m)) / m**2
        same += sum(likeness(y[i][k], y[j][k]) for i in range(other) for j in range(other)) / other**2
        cross = sum(likeness(x[i][k], y[j][k]) for i in range(m) for j in range(other)) / (m * other)
        expected.append(math.sqrt(same - 2 * cross + 1e-6))
    close(bear_mmd(x_t, y_t, kernel, sigma), expected, 1e-4)


def test_bear_mmd_of_equal_samples_is_zero_with_a_finite_slope() -> None:
    samples = torch.randn(5, 3, 2, requires_grad=True)
    mmd = bear_mmd(samples.detach(), samples, Kernel.laplacian, 20.0)
    close(mmd, np.full(3, 1e-3), 1e-4)  # the root of the 1e-6 that keeps the slope finite
    assert torch.isfinite(torch.autograd.grad(mmd.sum(), samples)[0]).all()


def test_bear_losses_by_hand() -> None:
    close(bear_actor_loss(t(1.0, 3.0), t(0.5, 0.1), torch.tensor(10.0)), ((5 - 1) + (1 - 3)) / 2)
    log_multiplier = torch.tensor(math.log(2.0), requires_grad=True)
    for mmd, grows in ((t(0.5, 0.1), True), (t(0.01, 0.03), False)):
        loss = bear_multiplier_loss(log_multiplier, mmd, 0.05)
        close(loss, -2 * (mmd.mean().item() - 0.05))
        assert (torch.autograd.grad(loss, log_multiplier)[0] < 0) == grows


# ---- discrete forms


def test_discrete_cql_gap_equals_a_loop(rng: np.random.Generator) -> None:
    q, q_t = draw(rng, 9, 4)
    action = rng.integers(0, 4, 9)
    expected = sum(math.log(sum(math.exp(x) for x in q[i])) - q[i][action[i]] for i in range(9)) / 9
    close(discrete_cql_gap(q_t, q_t[torch.arange(9), torch.from_numpy(action)]), expected)


def test_discrete_bcq_leaves_actions_that_are_likely_enough() -> None:
    # probabilities 0.6, 0.3, 0.1, whatever is added to their logs; shares of the largest: 1, 0.5, 0.167
    logits = torch.tensor([[0.6, 0.3, 0.1]]).log() + 3.0
    assert discrete_bcq_unlikely(logits, 0.3).tolist() == [[False, False, True]]
    assert discrete_bcq_unlikely(logits, 0.6).tolist() == [[False, True, True]]
    assert discrete_bcq_unlikely(logits, 0.0).tolist() == [[False, False, False]]
    assert discrete_bcq_unlikely(logits, 1.0).tolist() == [[False, True, True]]  # the likeliest always stays


def test_discrete_bcq_imitation_equals_a_loop(rng: np.random.Generator) -> None:
    logits, logits_t = draw(rng, 8, 3)
    action = rng.integers(0, 3, 8)
    total = 0.0
    for i in range(8):
        total += math.log(sum(math.exp(x) for x in logits[i])) - logits[i][action[i]]
        total += 0.01 * sum(x**2 for x in logits[i]) / 3
    close(discrete_bcq_imitation_loss(logits_t, torch.from_numpy(action), 0.01), total / 8)


# ---- TD3+BC and ReBRAC


def test_td3_bc_loss_by_hand() -> None:
    # mean|Q| = 3, λ = 2.5/3; −λ·mean Q = −2.5/3·1; cloning: (1 + 0 + 4 + 0)/4
    q = t(4.0, -2.0).requires_grad_()
    loss = td3_bc_loss(q, torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [2.0, 0.0]]), 2.5)
    close(loss, -2.5 / 3 + 1.25)
    close(torch.autograd.grad(loss, q)[0], [-2.5 / 3 / 2] * 2)  # none through the normalisation


def test_td3_bc_loss_equals_a_loop(rng: np.random.Generator) -> None:
    (q, q_t), (action, action_t), (data, data_t) = draw(rng, 10), draw(rng, 10, 3), draw(rng, 10, 3)
    scale = 1.7 / (sum(abs(x) for x in q) / 10)
    total = 0.0
    for i in range(10):
        total += -scale * q[i] / 10 + sum((action[i][j] - data[i][j]) ** 2 for j in range(3)) / 30
    close(td3_bc_loss(q_t, action_t, data_t, 1.7), total)


@pytest.mark.parametrize("normalize", [True, False])
def test_rebrac_losses_equal_a_loop(rng: np.random.Generator, normalize: bool) -> None:
    (q, q_t), (action, action_t), (data, data_t) = draw(rng, 10), draw(rng, 10, 3), draw(rng, 10, 3)
    penalty = [sum((action[i][j] - data[i][j]) ** 2 for j in range(3)) for i in range(10)]
    close(rebrac_penalty(action_t, data_t), penalty)
    scale = 1 / (sum(abs(x) for x in q) / 10) if normalize else 1.0
    total = sum(0.3 * penalty[i] - scale * q[i] for i in range(10)) / 10
    close(rebrac_actor_loss(q_t, torch.tensor(penalty).float(), 0.3, normalize=normalize), total)


def test_rebrac_normalisation_has_no_gradient() -> None:
    q = t(4.0, -2.0).requires_grad_()
    loss = rebrac_actor_loss(q, torch.zeros(2), 1.0)
    close(torch.autograd.grad(loss, q)[0], [-1 / 3 / 2] * 2)
