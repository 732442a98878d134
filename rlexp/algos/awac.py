"""Advantage-weighted actor-critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from rlexp.algos.base import MIXED, OFFLINE, REPLAY
from rlexp.algos.cloning import CriticCloning
from rlexp.algos.losses import mse, td_priority
from rlexp.compiling import phase
from rlexp.config.component import component
from rlexp.config.fields import Positive, Size, Static, Structure
from rlexp.types import Batch, Update


def awac_weight(advantage: Tensor, beta: float | Tensor, max_weight: float | Tensor) -> Tensor:
    """exp(A / β) up to ``max_weight``."""
    return (advantage / beta).exp().clamp(max=max_weight)


def awac_loss(log_prob: Tensor, weight: Tensor) -> Tensor:
    """−E[exp(A(s, a) / β) log π(a|s)] over the dataset's actions: a mean, whatever the size of the batch."""
    return -(weight * log_prob).mean()


@component("algo", "awac")
@dataclass(eq=False, kw_only=True)
class AWAC(CriticCloning):
    """Advantage-weighted actor-critic (Nair et al., 2020, arXiv:2006.09359).

    Critic:  Q_i(s, a) → r + γ E min_i Q̄_i(s′, a′),  a′ ~ π(·|s′).
    Actor:   maximise  E_D[e^{A(s, a)/β} log π(a|s)],  A(s, a) = Q(s, a) − E Q(s, a_π),  a_π ~ π(·|s).
    Offline data first and environment steps afterwards: the same update serves both, as it never leaves the actions
    that were really taken (β is the paper's λ). Of discrete actions the expectations are exact.
    """

    loops: ClassVar[frozenset[str]] = frozenset({OFFLINE, REPLAY, MIXED})

    beta: Positive = 1 / 3  # temperature of the weights: the lower, the more only the best actions are cloned
    n_action_samples: Size = 1  # policy actions that estimate the value of a state (of discrete ones it is exact)
    max_weight: Positive = 100.0  # bound of the weights
    state_dependent_std: Structure = False  # whether each state has a deviation of its own (continuous actions)
    min_log_std: Annotated[float, Static()] = -6.0  # bound of the policy's deviation from below (continuous actions)

    def update(self, batch: Batch) -> Update:
        """Critics with their targets, then the actor."""
        self.updates += 1
        metrics, priority = self.learn_phase(batch, self.randomness(len(batch.reward)))
        return Update(metrics, priority)

    def randomness(self, size: int) -> dict[str, Tensor]:
        """All random numbers of one update."""
        if self.discrete:
            return {}
        return {"next_action": self.policy_noise(1, size), "action": self.policy_noise(self.n_action_samples, size)}

    @phase
    def learn_phase(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
        """One step of the critics towards the value of the policy, then one of the policy by the new critics."""
        with torch.no_grad():
            following = self.policy(batch.next_obs)
            next_q = self.expected_q(self.target_critic, batch.next_obs, following, noise.get("next_action"))
            target = batch.reward + batch.discount * next_q
        q = self.q(self.critic, batch.obs, batch.action)  # [n, B]
        critic_loss = mse(q, target, batch.weight)
        self.critic_optimizer.step(critic_loss)
        self.target_critic.follow(self.tau)
        policy = self.policy(batch.obs)
        log_prob = policy.log_prob(batch.action)  # before the rest, which has no gradient
        with torch.no_grad():
            advantage, weight = self.advantage(batch, policy, noise)
        actor_loss = awac_loss(log_prob, weight)
        self.actor_optimizer.step(actor_loss)
        metrics = {"loss/critic": critic_loss.detach(), "q/mean": q.detach().mean(), "loss/actor": actor_loss.detach()}
        metrics |= {"advantage/mean": advantage.mean(), "advantage/weight": weight.mean()}
        return metrics, td_priority(q, target, batch.weight)

    def advantage(self, batch: Batch, policy: Any, noise: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """A(s, a) of the batch's actions and the weight each is cloned with, [B]."""
        value = self.expected_q(self.critic, batch.obs, policy, noise.get("action"))
        advantage = self.q(self.critic, batch.obs, batch.action).amin(0) - value
        return advantage, awac_weight(advantage, self.beta, self.max_weight)
