"""Deep deterministic policy gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlexp.algos.base import CONTINUOUS, MIXED, REPLAY
from rlexp.algos.exploration import DeterministicPolicy
from rlexp.algos.losses import mse, td_priority
from rlexp.compiling import phase
from rlexp.config.component import component
from rlexp.config.fields import Count, Fraction, Positive, Size
from rlexp.envs.spec import EnvSpec
from rlexp.models import Model, Net, NetDefaults
from rlexp.models.target import TargetNetwork
from rlexp.optim import Adam
from rlexp.types import Batch, Obs, Update


def ddpg_critic_loss(q: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Σ_i E[(Q_i(s, a) − y)²]; q is [n, B], y is [B]."""
    return mse(q, target, weight)


def ddpg_actor_loss(q: Tensor) -> Tensor:
    """−E[Q(s, π(s))], whose gradient is the deterministic policy gradient."""
    return -q.mean()


@component("algo", "ddpg")
@dataclass(eq=False, kw_only=True)
class DDPG(DeterministicPolicy):
    """Deep deterministic policy gradient (Lillicrap et al., 2016, arXiv:1509.02971).

    Critic:  Q(s, a) → r + γ Q̄(s′, π̄(s′)).
    Actor:   maximise  Q(s, π(s)).
    Both have targets that follow slowly. The simplest choice for continuous actions; TD3 mends its overestimation.
    """

    loops: ClassVar[frozenset[str]] = frozenset({REPLAY, MIXED})
    actions: ClassVar[frozenset[str]] = frozenset({CONTINUOUS})
    unit_actions: ClassVar[bool] = True
    actor_network: ClassVar[NetDefaults] = NetDefaults(hidden=(256, 256))
    critic_network: ClassVar[NetDefaults] = NetDefaults(hidden=(256, 256))

    actor_learning_rate: Positive = 3e-4  # step size of the policy
    critic_learning_rate: Positive = 3e-4  # step size of the critics
    n_critics: Size = 1  # ensemble whose minimum is the target; the actor follows the first
    actor_interval: Count = 1  # updates of the critics for one of the actor and of all targets
    tau: Fraction = 0.005  # share of actor and critics that flows into their targets at each move

    def build(self, spec: EnvSpec, model: Model) -> None:
        """Actor and critics, each with targets."""
        self.build_networks(spec, model)
        self.target_actor = TargetNetwork(self.actor)
        self.target_critic = TargetNetwork(self.critic)
        self.actor_optimizer = Adam(self.actor.named_parameters(), self.actor_learning_rate)
        self.critic_optimizer = Adam(self.critic.named_parameters(), self.critic_learning_rate)

    def build_networks(self, spec: EnvSpec, model: Model) -> None:
        """The policy π(s), before its tanh, and the critics Q_i(s, a)."""
        dim = spec.action.dim
        self.actor = model.build(spec, dim, defaults=self.actor_network)
        self.critic = model.build(
            spec, 1, defaults=self.critic_network.of_critic(), action_dim=dim, ensemble=self.n_critics
        )

    def policy(self, obs: Obs) -> Tensor:
        """π(s), [B, A]."""
        return self.actor(obs).tanh()  # type: ignore[no-any-return]

    def q(self, obs: Obs, action: Tensor) -> Tensor:
        """Q_i(s, a), [n, B]."""
        return self.critic(obs, action)[..., 0]  # type: ignore[no-any-return]

    def first_q(self, obs: Obs, action: Tensor) -> Tensor:
        """Q_1(s, a), [B], which the policy follows; the other critics are left out where the model allows it."""
        if isinstance(self.critic, Net):
            return self.critic.first_of(obs, action)[..., 0]
        return self.q(obs, action)[0]

    def action_value(self, obs: Obs, action: Tensor) -> Tensor:
        """min_i Q_i(s, a), [B]."""
        return self.q(obs, action).amin(0)

    def update(self, batch: Batch) -> Update:
        """Critics; now and then the actor, and all targets with it."""
        self.updates += 1
        noise = self.randomness(batch)
        metrics, priority = self.critic_phase(batch, noise)
        if self.updates % self.actor_interval == 0:
            metrics |= self.actor_phase(batch, noise)
        return Update(metrics, priority)

    def randomness(self, batch: Batch) -> dict[str, Tensor]:
        """All random numbers of one update: none, the policy is deterministic."""
        return {}

    @phase
    def critic_phase(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
        """One step of the critics towards the Bellman target."""
        with torch.no_grad():
            target = self.target(batch, noise)
        q = self.q(batch.obs, batch.action)
        loss = ddpg_critic_loss(q, target, batch.weight)
        self.critic_optimizer.step(loss)
        metrics = {"loss/critic": loss.detach(), "q/mean": q.detach().mean()}
        return metrics, td_priority(q, target, batch.weight)

    @phase
    def actor_phase(self, batch: Batch, noise: dict[str, Tensor]) -> dict[str, Tensor]:
        """One step of the policy, and of all targets."""
        loss = self.actor_loss(batch, noise)
        self.actor_optimizer.step(loss)
        self.target_actor.follow(self.tau)
        self.target_critic.follow(self.tau)
        return {"loss/actor": loss.detach()}

    def target(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """y = r + γ (1 − terminated) min_i Q̄_i(s′, a′), [B]."""
        next_q = self.target_critic(batch.next_obs, self.next_action(batch, noise))[..., 0]  # [n, B]
        return batch.reward + batch.discount * next_q.amin(0)

    def next_action(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """a′ = π̄(s′), [B, A]."""
        return self.target_actor(batch.next_obs).tanh()

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """What the policy minimises."""
        return ddpg_actor_loss(self.first_q(batch.obs, self.policy(batch.obs)))
