"""Ensemble-diversified actor-critic."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from rlexp.algos.sac_n import SACN
from rlexp.config.component import component
from rlexp.config.fields import NonNegative
from rlexp.envs.spec import EnvSpec
from rlexp.errors import ConfigError
from rlexp.models import Model
from rlexp.models.regularization import normalizes_by_batch
from rlexp.types import Batch


def edac_similarity(gradient: Tensor) -> Tensor:
    """E[Σ_{i≠j} cos(∇ₐQ_i(s, a), ∇ₐQ_j(s, a)) / (N − 1)] of gradients [N, B, A].

    With unit vectors u_i, Σ_{i≠j} u_i·u_j = |Σ_i u_i|² − Σ_i |u_i|²: no N × N products.
    """
    unit = functional.normalize(gradient, dim=-1, eps=1e-10)
    together, alone = unit.sum(0).square().sum(-1), unit.square().sum((0, -1))  # [B] each
    return ((together - alone) / (len(gradient) - 1)).mean()


@component("algo", "edac")
@dataclass(eq=False, kw_only=True)
class EDAC(SACN):
    """SAC-N whose critics are kept from agreeing (An et al., 2021, arXiv:2110.01548).

    Critic:  SAC's loss  +  η E_D[Σ_{i≠j} cos(∇ₐQ_i(s, a), ∇ₐQ_j(s, a)) / (N − 1)].
    Diverse gradients make the minimum of a few critics as cautious as that of hundreds. η = 0 is SAC-N.
    For offline data where SAC-N would need too many critics.
    """

    eta: NonNegative = 1.0  # η: weight of the similarity of the critics' gradients

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_critics < 2:
            raise ConfigError("algo.n_critics=1: EDAC compares critics with each other, so it needs at least 2.")

    def build(self, spec: EnvSpec, model: Model) -> None:
        """SAC-N's networks."""
        super().build(spec, model)
        self.by_batch = normalizes_by_batch(self.critic)

    def critic_loss(
        self, batch: Batch, next_value: Tensor, noise: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """SAC's loss and the similarity of ∇ₐQ_i, whose own gradient is taken too.

        Where Q_i is normalised by the batch, its slope there mixes the rows. Then ∇ₐQ_i is of another pass, by the
        running averages: the gradient that the actor follows.
        """
        action = batch.action.repeat(self.n_critics, 1, 1).requires_grad_()  # one for each critic: [n, B, A]
        asked = batch._replace(action=action)
        loss, q, metrics = super().critic_loss(batch if self.by_batch else asked, next_value, noise)
        values = self.q_taken(asked) if self.by_batch else q
        (gradient,) = torch.autograd.grad(values.sum(), action, create_graph=True)
        similarity = edac_similarity(gradient)
        return loss + self.eta * similarity, q, metrics | {"q/similarity": similarity.detach()}
