"""Every public loss, target and weight function: numbers worked out by hand, and plain loops on random inputs."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import rlexp.algos
import rlexp.contrib
from rlexp.algos.crossq import crossq_joint
from rlexp.algos.crr import AdvantageType, WeightType, crr_advantage, crr_loss, crr_weight
from rlexp.algos.ddpg import ddpg_actor_loss, ddpg_critic_loss
from rlexp.algos.discrete_sac import discrete_sac_actor_loss, discrete_soft_value
from rlexp.algos.dqn import dqn_loss, dqn_target
from rlexp.algos.losses import mse, weighted_mean
from rlexp.algos.ppo import ppo_loss
from rlexp.algos.redq import redq_target_value
from rlexp.algos.sac import sac_actor_loss, sac_alpha_loss, sac_critic_loss
from rlexp.algos.td3 import td3_smoothed_action
from rlexp.algos.tqc import tqc_loss, tqc_truncated


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def close(found: Tensor, expected: object, tolerance: float = 1e-5) -> None:
    wanted = torch.as_tensor(np.asarray(expected), dtype=torch.float32)
    torch.testing.assert_close(found.detach(), wanted, rtol=tolerance, atol=tolerance)


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def draw(rng: np.random.Generator, *shape: int) -> tuple[np.ndarray, Tensor]:
    array = rng.normal(size=shape)
    return array, torch.from_numpy(array).float()


def test_every_public_function_of_the_algorithms_is_tested_here() -> None:
    tested = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_losses*.py"))
    found = 0
    modules = [
        module
        for package in (rlexp.algos, rlexp.contrib)
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    ]
    for module in modules:
        for name, value in vars(importlib.import_module(module.name)).items():
            if inspect.isfunction(value) and value.__module__ == module.name and not name.startswith("_"):
                found += 1
                assert f"{name}(" in tested, f"{module.name}.{name} has no test of its numbers"
    assert found >= 13


# ---- pieces


def test_mse_sums_over_the_ensemble_and_averages_over_the_batch() -> None:
    # squared errors [[1, 4], [0, 9]] -> means 2.5 and 4.5, together 7
    prediction, target = torch.tensor([[1.0, 4.0], [2.0, -1.0]]), t(2, 2)
    close(mse(prediction, target), 7.0)
    # weights [3, 0.5] -> [[3, 2], [0, 4.5]] -> 2.5 + 2.25
    close(mse(prediction, target, t(3, 0.5)), 4.75)
    # one network: (1 + 4) / 2
    close(mse(prediction[0], target), 2.5)


def test_weighted_mean_divides_by_the_rows_and_not_by_the_weights() -> None:
    close(weighted_mean(t(1, 2, 6)), 3.0)
    close(weighted_mean(t(1, 2, 6), t(1, 0.5, 0)), 2 / 3)  # (1 + 1 + 0) / 3


# ---- PPO


RATIO = t(1.5, 1.5, 0.5, 0.5, 1.1)
ADVANTAGE = t(1.0, -1.0, 1.0, -1.0, 2.0)


def surrogate(**changes: object) -> dict[str, object]:
    zeros = torch.zeros(5)
    given = {
        "log_prob": RATIO.log() - 3.0,
        "old_log_prob": torch.full((5,), -3.0),
        "advantage": ADVANTAGE,
        "value": zeros,
        "old_value": zeros,
        "returns": zeros,
        "clip_range": 0.2,
    }
    return given | changes


def test_ppo_clips_only_what_would_profit_from_leaving_the_range() -> None:
    loss = ppo_loss(**surrogate())
    # ρ    A    ρA     clip(ρ)A   min
    # 1.5   1   1.5    1.2        1.2   clipped from above
    # 1.5  -1  -1.5   -1.2       -1.5   a bad action became likelier: not clipped
    # 0.5   1   0.5    0.8        0.5   a good action became rarer: not clipped
    # 0.5  -1  -0.5   -0.8       -0.8   clipped from below
    # 1.1   2   2.2    2.2        2.2   inside the range
    close(loss.policy, -(1.2 - 1.5 + 0.5 - 0.8 + 2.2) / 5)
    close(loss.clip_fraction, 4 / 5)
    # ρ − 1 − log ρ: 0.094535 twice, 0.193147 twice, 0.004690
    close(loss.approx_kl, (2 * 0.094535 + 2 * 0.193147 + 0.004690) / 5)


def test_ppo_has_no_gradient_where_it_clips() -> None:
    log_prob = (RATIO.log() - 3.0).requires_grad_()
    (gradient,) = torch.autograd.grad(ppo_loss(**surrogate(log_prob=log_prob)).policy, log_prob)
    # d(−ρA/5)/d log π = −ρA/5 where the ratio itself counts, else 0
    close(gradient, [0.0, 1.5 / 5, -0.5 / 5, 0.0, -2.2 / 5])


def test_ppo_takes_its_clip_range_as_a_tensor_too() -> None:
    plain, scheduled = ppo_loss(**surrogate()), ppo_loss(**surrogate(clip_range=torch.tensor(0.2)))
    assert all(map(torch.equal, plain, scheduled))
    # ±0.6 clips nothing: −(1.5 − 1.5 + 0.5 − 0.5 + 2.2) / 5
    wide = ppo_loss(**surrogate(clip_range=torch.tensor(0.6)))
    close(wide.policy, -2.2 / 5)
    close(wide.clip_fraction, 0.0)


def test_ppo_value_clipping_keeps_the_larger_error() -> None:
    value, old, returns = t(2.0, 2.0, 1.1, 0.5), torch.ones(4), t(3.0, 0.0, 2.0, 1.0)
    given = {"log_prob": torch.zeros(4), "old_log_prob": torch.zeros(4), "advantage": torch.zeros(4)}
    given |= {"value": value.requires_grad_(), "old_value": old, "returns": returns, "clip_range": 0.2}
    # (V − R)²: 1, 4, 0.81, 0.25
    close(ppo_loss(**given).value, (1 + 4 + 0.81 + 0.25) / 4)
    # V within 1 ± 0.2: 1.2, 1.2, 1.1, 0.8 -> errors 3.24, 1.44, 0.81, 0.04; the larger ones: 3.24, 4, 0.81, 0.25
    loss = ppo_loss(**given, value_clip=0.2).value
    close(loss, (3.24 + 4 + 0.81 + 0.25) / 4)
    (gradient,) = torch.autograd.grad(loss, value)
    # 2 (V − R) / 4, nothing where the clipped value counts
    close(gradient[[0, 1, 3]], [0.0, 1.0, -0.25])


def test_ppo_loss_equals_a_loop(rng: np.random.Generator) -> None:
    n = 50
    (new, new_t), (old, old_t) = draw(rng, n), draw(rng, n)
    (advantage, advantage_t), (value, value_t) = draw(rng, n), draw(rng, n)
    (before, before_t), (returns, returns_t) = draw(rng, n), draw(rng, n)
    found = ppo_loss(new_t, old_t, advantage_t, value_t, before_t, returns_t, 0.3, 0.4)
    policy = error = kl = clipped = 0.0
    for i in range(n):
        ratio = math.exp(new[i] - old[i])
        policy -= min(ratio * advantage[i], min(max(ratio, 0.7), 1.3) * advantage[i]) / n
        near = before[i] + min(max(value[i] - before[i], -0.4), 0.4)
        error += max((value[i] - returns[i]) ** 2, (near - returns[i]) ** 2) / n
        kl += (ratio - 1 - math.log(ratio)) / n
        clipped += (abs(ratio - 1) > 0.3) / n
    for part, expected in zip(found, (policy, error, kl, clipped), strict=True):
        close(part, expected, 1e-4)


# ---- DQN


TARGET_Q = torch.tensor([[1.0, 5.0, 2.0], [0.0, -1.0, -3.0], [7.0, 8.0, 9.0]])
ONLINE_Q = torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.0, 4.0], [0.0, 0.0, 1.0]])  # prefers actions 0, 2, 2
REWARD, DISCOUNT = t(1.0, -2.0, 10.0), t(0.9, 0.5, 0.0)  # the last row terminated


def test_dqn_target_takes_the_best_next_value_unless_the_episode_terminated() -> None:
    # 1 + 0.9·5, −2 + 0.5·0, 10 + 0
    close(dqn_target(REWARD, DISCOUNT, TARGET_Q), [5.5, -2.0, 10.0])


def test_double_dqn_evaluates_the_action_that_the_online_network_chooses() -> None:
    # 1 + 0.9·1, −2 + 0.5·(−3), 10 + 0
    close(dqn_target(REWARD, DISCOUNT, TARGET_Q, ONLINE_Q), [1.9, -3.5, 10.0])


def test_dqn_loss_is_quadratic_near_the_target_and_linear_beyond_one() -> None:
    q, target = t(0.5, 2.0, -3.0, 1.0), t(0.0, 0.0, 0.0, 2.0)
    # Huber: 0.5·0.25, 2 − 0.5, 3 − 0.5, and at exactly one 0.5
    close(dqn_loss(q, target), (0.125 + 1.5 + 2.5 + 0.5) / 4)
    # importance weights 2, 1, 0, 0.5: (0.25 + 1.5 + 0 + 0.25) / 4
    close(dqn_loss(q, target, t(2.0, 1.0, 0.0, 0.5)), 0.5)


def test_dqn_loss_bounds_the_gradient_of_each_row() -> None:
    q = t(0.5, 2.0, -3.0).requires_grad_()
    (gradient,) = torch.autograd.grad(dqn_loss(q, torch.zeros(3)), q)
    close(gradient, [0.5 / 3, 1 / 3, -1 / 3])


@pytest.mark.parametrize("double", [False, True])
def test_dqn_equals_a_loop(rng: np.random.Generator, double: bool) -> None:
    n, actions = 40, 4
    (reward, reward_t), (q, q_t) = draw(rng, n), draw(rng, n)
    (target_q, target_t), (online_q, online_t) = draw(rng, n, actions), draw(rng, n, actions)
    discount, weight = 0.97 * (rng.random(n) < 0.8), rng.random(n)
    total = 0.0
    targets = []
    for i in range(n):
        best = max(range(actions), key=lambda a: (online_q if double else target_q)[i][a])
        targets.append(reward[i] + discount[i] * target_q[i][best])
        distance = abs(q[i] - targets[i])
        total += weight[i] * (0.5 * distance**2 if distance < 1 else distance - 0.5) / n
    target = dqn_target(reward_t, torch.from_numpy(discount).float(), target_t, online_t if double else None)
    close(target, targets)
    close(dqn_loss(q_t, target, torch.from_numpy(weight).float()), total)


# ---- DDPG and TD3


def test_ddpg_critics_are_pulled_to_one_target_each() -> None:
    q, target = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), t(2.0, 2.0)
    # squares [[1, 0], [1, 4]] -> means 0.5 + 2.5
    close(ddpg_critic_loss(q, target), 3.0)
    # weights [2, 0.5] -> [[2, 0], [2, 2]] -> 1 + 2
    close(ddpg_critic_loss(q, target, t(2.0, 0.5)), 3.0)
    close(ddpg_critic_loss(q, target, t(2.0, 0.0)), 2.0)


def test_ddpg_actor_climbs_the_value_of_its_actions() -> None:
    q = t(1.0, -4.0, 6.0).requires_grad_()
    loss = ddpg_actor_loss(q)
    close(loss, -1.0)
    close(torch.autograd.grad(loss, q)[0], [-1 / 3] * 3)


def test_td3_smoothing_is_clipped_before_and_after_it_is_added() -> None:
    action, draw = t(0.0, 0.3, 0.9, -0.9, 0.5), t(1.0, -10.0, 1.0, -9.0, 0.0)
    # σ ε = 0.2, −2, 0.2, −1.8, 0 -> within ±0.5: 0.2, −0.5, 0.2, −0.5, 0 -> sums 0.2, −0.2, 1.1, −1.4, 0.5 within ±1
    close(td3_smoothed_action(action, draw, 0.2, 0.5), [0.2, -0.2, 1.0, -1.0, 0.5])
    close(td3_smoothed_action(action, draw, torch.tensor(0.2), torch.tensor(0.5)), [0.2, -0.2, 1.0, -1.0, 0.5])
    close(td3_smoothed_action(action, draw, 0.2, 0.0), action)


# ---- SAC


def test_sac_critics_share_one_target_that_terminated_rows_do_not_bootstrap() -> None:
    q, reward = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), t(1.0, 2.0)
    discount, next_value = t(0.9, 0.0), t(10.0, 100.0)
    # targets 1 + 0.9·10 = 10 and 2; squares [[81, 0], [49, 4]] -> means 40.5 + 26.5
    close(sac_critic_loss(q, reward, discount, next_value), 67.0)
    # weights [0.5, 2]: [[40.5, 0], [24.5, 8]] -> 20.25 + 16.25
    close(sac_critic_loss(q, reward, discount, next_value, t(0.5, 2.0)), 36.5)


def test_sac_actor_trades_value_against_entropy() -> None:
    # 0.5·(−1) − 3 = −3.5 and 0.5·2 + 1 = 2
    close(sac_actor_loss(0.5, t(-1.0, 2.0), t(3.0, -1.0)), (-3.5 + 2) / 2)


@pytest.mark.parametrize(("target_entropy", "gradient"), [(-2.0, 1.0), (0.5, -1.5)])
def test_sac_temperature_falls_while_the_entropy_is_above_its_target(target_entropy: float, gradient: float) -> None:
    log_alpha = torch.tensor(math.log(2.0), requires_grad=True)
    loss = sac_alpha_loss(log_alpha, t(1.0, -3.0), target_entropy)  # mean entropy −1
    close(loss, math.log(2) * gradient)
    (found,) = torch.autograd.grad(loss, log_alpha)
    close(found, gradient)  # mean entropy − target: positive, so that a step lowers log α


def test_sac_losses_equal_loops(rng: np.random.Generator) -> None:
    n, critics, alpha = 30, 3, 0.3
    (q, q_t), (reward, reward_t), (value, value_t) = draw(rng, critics, n), draw(rng, n), draw(rng, n)
    log_prob, log_prob_t = draw(rng, n)
    discount = 0.95 * (rng.random(n) < 0.7)
    critic = actor = temperature = 0.0
    for i in range(n):
        for k in range(critics):
            critic += (q[k][i] - reward[i] - discount[i] * value[i]) ** 2 / n
        actor += (alpha * log_prob[i] - min(q[k][i] for k in range(critics))) / n
        temperature += math.log(alpha) * (-log_prob[i] + 1.5) / n
    close(sac_critic_loss(q_t, reward_t, torch.from_numpy(discount).float(), value_t), critic)
    close(sac_actor_loss(alpha, log_prob_t, q_t.amin(0)), actor)
    close(sac_alpha_loss(torch.tensor(math.log(alpha)), -log_prob_t, -1.5), temperature)


# ---- discrete SAC


PROBS = torch.tensor([[0.5, 0.5], [0.9, 0.1]])
VALUES = torch.tensor([[1.0, 3.0], [0.0, 10.0]])


def test_discrete_soft_value_is_the_exact_expectation_of_value_and_entropy() -> None:
    # α = 0: 0.5·1 + 0.5·3 and 0.9·0 + 0.1·10
    close(discrete_soft_value(PROBS, PROBS.log(), VALUES, 0.0), [2.0, 1.0])
    # α = 0.2: entropies log 2 = 0.693147 and −0.9 log 0.9 − 0.1 log 0.1 = 0.325083
    close(discrete_soft_value(PROBS, PROBS.log(), VALUES, 0.2), [2 + 0.2 * 0.693147, 1 + 0.2 * 0.325083])


def test_discrete_sac_actor_minimises_minus_the_soft_value() -> None:
    close(discrete_sac_actor_loss(PROBS, PROBS.log(), VALUES, 1.0), -((2 + 0.693147) + (1 + 0.325083)) / 2)


def test_discrete_sac_actor_is_best_at_the_boltzmann_policy() -> None:
    # minimising α Σ π log π − Σ π Q gives π ∝ exp(Q/α), where the gradient to the logits vanishes
    q, alpha = torch.tensor([[1.0, 2.0, -1.0]]), 0.7
    logits = (q / alpha).clone().requires_grad_()
    log_probs = logits.log_softmax(-1)
    (gradient,) = torch.autograd.grad(discrete_sac_actor_loss(log_probs.exp(), log_probs, q, alpha), logits)
    close(gradient, np.zeros((1, 3)), 1e-6)


def test_discrete_sac_equals_a_loop(rng: np.random.Generator) -> None:
    n, actions, alpha = 20, 5, 0.4
    (logits, logits_t), (q, q_t) = draw(rng, n, actions), draw(rng, n, actions)
    values = []
    for i in range(n):
        total = sum(math.exp(x) for x in logits[i])
        p = [math.exp(x) / total for x in logits[i]]
        values.append(sum(p[a] * (q[i][a] - alpha * math.log(p[a])) for a in range(actions)))
    log_probs = logits_t.log_softmax(-1)
    close(discrete_soft_value(log_probs.exp(), log_probs, q_t, torch.tensor(alpha)), values)
    close(discrete_sac_actor_loss(log_probs.exp(), log_probs, q_t, torch.tensor(alpha)), -sum(values) / n)


# ---- CRR


def test_crr_advantage_is_taken_over_the_mean_or_the_best_of_the_samples() -> None:
    q, sampled = t(1.0, 2.0), torch.tensor([[0.0, 1.0], [4.0, 1.0], [2.0, 4.0]])
    close(crr_advantage(q, sampled, AdvantageType.mean), [1 - 2, 2 - 2])
    close(crr_advantage(q, sampled, AdvantageType.max), [1 - 4, 2 - 4])


def test_crr_binary_weight_clones_only_what_is_strictly_better() -> None:
    close(crr_weight(t(-1.0, 0.0, 0.5, 30.0), WeightType.binary, 1.0, 20.0), [0, 0, 1, 1])


def test_crr_exponential_weight_is_bounded() -> None:
    # A/β = −1, 0, 1, 10: e⁻¹, 1, e, and e¹⁰ = 22026 bounded
    advantage = t(-2.0, 0.0, 2.0, 20.0)
    close(crr_weight(advantage, WeightType.exp, 2.0, 20.0), [0.367879, 1.0, 2.718282, 20.0])
    scheduled = crr_weight(advantage, WeightType.exp, torch.tensor(2.0), torch.tensor(1.5))
    close(scheduled, [0.367879, 1.0, 1.5, 1.5])


def test_crr_weight_survives_an_overflowing_advantage() -> None:
    close(crr_weight(t(1e4, -1e4), WeightType.exp, 1.0, 20.0), [20.0, 0.0])  # e^1e4 is infinite before it is bounded


def test_crr_loss_is_the_weighted_negative_log_likelihood() -> None:
    # −(2·(−1) + 0·(−5) + 0.5·2) / 3
    close(crr_loss(t(-1.0, -5.0, 2.0), t(2.0, 0.0, 0.5)), 1 / 3)


@pytest.mark.parametrize("advantage_type", list(AdvantageType))
@pytest.mark.parametrize("weight_type", list(WeightType))
def test_crr_equals_a_loop(rng: np.random.Generator, advantage_type: AdvantageType, weight_type: WeightType) -> None:
    n, samples, beta, bound = 40, 5, 0.5, 3.0
    (q, q_t), (sampled, sampled_t), (log_prob, log_prob_t) = draw(rng, n), draw(rng, samples, n), draw(rng, n)
    total = 0.0
    for i in range(n):
        others = [sampled[j][i] for j in range(samples)]
        advantage = q[i] - (sum(others) / samples if advantage_type.name == "mean" else max(others))
        weight = float(advantage > 0) if weight_type.name == "binary" else min(math.exp(advantage / beta), bound)
        total -= weight * log_prob[i] / n
    weights = crr_weight(crr_advantage(q_t, sampled_t, advantage_type), weight_type, beta, bound)
    close(crr_loss(log_prob_t, weights), total)


# ---- CrossQ


def test_crossq_judges_both_halves_in_one_training_pass() -> None:
    passes = []

    def critic(obs: Tensor, action: Tensor) -> Tensor:
        """Two members; each takes the mean of the whole pass off, as batch normalisation would."""
        passes.append(len(obs))
        x = obs[:, 0] + 10 * action[:, 0]
        return torch.stack((x - x.mean(), 2 * (x - x.mean()))).unsqueeze(-1)

    columns = [t(*values)[:, None] for values in ((1, 2), (0.1, 0.2), (3, 4), (0.3, 0.4))]
    taken, following = crossq_joint(critic, *columns)  # type: ignore[arg-type]
    # x = 2, 4 now and 6, 8 later, of mean 5
    close(taken, [[-3.0, -1.0], [-6.0, -2.0]])
    close(following, [[1.0, 3.0], [2.0, 6.0]])
    assert passes == [4]


# ---- REDQ, and RLPD's subset


def test_redq_target_is_the_minimum_of_the_chosen_critics_only() -> None:
    q = torch.tensor([[5.0, 1.0], [-9.0, -9.0], [3.0, 4.0], [0.0, 0.0]])
    close(redq_target_value(q, torch.tensor([2, 0])), [3.0, 1.0])  # critics 0 and 2; −9 and 0 are not asked
    close(redq_target_value(q, torch.tensor([3])), [0.0, 0.0])


def test_redq_target_equals_a_loop(rng: np.random.Generator) -> None:
    q, q_t = draw(rng, 10, 25)
    subset = rng.permutation(10)[:3]
    expected = [min(q[k][i] for k in subset) for i in range(25)]
    close(redq_target_value(q_t, torch.from_numpy(subset)), expected)


# ---- TQC


def test_tqc_drops_the_largest_of_the_pooled_quantiles_not_of_each_critic() -> None:
    quantiles = torch.tensor([[[9.0, 1.0, 8.0]], [[2.0, 0.0, 3.0]]])  # two critics, one row, three quantiles
    close(tqc_truncated(quantiles, 1), [[0.0, 1.0, 2.0, 3.0]])  # two dropped in all: both of the first critic's
    close(tqc_truncated(quantiles, 2), [[0.0, 1.0]])
    close(tqc_truncated(quantiles, 0), [[0.0, 1.0, 2.0, 3.0, 8.0, 9.0]])


def test_tqc_loss_is_the_mean_over_critics_rows_quantiles_and_targets() -> None:
    # one row, critics (0, 2) and (1, 5) at τ (¼, ¾), targets (1, 3), κ 1; |τ − 1[u < 0]| H(u):
    # 0 to 1: ¼·½, to 3: ¼·2.5;  2 to 1: ¼·½, to 3: ¾·½;  1 to 1: 0, to 3: ¼·1.5;  5 to 1: ¼·3.5, to 3: ¼·1.5
    quantiles = torch.tensor([[[0.0, 2.0]], [[1.0, 5.0]]])
    total = 0.125 + 0.625 + 0.125 + 0.375 + 0.0 + 0.375 + 0.875 + 0.375
    found = tqc_loss(quantiles, t(0.25, 0.75), torch.tensor([[1.0, 3.0]]), 1.0)
    close(found, total / 8)
    close(tqc_loss(quantiles, t(0.25, 0.75), torch.tensor([[1.0, 3.0]]), 1.0, t(0.5)), total / 16)


def test_tqc_loss_and_its_gradient_equal_a_loop(rng: np.random.Generator) -> None:
    n, rows, k, m, kappa = 3, 6, 5, 7, 0.7
    (theta, theta_t), (y, y_t) = draw(rng, n, rows, k), draw(rng, rows, m)
    weight = rng.random(rows)
    total, gradient = 0.0, np.zeros_like(theta)
    for c in range(n):
        for b in range(rows):
            for i in range(k):
                for j in range(m):
                    u = y[b][j] - theta[c][b][i]
                    share = abs((i + 0.5) / k - (u < 0)) * weight[b] / (n * rows * k * m * kappa)
                    total += share * (0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa))
                    gradient[c][b][i] -= share * min(max(u, -kappa), kappa)
    theta_t.requires_grad_()
    fraction = torch.tensor([(i + 0.5) / k for i in range(k)])
    loss = tqc_loss(theta_t, fraction, y_t.sort(-1).values, kappa, torch.from_numpy(weight).float())
    close(loss, total)
    close(torch.autograd.grad(loss, theta_t)[0], gradient)
