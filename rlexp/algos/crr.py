"""Critic-regularised regression."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlexp.algos.base import CONTINUOUS, OFFLINE, OffPolicyAlgorithm
from rlexp.algos.losses import mse, td_priority
from rlexp.compiling import phase
from rlexp.config.component import component
from rlexp.config.fields import Fraction, Positive, Size
from rlexp.envs.spec import EnvSpec
from rlexp.models import DiagGaussian, Model, NetDefaults
from rlexp.models.target import TargetNetwork
from rlexp.optim import Adam
from rlexp.tree import tree_map
from rlexp.types import Act, Batch, Obs, Update


class AdvantageType(Enum):
    """What Q(s, a) is compared with: the mean or the best of sampled policy actions."""

    mean = "mean"
    max = "max"


class WeightType(Enum):
    """How an advantage becomes a weight: clone what is better (binary), or the better the more (exp)."""

    binary = "binary"
    exp = "exp"


def crr_advantage(q: Tensor, sampled_q: Tensor, kind: AdvantageType) -> Tensor:
    """A(s, a) = Q(s, a) − mean_j or max_j Q(s, a_j); q [B], sampled_q [m, B]."""
    return q - (sampled_q.mean(0) if kind is AdvantageType.mean else sampled_q.amax(0))


def crr_weight(advantage: Tensor, kind: WeightType, beta: float | Tensor, max_weight: float | Tensor) -> Tensor:
    """1[A > 0], or exp(A / β) up to ``max_weight``."""
    if kind is WeightType.binary:
        return (advantage > 0).float()
    return (advantage / beta).exp().clamp(max=max_weight)


def crr_loss(log_prob: Tensor, weight: Tensor) -> Tensor:
    """−E[f(A(s, a)) log π(a|s)] over the dataset's actions."""
    return -(weight * log_prob).mean()


@component("algo", "crr")
@dataclass(eq=False, kw_only=True)
class CRR(OffPolicyAlgorithm):
    """Critic-regularised regression (Wang et al., 2020, arXiv:2006.15134).

    Actor:   maximise  E_D[f(A(s, a)) log π(a|s)],  f(A) = 1[A > 0] or e^{A/β},
             A(s, a) = Q(s, a) − mean or max of Q(s, a_j),  a_j ~ π(·|s).
    Critic:  Q(s, a) → r + γ min_i Q̄_i(s′, a′),  a′ ~ π(·|s′).
    For offline data of mixed quality: it clones what its own critic finds better than the policy.
    """

    loops: ClassVar[frozenset[str]] = frozenset({OFFLINE})
    actions: ClassVar[frozenset[str]] = frozenset({CONTINUOUS})
    unit_actions: ClassVar[bool] = True
    network: ClassVar[NetDefaults] = NetDefaults(hidden=(256, 256))

    actor_learning_rate: Positive = 3e-4  # step size of the policy
    critic_learning_rate: Positive = 3e-4  # step size of the critics
    advantage_type: AdvantageType = AdvantageType.mean  # baseline of the advantage: mean or max of sampled actions
    weight_type: WeightType = WeightType.exp  # clone better actions alike (binary) or by how much better (exp)
    beta: Positive = 1.0  # temperature of the exponential weight
    n_action_samples: Size = 4  # policy actions that estimate the baseline
    max_weight: Positive = 20.0  # bound of the exponential weight
    n_critics: Size = 2  # ensemble whose minimum is taken
    tau: Fraction = 0.005  # share of the critics that flows into their targets at each update
    min_log_std: float = -5.0  # bound of the policy's deviation from below

    def build(self, spec: EnvSpec, model: Model) -> None:
        """Actor, critics with targets."""
        dim = spec.action.dim
        self.actor = model.build(spec, 2 * dim, defaults=self.network)
        self.critic = model.build(spec, 1, defaults=self.network.of_critic(), action_dim=dim, ensemble=self.n_critics)
        self.target_critic = TargetNetwork(self.critic)
        self.actor_optimizer = Adam(self.actor.named_parameters(), self.actor_learning_rate)
        self.critic_optimizer = Adam(self.critic.named_parameters(), self.critic_learning_rate)

    def policy(self, obs: Obs) -> DiagGaussian:
        """A Gaussian around a mean in (−1, 1); unlike a squashed one it gives actions on the bounds finite density."""
        mean, log_std = self.actor(obs).chunk(2, -1)
        return DiagGaussian(mean.tanh(), log_std.clamp(min=self.min_log_std).clamp(max=0.0))

    def act(self, obs: Obs, carry: Any, *, explore: bool, generator: torch.Generator) -> Act:
        """Sample from the policy, or take its mean."""
        policy = self.policy(obs)
        if not explore:
            return Act(policy.mode())
        noise = torch.randn(policy.mean.shape, generator=generator, device=policy.mean.device)
        return Act(policy.sample(noise).clamp(-1, 1))

    def update(self, batch: Batch) -> Update:
        """Critics with their targets, then the actor."""
        self.updates += 1
        next_noise = self.noise(*batch.action.shape)
        sample_noise = self.noise(self.n_action_samples, *batch.action.shape)
        metrics, priority = self.critic_phase(batch, next_noise)
        return Update(metrics | self.actor_phase(batch, sample_noise), priority)

    @phase
    def critic_phase(self, batch: Batch, noise: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
        """One step of the critics towards the value of the policy's own actions."""
        with torch.no_grad():
            next_action = self.policy(batch.next_obs).sample(noise).clamp(-1, 1)
            next_q = self.target_critic(batch.next_obs, next_action)[..., 0].amin(0)
            target = batch.reward + batch.discount * next_q
        q = self.critic(batch.obs, batch.action)[..., 0]  # [n, B]
        loss = mse(q, target, batch.weight)
        self.critic_optimizer.step(loss)
        self.target_critic.follow(self.tau)
        metrics = {"loss/critic": loss.detach(), "q/mean": q.detach().mean()}
        return metrics, td_priority(q, target, batch.weight)

    @phase
    def actor_phase(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """One step of weighted regression onto the dataset's actions."""
        policy = self.policy(batch.obs)
        with torch.no_grad():
            sampled = policy.sample(noise).clamp(-1, 1)  # [m, B, A]
            baseline = self.q_of_samples(batch.obs, sampled)
            advantage = crr_advantage(self.q(batch.obs, batch.action), baseline, self.advantage_type)
            weight = crr_weight(advantage, self.weight_type, self.beta, self.max_weight)
        loss = crr_loss(policy.log_prob(batch.action), weight)
        self.actor_optimizer.step(loss)
        return {"loss/actor": loss.detach(), "advantage/mean": advantage.mean(), "advantage/weight": weight.mean()}

    def q(self, obs: Obs, action: Tensor) -> Tensor:
        """min_i Q_i(s, a), [B]."""
        return self.critic(obs, action)[..., 0].amin(0)

    def q_of_samples(self, obs: Obs, actions: Tensor) -> Tensor:
        """min_i Q_i(s, a_j) for several actions [m, B, A] of each state, [m, B]."""
        m = actions.shape[0]
        repeated = tree_map(lambda leaf: leaf.repeat(m, *(1,) * (leaf.dim() - 1)), obs)
        return self.q(repeated, actions.flatten(0, 1)).view(m, -1)
