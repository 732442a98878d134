"""Quantile-regression DQN."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlexp.algos.dqn import DQN, Draw, dueling_values, value_taken
from rlexp.algos.losses import quantile_huber, td_priority, weighted_mean
from rlexp.config.component import component
from rlexp.config.fields import Positive, Size
from rlexp.envs.spec import EnvSpec
from rlexp.models import Model
from rlexp.types import Batch, Obs


def qrdqn_fractions(n: int, device: torch.device | None = None) -> Tensor:
    """The midpoints τ̂_i = (2i − 1) / 2N of N equal shares of probability, [N]."""
    return (torch.arange(n, device=device) + 0.5) / n


def qrdqn_loss(
    quantiles: Tensor, fraction: Tensor, target: Tensor, kappa: float | Tensor, weight: Tensor | None = None
) -> Tensor:
    """Quantile regression of ``quantiles`` [B, N] at ``fraction`` [N] or [B, N] onto samples ``target`` [B, N′]."""
    return weighted_mean(quantile_huber(quantiles, fraction, target, kappa), weight)


@component("algo", "qrdqn")
@dataclass(eq=False, kw_only=True)
class QRDQN(DQN):
    """DQN that learns quantiles of the return (Dabney et al., 2018, arXiv:1710.10044).

    θ_i(s, a) is the quantile of the return at τ̂_i; minimise  Σ_i E_j[ρ_τ̂i(r + γ θ̄_j(s′, a*) − θ_i(s, a))],
    a* = argmax_a′ mean_j θ̄_j(s′, a′), ρ the quantile Huber loss. Unlike C51 it needs no range of returns.
    """

    n_quantiles: Size = 200  # quantiles predicted for each action
    kappa: Positive = 1.0  # errors up to here count squared, larger ones linearly

    def q_network(self, spec: EnvSpec, model: Model) -> nn.Module:
        """Quantiles for each action, and for the state if dueling."""
        return self.net(spec, model, self.n_quantiles * (spec.action.n + self.dueling))

    def head(self, net: nn.Module, obs: Obs, draw: Draw) -> Tensor:
        """Quantiles [B, A, N]."""
        out = self.forward(net, obs, draw).unflatten(-1, (-1, self.n_quantiles))
        return dueling_values(out) if self.dueling else out

    def q_values(self, head: Tensor) -> Tensor:
        """Q(s, a), the mean of the quantiles, [B, A]."""
        return head.mean(-1)

    def fraction(self, draw: Draw) -> Tensor:
        """The τ at which the online network's quantiles lie."""
        return qrdqn_fractions(self.n_quantiles, self.device)

    def q_loss(self, batch: Batch, draws: dict[str, Draw]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Quantile regression onto the target network's quantiles; priorities are errors of the means."""
        with torch.no_grad():
            next_head = self.head(self.target_q, batch.next_obs, draws["target"])
            following = value_taken(next_head, self.choice(batch, next_head, draws))  # [B, N′]
            target = batch.reward[:, None] + batch.discount[:, None] * following
        quantiles = value_taken(self.head(self.q, batch.obs, draws["online"]), batch.action)  # [B, N]
        loss = qrdqn_loss(quantiles, self.fraction(draws["online"]), target, self.kappa, batch.weight)
        q = quantiles.mean(-1)
        return loss, q, td_priority(q, target.mean(-1), batch.weight)
