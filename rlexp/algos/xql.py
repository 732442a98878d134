"""Extreme Q-learning."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlexp.algos.iql import IQL
from rlexp.algos.losses import weighted_mean
from rlexp.config.component import component
from rlexp.config.fields import Positive


def xql_value_loss(
    q: Tensor, value: Tensor, temperature: float | Tensor, max_z: float | Tensor, weight: Tensor | None = None
) -> Tensor:
    """E[e^z − z − 1] with z = (Q(s, a) − V(s)) / temperature, times e^{−m} for the batch's largest z, m (at least −1).

    The factor is constant to the gradient: it only keeps e^z in bounds. z is bounded from above by ``max_z``, beyond
    which there is no gradient.
    """
    z = ((q - value) / temperature).clamp(max=max_z)
    m = z.detach().amax().clamp(min=-1.0)
    return weighted_mean((z - m).exp() - (z + 1) * torch.exp(-m), weight)


@component("algo", "xql")
@dataclass(eq=False, kw_only=True)
class XQL(IQL):
    """Extreme Q-learning (Garg et al., 2023, arXiv:2301.02328).

    IQL whose V is fitted by Gumbel regression: minimise E_D[e^z − z − 1],  z = (Q̄(s, a) − V(s)) / temperature,
    so that V(s) → temperature · log E_D[e^{Q̄(s, a) / temperature}], the soft maximum over the data's actions.
    Bolder than an expectile on data with few good actions, at the price of a temperature in units of the reward.
    """

    expectile: float = field(init=False, default=0.5)  # V is a soft maximum instead
    temperature: Positive = 2.0  # of the soft maximum, in units of Q: towards 0 the best action of the data
    max_z: Positive = 7.0  # bound of z

    def value_loss(self, q: Tensor, value: Tensor, weight: Tensor | None) -> Tensor:
        """Gumbel regression."""
        return xql_value_loss(q, value, self.temperature, self.max_z, weight)
