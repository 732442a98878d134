"""What TRPO rests on: the Fisher-vector product, and a step that keeps to its bound and never makes things worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlexp.algos import TRPO
from rlexp.algos.trpo import conjugate_gradient, flat, unflat
from rlexp.models import Network
from rlexp.runner import Runner
from rlexp.types import Rollout, Update
from tests.algos.common import CPU, random_rollout, small_config
from tests.algos.oracles import ppo
from tests.algos.test_oracles import ACTIONS, env_spec


def trpo(kind: str, **settings: Any) -> TRPO:
    algo = TRPO(initial_log_std=-0.3, **settings)
    algo.setup(env_spec(kind), Network(hidden=(5,)), device=CPU, seed=2)
    with torch.no_grad():  # policies of a fresh network are nearly uniform, and their Fisher matrix nearly simple
        for parameter in algo.actor.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7)))
    return algo


def torch_policy(algo: TRPO, kind: str, outputs: Tensor, log_std: Tensor | None) -> Any:
    return ppo.distribution_of(kind, list(ACTIONS[kind].nvec), log_std)(outputs)


def kl(kind: str, old: Any, new: Any) -> Tensor:
    """KL(old ‖ new) [B] of torch's own distributions."""
    if kind == "multi_discrete":
        return sum(torch.distributions.kl_divergence(a, b) for a, b in zip(old.parts, new.parts))
    if kind == "multi_binary":
        return torch.distributions.kl_divergence(old.bits, new.bits).sum(1)
    return torch.distributions.kl_divergence(old, new)


def outputs_by_hand(obs: Tensor, weights: list[Tensor]) -> Tensor:
    """The small actor as a function of its weights."""
    return torch.tanh(obs @ weights[0].T + weights[1]) @ weights[2].T + weights[3]


@pytest.mark.parametrize("kind", ACTIONS)
def test_the_fisher_vector_product_is_that_of_the_dense_hessian(kind: str) -> None:
    algo = trpo(kind, cg_damping=0.05)
    obs = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    parameters = [parameter.detach().clone() for parameter in algo.policy_parameters()]
    old_weights, old_spread = parameters[:4], parameters[4] if kind == "continuous" else None
    old = torch_policy(algo, kind, outputs_by_hand(obs, old_weights), old_spread)

    def mean_kl(vector: Tensor) -> Tensor:
        parts = unflat(vector, parameters)
        new = torch_policy(algo, kind, outputs_by_hand(obs, parts[:4]), parts[4] if kind == "continuous" else None)
        return kl(kind, old, new).mean()

    at = flat(parameters)
    hessian = torch.autograd.functional.hessian(mean_kl, at)
    product = algo.fisher_product(algo.actor(obs))
    found = torch.stack([product(row) for row in torch.eye(len(at))])
    torch.testing.assert_close(found, hessian + 0.05 * torch.eye(len(at)), rtol=1e-3, atol=1e-5)
    # and the conjugate gradient solves it
    b = torch.randn(len(at), generator=torch.Generator().manual_seed(1))
    x = conjugate_gradient(product, b, 60)
    torch.testing.assert_close(found @ x, b, rtol=1e-4, atol=1e-4)


def surrogate(algo: TRPO, rollout: Rollout, advantage: Tensor, old_log_prob: Tensor) -> float:
    with torch.no_grad():
        ratio = (algo.policy(rollout.obs.flatten(0, 1)).log_prob(rollout.action.flatten(0, 1)) - old_log_prob).exp()
    return (ratio * advantage.flatten()).mean().item()


@pytest.mark.parametrize("kind", ACTIONS)
def test_a_step_improves_the_surrogate_as_far_as_the_bound_allows(kind: str) -> None:
    algo = trpo(kind, normalize_advantage=False)
    rollout = random_rollout(algo, steps=30, num_envs=4)
    obs, action = rollout.obs.flatten(0, 1), rollout.action.flatten(0, 1)
    with torch.no_grad():
        old = algo.policy(obs)
        old_log_prob = old.log_prob(action)
    old = torch_policy(
        algo, kind, algo.actor(obs).detach(), None if algo.log_std is None else algo.log_std.detach().clone()
    )
    advantage, _ = algo.advantages(rollout)
    before = surrogate(algo, rollout, advantage, old_log_prob)
    metrics = algo.update(rollout).metrics
    after = surrogate(algo, rollout, advantage, old_log_prob)
    assert after > before
    assert metrics["loss/policy"].item() == pytest.approx(-after, rel=1e-4)
    moved = kl(kind, old, torch_policy(algo, kind, algo.actor(obs), algo.log_std)).mean().item()
    assert metrics["policy/kl"].item() == pytest.approx(moved, rel=1e-3)
    assert 0.2 * algo.target_kl < moved <= algo.target_kl  # near the bound, not anywhere inside


