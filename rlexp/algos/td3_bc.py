"""TD3 with behaviour cloning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from rlexp.algos.base import MIXED, OFFLINE, REPLAY
from rlexp.algos.td3 import TD3
from rlexp.config.component import component
from rlexp.config.fields import NonNegative
from rlexp.types import Batch


def td3_bc_loss(q: Tensor, action: Tensor, data_action: Tensor, alpha: float | Tensor) -> Tensor:
    """E[−λ Q(s, π(s)) + (π(s) − a)²] with λ = α / mean|Q|, through which no gradient flows; actions [B, A]."""
    scale = alpha / q.detach().abs().mean()
    return -scale * q.mean() + functional.mse_loss(action, data_action)


@component("algo", "td3_bc")
@dataclass(eq=False, kw_only=True)
class TD3BC(TD3):
    """TD3 with a behaviour-cloning term (Fujimoto & Gu, 2021, arXiv:2106.06860).

    Actor:  maximise  λ Q(s, π(s)) − (π(s) − a)²,  λ = α / mean|Q|.
    The critics are TD3's. The paper normalises observations: ``dataset.obs=standardize``.
    The first thing to try on offline data: fast, and one number to tune.
    """

    loops: ClassVar[frozenset[str]] = frozenset({OFFLINE, REPLAY, MIXED})
    tied_to_data: ClassVar[bool] = True

    alpha: NonNegative = 2.5  # weight of the value against cloning

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """What the policy minimises."""
        action = self.policy(batch.obs)
        return td3_bc_loss(self.first_q(batch.obs, action), action, batch.action, self.alpha)
