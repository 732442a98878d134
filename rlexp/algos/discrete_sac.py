"""Soft actor-critic for discrete actions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlexp.algos.base import DISCRETE
from rlexp.algos.sac import SAC
from rlexp.config.component import component
from rlexp.config.fields import Fraction
from rlexp.envs.spec import EnvSpec
from rlexp.models import Model, policy_distribution
from rlexp.types import Batch, Obs


def discrete_soft_value(probs: Tensor, log_probs: Tensor, q: Tensor, alpha: Tensor | float) -> Tensor:
    """V(s) = Σ_a π(a|s) (Q(s, a) − α log π(a|s)); the expectation is exact, nothing is sampled."""
    return (probs * (q - alpha * log_probs)).sum(-1)


def discrete_sac_actor_loss(probs: Tensor, log_probs: Tensor, q: Tensor, alpha: Tensor | float) -> Tensor:
    """E_s Σ_a π(a|s) (α log π(a|s) − Q(s, a))."""
    return -discrete_soft_value(probs, log_probs, q, alpha).mean()


@component("algo", "discrete_sac")
@dataclass(eq=False, kw_only=True)
class DiscreteSAC(SAC):
    """SAC with a categorical policy (Christodoulou, 2019, arXiv:1910.07207).

    The expectation over actions is taken exactly in both losses:
    critic target  r + γ Σ_a′ π(a′|s′) (min_i Q̄_i(s′, a′) − α log π(a′|s′)),
    actor          minimise  Σ_a π(a|s) (α log π(a|s) − min_i Q_i(s, a)).
    For discrete actions when steps are scarce and exploration should come from the policy itself.
    """

    actions: ClassVar[frozenset[str]] = frozenset({DISCRETE})
    unit_actions: ClassVar[bool] = False
    learned_alpha: ClassVar[tuple[str, ...]] = ("alpha_learning_rate", "initial_alpha", "target_entropy_ratio")

    target_entropy_scale: float = field(init=False, default=0.0)  # replaced by the ratio below
    target_entropy_ratio: Fraction = 0.5  # target entropy as a share of log |A|, that of a uniform policy

    def build_networks(self, spec: EnvSpec, model: Model) -> None:
        """Policy logits and critics, each with one output per action."""
        n = spec.action.n
        self.head = policy_distribution(spec.action)
        self.actor = model.build(spec, n, defaults=self.actor_network)
        self.critic = model.build(spec, n, defaults=self.critic_network.of_critic(), ensemble=self.n_critics)

    def policy(self, obs: Obs) -> Any:
        """π(·|s) over the actions that are possible."""
        return self.head.dist(self.masked(self.actor(obs), obs))

    def target_entropy(self, obs: Obs) -> Any:
        """H̄, a share of the largest entropy there is."""
        mask = self.spec.obs.mask_in(obs)
        largest = math.log(self.spec.action.n) if mask is None else mask.bool().sum(-1).log()
        return self.target_entropy_ratio * largest

    def randomness(self, batch: Batch) -> dict[str, Tensor]:
        """None: expectations are exact."""
        return {}

    def q_taken(self, batch: Batch) -> Tensor:
        """Q_i(s, a) of the actions in the batch, [n, B]."""
        q = self.critic(batch.obs)  # [n, B, A]
        return q.gather(-1, batch.action.expand(q.shape[0], -1).unsqueeze(-1))[..., 0]

    def action_value(self, obs: Obs, action: Tensor) -> Tensor:
        """min_i Q_i(s, a), [B]."""
        return self.critic(obs).amin(0).gather(-1, action.unsqueeze(-1))[..., 0]

    def next_value(self, next_obs: Obs, noise: dict[str, Tensor]) -> Tensor:
        """The soft value of the next state by the target critics, [B]."""
        policy = self.policy(next_obs)
        q = self.reduce_target(self.target_critic(next_obs), noise)  # [B, A]
        return discrete_soft_value(policy.probs, policy.log_probs, q, self.log_alpha.exp())

    def actor_loss(self, obs: Obs, alpha: Tensor, noise: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The actor's loss, and the policy's entropy [B]."""
        policy = self.policy(obs)
        with torch.no_grad():
            q = self.reduce_actor(self.critic(obs))  # [B, A]
        return discrete_sac_actor_loss(policy.probs, policy.log_probs, q, alpha), policy.entropy().detach()
