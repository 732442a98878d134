"""Batch-constrained Q-learning for discrete actions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from rlexp.algos.base import OFFLINE
from rlexp.algos.dqn import DQN, Draw, dqn_target
from rlexp.compiling import phase
from rlexp.config.component import component
from rlexp.config.fields import Fraction, NonNegative
from rlexp.envs.spec import EnvSpec
from rlexp.models import Model
from rlexp.models.distributions import IMPOSSIBLE
from rlexp.optim import Adam
from rlexp.types import Batch, Obs, Update


def discrete_bcq_unlikely(logits: Tensor, threshold: float | Tensor) -> Tensor:
    """Where G(a|s) / max_a G(a|s) < τ, for the logits [B, A] of a model G of the data's actions: bool [B, A]."""
    return (logits - logits.amax(-1, keepdim=True)).exp() < threshold


def discrete_bcq_imitation_loss(logits: Tensor, action: Tensor, logit_penalty: float | Tensor) -> Tensor:
    """−E_D[log G(a|s)] + θ mean(logits²) of logits [B, A] and actions [B]."""
    return functional.cross_entropy(logits, action) + logit_penalty * logits.square().mean()


@component("algo", "discrete_bcq")
@dataclass(eq=False, kw_only=True)
class DiscreteBCQ(DQN):
    """Batch-constrained Q-learning on a double DQN (Fujimoto et al., 2019, arXiv:1910.01708).

    Q(s, a) → r + γ Q̄(s′, a′),   a′ = argmax Q(s′, ·) among the actions with  G(a|s′) / max_a G(a|s′) ≥ τ,
    where G is fitted to the data's actions; the greedy policy chooses in the same way. τ = 0 is double DQN, τ = 1
    imitates. For offline data and discrete actions that should not leave what the data show.
    """

    loops: ClassVar[frozenset[str]] = frozenset({OFFLINE})
    tied_to_data: ClassVar[bool] = True

    double: bool = field(init=False, default=True)  # the choice by the online network is part of the algorithm
    threshold: Fraction = 0.3  # τ: least probability of an action, as a share of the likeliest one's
    logit_penalty: NonNegative = 0.01  # θ: keeps the logits of G small

    def build(self, spec: EnvSpec, model: Model) -> None:
        """DQN's networks, and G."""
        super().build(spec, model)
        self.imitator = model.build(spec, spec.action.n, defaults=self.network)
        self.imitator_optimizer = Adam(
            self.imitator.named_parameters(), self.learning_rate, max_grad_norm=self.max_grad_norm
        )

    def update(self, batch: Batch) -> Update:
        """A step of Q, and one of G."""
        metrics, priority = super().update(batch)
        return Update(metrics | self.imitation_phase(batch), priority)

    @phase
    def imitation_phase(self, batch: Batch) -> dict[str, Tensor]:
        """One step of G towards the data's actions."""
        loss = discrete_bcq_imitation_loss(self.imitator(batch.obs), batch.action, self.logit_penalty)
        self.imitator_optimizer.step(loss)
        return {"loss/imitation": loss.detach()}

    def likely(self, values: Tensor, obs: Obs) -> Tensor:
        """Values [B, A], those of impossible actions and of ones unlike the data's far below all others."""
        logits = self.masked(self.imitator(obs), obs)
        return values.masked_fill(discrete_bcq_unlikely(logits, self.threshold), IMPOSSIBLE)

    def greedy(self, head: Tensor, obs: Obs) -> Tensor:
        """The best likely action [B] by such predictions."""
        return self.likely(self.masked(self.q_values(head), obs), obs).argmax(-1)

    @torch.no_grad()
    def bellman_target(self, batch: Batch, draws: dict[str, Draw]) -> Tensor:
        """y [B]: the online network's best likely action, valued by the target network."""
        following = batch.next_obs
        online_q = self.likely(self.masked(self.head(self.q, following, draws["choice"]), following), following)
        target_q = self.head(self.target_q, following, draws["target"])
        return dqn_target(batch.reward, batch.discount, target_q, online_q)
