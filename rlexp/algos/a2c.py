"""Advantage actor–critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from rlexp.algos.actor_critic import ActorCritic, explained_variance
from rlexp.compiling import phase
from rlexp.config.component import component
from rlexp.config.fields import Fraction, NonNegative, Positive, Static
from rlexp.envs.spec import EnvSpec
from rlexp.models import Model
from rlexp.optim import RMSprop
from rlexp.tree import tree_map
from rlexp.types import Obs, Rollout, Update


class A2CLoss(NamedTuple):
    """The parts of A2C's objective, each to be minimised."""

    policy: Tensor
    value: Tensor


def a2c_loss(log_prob: Tensor, advantage: Tensor, value: Tensor, returns: Tensor) -> A2CLoss:
    """The policy gradient −E[A log π(a|s)] and the value error E[(V − R)²]; all inputs [B]."""
    return A2CLoss(-(advantage * log_prob).mean(), (value - returns).square().mean())


METRICS = ("loss/policy", "loss/value", "policy/entropy", "loss/grad_norm", "value/explained_variance")


@component("algo", "a2c")
@dataclass(eq=False, kw_only=True)
class A2C(ActorCritic):
    """Advantage actor–critic: the synchronous form of A3C (Mnih et al., 2016, arXiv:1602.01783).

    Maximise  E[A log π(a|s)] − c_v E[(V − R)²] + c_e H(π)  by one step on each short rollout.
    Simple and quick where many environments run side by side; PPO takes more from every step.
    """

    can_share: ClassVar[bool] = True
    tells_dropped: ClassVar[bool] = True

    learning_rate: Positive = 7e-4  # step size
    gae_lambda: Fraction = 1.0  # bias (0) against variance (1) of the advantages; 1: n-step returns, as in the paper
    value_coef: NonNegative = 0.5  # weight of the value error
    entropy_coef: NonNegative = 0.0  # weight of the entropy bonus
    normalize_advantage: bool = False  # zero mean and unit deviation within each rollout
    max_grad_norm: Positive = 0.5  # gradients are scaled down to this norm; inf: never
    rms_alpha: Annotated[Fraction, Static()] = 0.99  # decay of RMSprop's mean square
    rms_eps: Annotated[Positive, Static()] = 1e-5  # added to RMSprop's root; keeps early steps small

    def build(self, spec: EnvSpec, model: Model) -> None:
        """Separate actor and critic under one optimizer."""
        self.build_networks(spec, model)
        self.optimizer = RMSprop(
            self.parameters(), self.learning_rate, self.rms_alpha, self.rms_eps, max_grad_norm=self.max_grad_norm
        )

    def update(self, batch: Rollout) -> Update:
        """One gradient step on the whole rollout."""
        advantage, returns = self.advantages(batch)
        metrics = self.update_phase(batch.obs, batch.action, batch.value, advantage, returns, self.dropped_in(batch))
        self.updates += 1
        return Update(dict(zip(METRICS, metrics)))

    @phase
    def update_phase(
        self,
        obs: Obs,
        action: Tensor,
        old_value: Tensor,
        advantage: Tensor,
        returns: Tensor,
        told: dict[str, Tensor],
    ) -> Tensor:
        """The gradient step; gives the METRICS."""
        explained = explained_variance(old_value, returns)
        obs = tree_map(lambda leaf: leaf.flatten(0, 1), obs)
        advantage, returns = advantage.flatten(), returns.flatten()
        if self.normalize_advantage and len(advantage) > 1:  # a single one has no deviation
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy, value = self.policy_and_value(obs, **told)
        loss = a2c_loss(policy.log_prob(action.flatten(0, 1)), advantage, value, returns)
        entropy = policy.entropy().mean()
        norm = self.optimizer.step(loss.policy + self.value_coef * loss.value - self.entropy_coef * entropy)
        return torch.stack((loss.policy, loss.value, entropy, norm, explained)).detach()
