"""Single updates of the algorithms that clone actions, recomputed from copies of the networks by loops over rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal

from rlexp.algos import AWAC, AWR, BC, CQL, CRR, IQL, MARWIL, XQL, CalQL
from rlexp.algos.bc import BCObjective
from rlexp.algos.crr import AdvantageType, WeightType
from rlexp.errors import ConfigError
from rlexp.models import Network
from rlexp.types import Batch
from tests.algos.common import CPU
from tests.algos.test_oracles import env_spec
from tests.algos.test_updates import ROWS, critic_loss, observe, set_up

KINDS = ("discrete", "continuous")


def policy_of(algo: Any, outputs: Tensor, log_std: Tensor | None, low: float, high: float) -> Any:
    """π from the outputs of a copied network, by torch.distributions."""
    if algo.discrete:
        return Categorical(logits=outputs)
    mean = outputs
    if log_std is None:
        mean, log_std = outputs.chunk(2, -1)
    return Independent(Normal(torch.tanh(mean), torch.clip(log_std, low, high).exp()), 1)


def copied_log_std(algo: Any) -> Tensor | None:
    return None if algo.log_std is None else algo.log_std.detach().clone()


def q_of(algo: Any, critic: Any, obs: Tensor, action: Tensor) -> Tensor:
    """Q_i(s, a), [n, B]."""
    if not algo.discrete:
        return critic(obs, action)[..., 0]
    return torch.stack([q[torch.arange(len(action)), action] for q in critic(obs)])


def least(q: Tensor) -> list[float]:
    return [min(q[i, b].item() for i in range(len(q))) for b in range(q.shape[1])]


def values(metrics: dict[str, Tensor]) -> dict[str, float]:
    return {name: value.item() for name, value in metrics.items()}


# ---- BC


@pytest.mark.parametrize("kind", KINDS)
def test_bc_raises_the_likelihood_of_the_data(kind: str) -> None:
    algo = set_up(BC(learning_rate=3e-3, min_log_std=-0.5), kind)
    batch, (actor,), _ = observe(algo, "actor")
    with torch.no_grad():
        policy = policy_of(algo, actor(batch.obs), None, -0.5, 0.0)
        expected = -sum(policy.log_prob(batch.action)[b].item() for b in range(ROWS)) / ROWS
    assert algo.update(batch).metrics["loss/actor"].item() == pytest.approx(expected, rel=1e-4)
    for _ in range(200):
        algo.update(batch)
    assert algo.update(batch).metrics["loss/actor"].item() < expected - 0.2


def test_a_deterministic_bc_clones_the_mean_and_has_nothing_to_explore_with() -> None:
    algo = set_up(BC(objective=BCObjective.mse), "continuous")
    batch, (actor,), _ = observe(algo, "actor")
    with torch.no_grad():
        error = torch.tanh(actor(batch.obs)) - batch.action
        expected = sum(error[b, d].item() ** 2 for b in range(ROWS) for d in range(2)) / (2 * ROWS)
    assert algo.update(batch).metrics["loss/actor"].item() == pytest.approx(expected, rel=1e-4)
    with torch.no_grad():
        acts = [
            algo.act(batch.obs, None, explore=explore, generator=algo.generator).action for explore in (True, False)
        ]
    assert torch.equal(*acts)


def test_bc_refuses_a_distance_between_discrete_actions() -> None:
    with pytest.raises(ConfigError, match=r"algo\.objective=nll"):
        BC(objective=BCObjective.mse).setup(env_spec("discrete"), Network(hidden=(4,)), device=CPU, seed=0)


# ---- AWAC and CRR


def expected_next_value(algo: Any, policy: Any, target: Any, batch: Batch, noise: Tensor | None) -> list[float]:
    """E min_i Q̄_i(s′, a′)."""
    if algo.discrete:
        q = target(batch.next_obs)
        return [sum(p.item() * min(q[:, b, a]).item() for a, p in enumerate(policy.probs[b])) for b in range(ROWS)]
    action = (policy.mean + policy.stddev * noise).clip(-1, 1)
    return least(target(batch.next_obs, action)[..., 0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("samples", [1, 3])
def test_awac_clones_by_the_advantage_over_its_own_policy(kind: str, samples: int) -> None:
    algo = set_up(AWAC(n_action_samples=samples, beta=0.02, max_weight=1.5, min_log_std=-0.001), kind)
    log_std = copied_log_std(algo)
    batch, (actor, critic, target), generator = observe(algo, "actor", "critic", "target_critic")
    metrics = values(algo.update(batch).metrics)
    with torch.no_grad():
        next_noise = noise = None
        if kind == "continuous":
            next_noise = torch.randn(ROWS, 2, generator=generator)
            noise = torch.randn(samples, ROWS, 2, generator=generator)
        following = policy_of(algo, actor(batch.next_obs), log_std, -0.001, 0.0)
        next_value = expected_next_value(algo, following, target, batch, next_noise)
        q = q_of(algo, critic, batch.obs, batch.action)
        assert metrics["loss/critic"] == pytest.approx(critic_loss(q, batch, next_value), rel=1e-4)

        policy = policy_of(algo, actor(batch.obs), log_std, -0.001, 0.0)
        new_q = least(q_of(algo, algo.critic, batch.obs, batch.action))  # by the critics after their step
        weights, advantages = [], []
        for b in range(ROWS):
            if kind == "discrete":
                each = algo.critic(batch.obs[b : b + 1])[:, 0]
                value = sum(p.item() * min(each[:, a]).item() for a, p in enumerate(policy.probs[b]))
            else:
                value = 0.0
                for j in range(samples):
                    action = (policy.mean[b] + policy.stddev[b] * noise[j, b]).clip(-1, 1)
                    value += min(algo.critic(batch.obs[b : b + 1], action[None])[:, 0, 0]).item() / samples
            advantages.append(new_q[b] - value)
            weights.append(min(math.exp(advantages[b] / 0.02), 1.5))
        log_prob = policy.log_prob(batch.action)
        loss = -sum(weights[b] * log_prob[b].item() for b in range(ROWS)) / ROWS
    assert 0 < sum(weight == 1.5 for weight in weights) < ROWS  # some were bounded
    assert metrics["loss/actor"] == pytest.approx(loss, rel=1e-3)
    assert metrics["advantage/mean"] == pytest.approx(sum(advantages) / ROWS, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("advantage_type", list(AdvantageType))
def test_crr_of_discrete_actions_compares_with_the_mean_or_with_sampled_ones(advantage_type: AdvantageType) -> None:
    algo = set_up(CRR(advantage_type=advantage_type, weight_type=WeightType.binary, n_action_samples=2), "discrete")
    batch, (actor,), generator = observe(algo, "actor")
    metrics = values(algo.update(batch).metrics)
    with torch.no_grad():
        policy, q = Categorical(logits=actor(batch.obs)), algo.critic(batch.obs).min(0).values
        exponential = torch.empty(2, ROWS, 3).exponential_(generator=generator)
        sampled = (actor(batch.obs) - exponential.log()).argmax(-1)  # Gumbel noise
        better, log_prob = [], policy.log_prob(batch.action)
        for b in range(ROWS):
            if advantage_type is AdvantageType.mean:
                baseline = sum(p.item() * q[b, a].item() for a, p in enumerate(policy.probs[b]))
            else:
                baseline = max(q[b, sampled[j, b]].item() for j in range(2))
            better.append(q[b, batch.action[b]].item() > baseline + 1e-7)
        loss = -sum(log_prob[b].item() for b in range(ROWS) if better[b]) / ROWS
    assert 0 < sum(better) < ROWS
    assert metrics["advantage/weight"] == pytest.approx(sum(better) / ROWS, rel=1e-5)
    assert metrics["loss/actor"] == pytest.approx(loss, rel=1e-4)


# ---- IQL and XQL


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cls", [IQL, XQL])
def test_iql_learns_its_value_first_and_actor_and_critic_by_the_new_one(cls: Any, kind: str) -> None:
    rates = dict.fromkeys(("actor_learning_rate", "critic_learning_rate", "value_learning_rate"), 0.03)
    settings = {"expectile": 0.8} if cls is IQL else {"temperature": 0.3, "max_z": 1.0}
    algo = set_up(cls(beta=2.0, max_weight=0.9, min_log_std=-0.001, **rates, **settings), kind)
    log_std = copied_log_std(algo)
    batch, (actor, critic, target, old_value), _ = observe(algo, "actor", "critic", "target_critic", "value_net")
    metrics = values(algo.update(batch).metrics)
    with torch.no_grad():
        target_q = least(q_of(algo, target, batch.obs, batch.action))
        u = [target_q[b] - old_value(batch.obs)[b, 0].item() for b in range(ROWS)]
        if cls is IQL:
            loss = sum((0.2 if each < 0 else 0.8) * each**2 for each in u) / ROWS
        else:
            z = [min(each / 0.3, 1.0) for each in u]
            m = max(*z, -1.0)
            loss = sum(math.exp(each - m) - (each + 1) * math.exp(-m) for each in z) / ROWS
        assert metrics["loss/value"] == pytest.approx(loss, rel=1e-4)

        value, next_value = algo.value_net(batch.obs)[:, 0], algo.value_net(batch.next_obs)[:, 0]  # after its step
        assert (value - old_value(batch.obs)[:, 0]).abs().max() > 1e-3
        policy = policy_of(algo, actor(batch.obs), log_std, -0.001, 2.0)
        log_prob = policy.log_prob(batch.action)
        weights = [min(math.exp(2.0 * (target_q[b] - value[b].item())), 0.9) for b in range(ROWS)]
        loss = -sum(weights[b] * log_prob[b].item() for b in range(ROWS)) / ROWS
        q = q_of(algo, critic, batch.obs, batch.action)
    assert 0 < sum(weight == 0.9 for weight in weights) < ROWS
    assert metrics["loss/actor"] == pytest.approx(loss, rel=1e-4)
    assert metrics["advantage/weight"] == pytest.approx(sum(weights) / ROWS, rel=1e-4)
    assert metrics["loss/critic"] == pytest.approx(critic_loss(q, batch, next_value.tolist()), rel=1e-4)


@pytest.mark.parametrize("cls", [IQL, XQL, AWAC])
def test_the_deviation_of_continuous_actions_is_one_for_all_states_and_learned(cls: Any) -> None:
    algo = set_up(cls(), "continuous")
    assert algo.log_std.shape == (2,)
    assert (algo.log_std != 0).all()
    with torch.no_grad():
        algo.log_std.fill_(-50.0)
    assert algo.policy(torch.zeros(1, 4)).log_std.tolist() == [algo.min_log_std] * 2
    assert algo.min_log_std == (-6.0 if cls is AWAC else -5.0)


@pytest.mark.parametrize("cls", [IQL, XQL, AWAC])
def test_the_deviation_may_be_a_function_of_the_state(cls: Any) -> None:
    algo = set_up(cls(state_dependent_std=True), "continuous")
    assert algo.log_std is None
    log_std = algo.policy(torch.randn(5, 4, generator=torch.Generator().manual_seed(0))).log_std
    assert log_std.shape == (5, 2)
    assert not torch.equal(log_std, log_std[:1].expand_as(log_std))  # some may be cut at their bound


# ---- MARWIL and AWR


@pytest.mark.parametrize("kind", KINDS)
def test_marwil_clones_by_returns_in_units_of_their_running_norm(kind: str) -> None:
    algo = set_up(MARWIL(beta=0.7, norm_rate=0.2, max_weight=1.3), kind)
    batch, (actor, old_value), _ = observe(algo, "actor", "value_net")
    mean = algo.norm.mean.item()
    metrics = values(algo.update(batch).metrics)
    with torch.no_grad():
        returns = batch.extras["mc_return"].tolist()
        advantage = [returns[b] - old_value(batch.obs)[b, 0].item() for b in range(ROWS)]
        square = sum(each**2 for each in advantage) / ROWS
        c = math.sqrt((mean + 0.2 * (square - mean)) / (1 - 0.8**4))  # the fourth update
        log_prob = policy_of(algo, actor(batch.obs), None, -5.0, 0.0).log_prob(batch.action)
        weights = [min(math.exp(0.7 * each / c), 1.3) for each in advantage]
        loss = -sum(weights[b] * log_prob[b].item() for b in range(ROWS)) / ROWS
    assert 0 < sum(weight == 1.3 for weight in weights) < ROWS
    assert metrics["loss/value"] == pytest.approx(square, rel=1e-4)
    assert metrics["loss/actor"] == pytest.approx(loss, rel=1e-4)


def test_marwil_without_beta_is_behaviour_cloning() -> None:
    marwil, bc = MARWIL(beta=0.0), BC()
    for algo in (marwil, bc):
        algo.setup(env_spec("discrete"), Network(hidden=(16,)), device=CPU, seed=4)
    batch, _, _ = observe(marwil)
    for _ in range(3):
        marwil.update(batch)
        bc.update(batch)
    for mine, other in zip(marwil.actor.parameters(), bc.actor.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("kind", KINDS)
def test_awr_clones_by_standardised_advantages(kind: str) -> None:
    algo = set_up(AWR(temperature=0.5, max_weight=2.0), kind)
    batch, (actor, old_value), _ = observe(algo, "actor", "value_net")
    metrics = values(algo.update(batch).metrics)
    with torch.no_grad():
        advantage = (batch.extras["lambda_return"] - old_value(batch.obs)[:, 0]).tolist()
        mean = sum(advantage) / ROWS
        deviation = math.sqrt(sum((each - mean) ** 2 for each in advantage) / ROWS)
        weights = [min(math.exp((each - mean) / (deviation + 1e-5) / 0.5), 2.0) for each in advantage]
        log_prob = policy_of(algo, actor(batch.obs), None, -5.0, 0.0).log_prob(batch.action)
        loss = -sum(weights[b] * log_prob[b].item() for b in range(ROWS)) / ROWS
    assert 0 < sum(weight == 2.0 for weight in weights) < ROWS
    assert metrics["loss/value"] == pytest.approx(sum(each**2 for each in advantage) / ROWS, rel=1e-4)
    assert metrics["loss/actor"] == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CRR(weight_type=WeightType.binary, beta=0.5), "beta has no effect with weight_type=binary"),
        (lambda: CRR(weight_type=WeightType.binary, max_weight=5.0), "max_weight has no effect"),
        (lambda: BC(objective=BCObjective.mse, min_log_std=-2.0), "min_log_std has no effect with objective=mse"),
        (lambda: CQL(multiplier_learning_rate=1e-3), "no effect without a target_gap"),
        (lambda: CalQL(multiplier_learning_rate=1e-3), "no effect without a target_gap"),
    ],
)
def test_a_setting_that_another_one_leaves_without_effect_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