def test_the_gradients_of_the_value_function_are_scaled_down_to_the_norm_that_is_set() -> None:
    def moved(norm: float | None) -> float:
        algo = trpo("discrete", max_grad_norm=norm)
        before = [parameter.detach().clone() for parameter in algo.critic.parameters()]
        algo.update(random_rollout(algo))
        return max((new - old).abs().max().item() for new, old in zip(algo.critic.parameters(), before))

    # Adam divides by |g| + 1e-8, so a gradient of norm 1e-12 moves nothing by more than 1e-4 of its step size
    assert moved(1e-12) < 1e-3 * moved(1e6)
    assert moved(1e6) == moved(None)


def test_a_step_that_no_fraction_of_improves_is_not_taken() -> None:
    algo = trpo("discrete")
    rollout = random_rollout(algo)
    before = [parameter.detach().clone() for parameter in algo.policy_parameters()]
    obs, action = rollout.obs.flatten(0, 1), rollout.action.flatten(0, 1)
    step, advantage = torch.ones(len(flat(before))), torch.zeros(len(obs))
    with torch.no_grad():
        metrics = algo.line_search(algo.policy_parameters(), step, algo.policy(obs), obs, action, advantage, {})
    assert metrics["policy/step"].item() == metrics["policy/kl"].item() == 0
    assert all(torch.equal(new, old) for new, old in zip(algo.policy_parameters(), before))


def test_the_line_search_takes_the_longest_fraction_that_fits() -> None:
    algo = trpo("discrete", target_kl=1e-3, line_search_shrink=0.5)
    rollout = random_rollout(algo, steps=20)
    obs, action = rollout.obs.flatten(0, 1), rollout.action.flatten(0, 1)
    advantage = torch.randn(len(obs), generator=torch.Generator().manual_seed(3))
    start = [parameter.detach().clone() for parameter in algo.policy_parameters()]
    old = algo.policy(obs)
    loss = -(old.log_prob(action) * advantage).mean()
    step = -0.5 * flat(torch.autograd.grad(loss, algo.policy_parameters()))
    with torch.no_grad():
        metrics = algo.line_search(algo.policy_parameters(), step, algo.policy(obs), obs, action, advantage, {})
        expected = None
        for k in range(10):
            for parameter, begin, move in zip(algo.policy_parameters(), start, unflat(step, start)):
                parameter.copy_(begin + 0.5**k * move)
            new = algo.policy(obs)
            gain = ((new.log_prob(action) - old.log_prob(action)).exp() * advantage).mean() - advantage.mean()
            if old.kl(new).mean() <= 1e-3 and gain > 0:
                expected = 0.5**k
                break
    assert expected is not None
    assert expected < 1  # the whole step was too long
    assert metrics["policy/step"].item() == expected


def test_the_bound_holds_over_a_whole_run(tmp_path: Path) -> None:
    changes = ("trainer.total_steps=800", "trainer.rollout_steps=20", "trainer.eval_episodes=0", "algo.target_kl=0.02")
    runner = Runner(small_config("trpo", changes=changes))
    algo, moved, taken = runner.algo, [], []
    update = algo.update

    def watched(batch: Rollout) -> Update:
        obs = batch.obs.flatten(0, 1).clone()
        old = torch.distributions.Categorical(logits=algo.actor(obs).detach())
        result = update(batch)
        new = torch.distributions.Categorical(logits=algo.actor(obs).detach())
        moved.append(torch.distributions.kl_divergence(old, new).mean().item())
        taken.append(result.metrics["policy/step"].item())
        return result

    algo.update = watched  # type: ignore[method-assign]
    runner.train(tmp_path / "run")
    assert len(moved) == 20
    assert max(moved) <= 0.02 * (1 + 1e-4)
    assert sum(step > 0 for step in taken) >= 15  # and it did move
