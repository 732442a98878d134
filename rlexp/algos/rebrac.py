"""Revisited behaviour-regularised actor-critic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from rlexp.algos.td3_bc import TD3BC
from rlexp.config.component import component
from rlexp.config.fields import NonNegative, Positive
from rlexp.models import NetDefaults, Norm
from rlexp.types import Batch


def rebrac_penalty(action: Tensor, data_action: Tensor) -> Tensor:
    """|a − a_data|², summed over the action's dimensions: [B, A] -> [B]."""
    return (action - data_action).square().sum(-1)


def rebrac_actor_loss(q: Tensor, penalty: Tensor, beta: float | Tensor, *, normalize: bool = True) -> Tensor:
    """E[β₁ |π(s) − a|² − λ min_i Q_i(s, π(s))], λ = 1 / mean|Q| without gradient, or 1; q and penalty [B]."""
    scaled = q / q.detach().abs().mean() if normalize else q
    return (beta * penalty - scaled).mean()


@component("algo", "rebrac")
@dataclass(eq=False, kw_only=True)
class ReBRAC(TD3BC):
    """Revisited behaviour-regularised actor-critic (Tarasov et al., 2023, arXiv:2305.09836).

    Actor:   maximise  λ min_i Q_i(s, π(s)) − β₁ |π(s) − a|²,  λ = 1 / mean|Q|.
    Critic:  Q_i(s, a) → r + γ (min_i Q̄_i(s′, a′) − β₂ |a′ − a′_data|²),  a′ as in TD3, a′_data the data's next action.
    Deeper networks, critics with LayerNorm. The strongest of the simple offline algorithms, with two numbers to tune.
    """

    derived: ClassVar[frozenset[str]] = frozenset({"next_action"})
    actor_network: ClassVar[NetDefaults] = NetDefaults(hidden=(256, 256, 256))
    critic_network: ClassVar[NetDefaults] = NetDefaults(hidden=(256, 256, 256), norm=Norm.layer_after)

    actor_learning_rate: Positive = 1e-3  # step size of the policy
    critic_learning_rate: Positive = 1e-3  # step size of the critics
    alpha: float = field(init=False, default=0.0)  # of TD3+BC, replaced by the two coefficients
    actor_bc_coef: NonNegative = 0.001  # β₁: weight of cloning in the actor's loss
    critic_bc_coef: NonNegative = 0.01  # β₂: what is subtracted for a next action unlike the data's
    normalize_q: bool = True  # divide the actor's values by mean|Q|

    def target(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """TD3's y, less the penalty of a′, [B]."""
        next_action = self.next_action(batch, noise)
        next_q = self.target_critic(batch.next_obs, next_action)[..., 0].amin(0)
        known = batch.extras["next_action_known"]  # not where an episode was cut
        penalty = known * rebrac_penalty(next_action, batch.extras["next_action"])
        return batch.reward + batch.discount * (next_q - self.critic_bc_coef * penalty)

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """What the policy minimises."""
        action = self.policy(batch.obs)
        penalty = rebrac_penalty(action, batch.action)
        q = self.q(batch.obs, action).amin(0)
        return rebrac_actor_loss(q, penalty, self.actor_bc_coef, normalize=self.normalize_q)
