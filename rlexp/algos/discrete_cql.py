"""Conservative Q-learning for discrete actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlexp.algos.base import OFFLINE
from rlexp.algos.dqn import DQN, Draw, dqn_loss, value_taken
from rlexp.algos.losses import td_priority
from rlexp.config.component import component
from rlexp.config.fields import NonNegative
from rlexp.types import Batch


def discrete_cql_gap(q: Tensor, taken: Tensor) -> Tensor:
    """E_s[log Σ_a exp Q(s, a) − Q(s, a_data)] of the values [B, A] and those of the data's actions [B]."""
    return (torch.logsumexp(q, -1) - taken).mean()


@component("algo", "discrete_cql")
@dataclass(eq=False, kw_only=True)
class DiscreteCQL(DQN):
    """Conservative Q-learning on a double DQN (Kumar et al., 2020, arXiv:2006.04779).

    Minimise  DQN's loss  +  α E_D[log Σ_a exp Q(s, a) − Q(s, a_data)]: the sum over actions is exact.
    For offline data and discrete actions: values of actions that the data do not show are pushed down.
    """

    loops: ClassVar[frozenset[str]] = frozenset({OFFLINE})
    tied_to_data: ClassVar[bool] = True

    double: bool = True  # the online network chooses the action that the target network evaluates
    conservative_weight: NonNegative = 1.0  # α: weight of the conservative term

    def q_loss(self, batch: Batch, draws: dict[str, Draw]) -> tuple[Tensor, Tensor, Tensor | None]:
        """The Bellman error and the conservative term, over the actions that are possible."""
        target = self.bellman_target(batch, draws)
        values = self.masked(self.head(self.q, batch.obs, draws["online"]), batch.obs)  # [B, A]
        q = value_taken(values, batch.action)
        loss = dqn_loss(q, target, batch.weight) + self.conservative_weight * discrete_cql_gap(values, q)
        return loss, q, td_priority(q, target, batch.weight)
