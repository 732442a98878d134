"""Implicit Q-learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlexp.algos.base import MIXED, OFFLINE, REPLAY
from rlexp.algos.cloning import CriticCloning
from rlexp.algos.losses import mse, td_priority, weighted_mean
from rlexp.compiling import phase
from rlexp.config.component import component
from rlexp.config.fields import Fraction, NonNegative, Positive, Structure
from rlexp.envs.spec import EnvSpec
from rlexp.models import Model
from rlexp.optim import Adam
from rlexp.tree import tree_map
from rlexp.types import Batch, Obs, Update


def iql_value_loss(q: Tensor, value: Tensor, expectile: float | Tensor, weight: Tensor | None = None) -> Tensor:
    """E[|τ − 1[u < 0]| u²] with u = Q(s, a) − V(s): V becomes the τ-expectile of Q over the data's actions."""
    u = q - value
    return weighted_mean(torch.where(u < 0, 1 - expectile, expectile) * u.square(), weight)


def iql_weight(advantage: Tensor, beta: float | Tensor, max_weight: float | Tensor) -> Tensor:
    """exp(β A) up to ``max_weight``."""
    return (beta * advantage).exp().clamp(max=max_weight)


def iql_actor_loss(log_prob: Tensor, weight: Tensor) -> Tensor:
    """−E[exp(β A(s, a)) log π(a|s)] over the dataset's actions."""
    return -(weight * log_prob).mean()


@component("algo", "iql")
@dataclass(eq=False, kw_only=True)
class IQL(CriticCloning):
    """Implicit Q-learning (Kostrikov et al., 2021, arXiv:2110.06169).

    Value:   V(s) → the τ-expectile of min_i Q̄_i(s, a) over the data's actions: minimise E_D[L₂^τ(Q̄(s, a) − V(s))].
    Actor:   maximise  E_D[e^{β (Q̄(s, a) − V(s))} log π(a|s)].
    Critic:  Q_i(s, a) → r + γ V(s′).
    In this order, actor and critic by the new V. No action outside of the data is ever asked for, so nothing can be
    overrated: the first choice offline, and a good start for environment steps afterwards.
    """

    loops: ClassVar[frozenset[str]] = frozenset({OFFLINE, REPLAY, MIXED})
    max_log_std: ClassVar[float] = 2.0

    value_learning_rate: Positive = 3e-4  # step size of V
    expectile: Fraction = 0.7  # which of the data's actions V stands for: 0.5 their mean, towards 1 the best
    beta: NonNegative = 3.0  # inverse temperature of the weights: 0 clones all actions alike
    max_weight: Positive = 100.0  # bound of the weights
    state_dependent_std: Structure = False  # whether each state has a deviation of its own (continuous actions)

    def build(self, spec: EnvSpec, model: Model) -> None:
        """Actor, critics with targets, and V."""
        super().build(spec, model)
        self.value_net = model.build(spec, 1, defaults=self.network.of_critic())
        self.value_optimizer = Adam(self.value_net.named_parameters(), self.value_learning_rate)

    def value(self, obs: Obs) -> Tensor:
        """V(s), [B]."""
        return self.value_net(obs)[..., 0]

    def value_loss(self, q: Tensor, value: Tensor, weight: Tensor | None) -> Tensor:
        """What V minimises."""
        return iql_value_loss(q, value, self.expectile, weight)

    def update(self, batch: Batch) -> Update:
        """V, actor, critics and their targets."""
        self.updates += 1
        return Update(*self.learn_phase(batch))

    @phase
    def learn_phase(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor | None]:
        """One step of each."""
        with torch.no_grad():
            target_q = self.q(self.target_critic, batch.obs, batch.action).amin(0)
        value_loss = self.value_loss(target_q, self.value(batch.obs), batch.weight)
        self.value_optimizer.step(value_loss)
        with torch.no_grad():
            both = tree_map(lambda now, following: torch.cat((now, following)), batch.obs, batch.next_obs)
            value, next_value = self.value(both).chunk(2)
            advantage = target_q - value
            weight = iql_weight(advantage, self.beta, self.max_weight)
            target = batch.reward + batch.discount * next_value
        actor_loss = iql_actor_loss(self.policy(batch.obs).log_prob(batch.action), weight)
        self.actor_optimizer.step(actor_loss)
        q = self.q(self.critic, batch.obs, batch.action)  # [n, B]
        critic_loss = mse(q, target, batch.weight)
        self.critic_optimizer.step(critic_loss)
        self.target_critic.follow(self.tau)
        metrics = {"loss/value": value_loss.detach(), "loss/actor": actor_loss.detach()}
        metrics |= {"loss/critic": critic_loss.detach(), "q/mean": q.detach().mean(), "value/mean": value.mean()}
        metrics |= {"advantage/mean": advantage.mean(), "advantage/weight": weight.mean()}
        return metrics, td_priority(q, target, batch.weight)
