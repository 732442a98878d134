"""Deep Q-network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rlexp.algos.base import DISCRETE, MIXED, REPLAY, OffPolicyAlgorithm
from rlexp.algos.losses import weighted_mean
from rlexp.compiling import acting, phase
from rlexp.config.component import component
from rlexp.config.fields import Count, Fraction, Positive
from rlexp.envs.spec import EnvSpec
from rlexp.models import Model, NetDefaults
from rlexp.models.target import TargetNetwork
from rlexp.optim import Adam
from rlexp.tree import tree_first
from rlexp.types import Act, Batch, Obs, Update


def dqn_target(reward: Tensor, discount: Tensor, target_q: Tensor, online_q: Tensor | None = None) -> Tensor:
    """y = r + γ (1 − terminated) max_a Q̄(s′, a); with ``online_q`` [B, A] it chooses the action (double DQN)."""
    if online_q is None:
        next_q = target_q.amax(-1)
    else:
        next_q = target_q.gather(-1, online_q.argmax(-1, keepdim=True)).squeeze(-1)
    return reward + discount * next_q


def dqn_loss(q: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Huber loss (δ = 1) between Q(s, a) [B] and its target [B]."""
    return weighted_mean(F.smooth_l1_loss(q, target, reduction="none"), weight)


@component("algo", "dqn")
@dataclass(eq=False, kw_only=True)
class DQN(OffPolicyAlgorithm):
    """Q-learning with a target network (Mnih et al., 2015); double Q-learning as a field (van Hasselt et al., 2016).

    Q(s, a) → r + γ max_a′ Q̄(s′, a′);  double:  Q(s, a) → r + γ Q̄(s′, argmax_a′ Q(s′, a′)).
    The simplest off-policy choice for discrete actions.
    """

    loops: ClassVar[frozenset[str]] = frozenset({REPLAY, MIXED})
    actions: ClassVar[frozenset[str]] = frozenset({DISCRETE})
    network: ClassVar[NetDefaults] = NetDefaults(hidden=(64, 64))

    learning_rate: Positive = 1e-4  # step size
    double: bool = False  # the online network chooses the action that the target network evaluates
    epsilon: Fraction = 0.05  # probability of a random action while exploring; conf/algo/dqn.yaml: from 1 to 0.05
    target_interval: Count = 1_000  # updates between moves of the target network
    tau: Fraction = 1.0  # share of the online network that flows into the target at each move; 1: a copy
    max_grad_norm: Positive = 10.0  # gradients are scaled down to this norm

    def build(self, spec: EnvSpec, model: Model) -> None:
        """Q-network, target and optimizer."""
        self.q = model.build(spec, spec.action.n, defaults=self.network)
        self.target_q = TargetNetwork(self.q)
        self.optimizer = Adam(self.q.named_parameters(), self.learning_rate, max_grad_norm=self.max_grad_norm)

    def act(self, obs: Obs, carry: Any, *, explore: bool, generator: torch.Generator) -> Act:
        """The greedy action, or a random one with probability ε."""
        if not explore:
            return Act(self.q(obs).argmax(-1))
        chance = torch.rand((2, len(tree_first(obs))), generator=generator, device=self.device)
        return Act(self.explore(obs, chance))

    @acting
    def explore(self, obs: Obs, chance: Tensor) -> Tensor:
        """ε-greedy actions [N]; ``chance`` is uniform [2, N]: whether to take a random action, and which."""
        q = self.q(obs)  # [N, A]
        uniform = (chance[1] * q.shape[-1]).long()
        return torch.where(chance[0] < self.epsilon, uniform, q.argmax(-1))

    def update(self, batch: Batch) -> Update:
        """One step of the online network; now and then the target follows."""
        self.updates += 1
        metrics = self.q_phase(batch)
        if self.updates % self.target_interval == 0:
            self.target_q.follow(self.tau)
        return Update(metrics)

    @phase
    def q_phase(self, batch: Batch) -> dict[str, Tensor]:
        """One step towards the Bellman target."""
        with torch.no_grad():
            online_q = self.q(batch.next_obs) if self.double else None
            target = dqn_target(batch.reward, batch.discount, self.target_q(batch.next_obs), online_q)
        q = self.q(batch.obs).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        loss = dqn_loss(q, target, batch.weight)
        norm = self.optimizer.step(loss)
        return {"loss/q": loss.detach(), "q/mean": q.detach().mean(), "loss/grad_norm": norm}
