"""Categorical DQN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from rlexp.algos.dqn import DQN, Draw, dueling_values, value_taken
from rlexp.algos.losses import weighted_mean
from rlexp.config.component import component
from rlexp.config.fields import Size, Static
from rlexp.envs.spec import EnvSpec
from rlexp.errors import ConfigError
from rlexp.models import Model
from rlexp.types import Batch, Obs


def c51_projection(probs: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """Φ T Z: the distribution of r + γ z, z on ``support`` [K] with ``probs`` [B, K], put back onto the support.

    A shifted atom is shared between its two neighbours, each by its nearness: 1 − |distance| in steps of the support,
    which is all for the atom that it falls onto exactly. No mass is lost, and nothing is added in random order.
    """
    last = len(support) - 1
    shifted = reward[:, None] + discount[:, None] * support  # [B, K]
    # In steps; clipped here, since one rounding later a bound itself would fall beside its atom.
    position = ((shifted - support[0]) * (last / (support[-1] - support[0]))).clamp(0, last)
    atoms = torch.arange(last + 1, device=support.device)
    share = (1 - (position[:, None, :] - atoms[:, None]).abs()).clamp(min=0)  # [B, onto, from]
    return (share * probs[:, None, :]).sum(-1)


def c51_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """−Σ_i m_i log p_i for each row: logits [B, K], target probabilities [B, K] -> [B]."""
    return -(target * logits.log_softmax(-1)).sum(-1)


def c51_loss(logits: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """The (importance-weighted) mean cross-entropy between target and predicted distributions."""
    return weighted_mean(c51_cross_entropy(logits, target), weight)


@component("algo", "c51")
@dataclass(eq=False, kw_only=True)
class C51(DQN):
    """DQN that learns the distribution of returns on fixed atoms (Bellemare et al., 2017, arXiv:1707.06887).

    Z(s, a) on z_1 … z_K with probabilities softmax of the network;  Z(s, a) → Φ(r + γ Z̄(s′, argmax_a′ E Z̄(s′, a′))),
    Φ the projection onto the atoms, by cross-entropy. Returns outside of [v_min, v_max] cannot be represented.
    For when the range of returns is known; it usually learns faster than DQN.
    """

    n_atoms: Size = 51  # values that a return can take
    v_min: Annotated[float, Static()] = -10.0  # the smallest of them
    v_max: Annotated[float, Static()] = 10.0  # the largest of them

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.v_min < self.v_max:
            raise ConfigError(f"v_min={self.v_min:g} must be less than v_max={self.v_max:g}.")
        if self.n_atoms < 2:
            raise ConfigError(f"n_atoms must be at least 2, not {self.n_atoms}.")

    def q_network(self, spec: EnvSpec, model: Model) -> nn.Module:
        """Logits of every atom for each action, and for the state if dueling."""
        return self.net(spec, model, self.n_atoms * (spec.action.n + self.dueling))

    @property
    def support(self) -> Tensor:
        """The atoms z, [K]."""
        return torch.linspace(self.v_min, self.v_max, self.n_atoms, device=self.device)

    def head(self, net: nn.Module, obs: Obs, draw: Draw) -> Tensor:
        """Logits [B, A, K]; dueling adds those of state and advantages."""
        out = self.forward(net, obs, draw).unflatten(-1, (-1, self.n_atoms))
        return dueling_values(out) if self.dueling else out

    def q_values(self, head: Tensor) -> Tensor:
        """Q(s, a) = Σ_i p_i z_i, [B, A]."""
        return (head.softmax(-1) * self.support).sum(-1)  # a product of matrices would lose digits under autocast

    def q_loss(self, batch: Batch, draws: dict[str, Draw]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Cross-entropy with the projected target; priorities are the KL divergence from it (Rainbow)."""
        with torch.no_grad():
            next_head = self.head(self.target_q, batch.next_obs, draws["target"])
            next_probs = value_taken(next_head, self.choice(batch, next_head, draws)).softmax(-1)
            target = c51_projection(next_probs, batch.reward, batch.discount, self.support)
        logits = value_taken(self.head(self.q, batch.obs, draws["online"]), batch.action)  # [B, K]
        loss = c51_loss(logits, target, batch.weight)
        priority = None
        if batch.weight is not None:
            priority = c51_cross_entropy(logits.detach(), target) + torch.xlogy(target, target).sum(-1)
        return loss, self.q_values(logits), priority
