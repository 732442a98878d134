"""Conservative Q-learning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

import torch
from torch import Tensor

from rlexp.algos.base import MIXED, OFFLINE, REPLAY
from rlexp.algos.sac import SAC, sac_actor_loss, sac_critic_loss
from rlexp.algos.samples import values_of_samples
from rlexp.compiling import phase
from rlexp.config.component import component
from rlexp.config.fields import Natural, NonNegative, Positive, Size
from rlexp.envs.spec import EnvSpec
from rlexp.errors import ConfigError
from rlexp.models import Model
from rlexp.models.regularization import normalizes_by_batch
from rlexp.optim import Adam
from rlexp.types import Batch, Obs

LOG_MULTIPLIER = math.log(1e6)  # bound of the multiplier's logarithm, as in the authors' code


class Backup(Enum):
    """The value of a next state: of one policy action, with its entropy too, or the best of several actions."""

    plain = "plain"
    soft = "soft"
    max = "max"


def cql_gap(q: Tensor, sampled_q: Tensor, log_density: Tensor) -> Tensor:
    """E_s[log Σ_j exp(Q_i(s, a_j)) / μ(a_j|s) − Q_i(s, a)], how far the values exceed those of the data's actions.

    ``q`` [n, B], ``sampled_q`` [n, m, B], ``log_density`` [m, B] of the distributions μ that the a_j come from -> [n].
    """
    return (torch.logsumexp(sampled_q - log_density, 1) - q).mean(-1)


def cql_loss(td_loss: Tensor, gap: Tensor, weight: Tensor | float, threshold: Tensor | float = 0.0) -> Tensor:
    """The Bellman error and α Σ_i (gap_i − τ)."""
    return td_loss + (weight * (gap - threshold)).sum()


def cql_multiplier_loss(log_multiplier: Tensor, excess: Tensor) -> Tensor:
    """The multiplier α′ of the constraint gap ≤ τ grows while it is violated: −α′ · mean_i (gap_i − τ)."""
    return -(log_multiplier.clamp(max=LOG_MULTIPLIER).exp() * excess.mean())


@component("algo", "cql")
@dataclass(eq=False, kw_only=True)
class CQL(SAC):
    """Conservative Q-learning, the form CQL(H) (Kumar et al., 2020, arXiv:2006.04779).

    Critic:  SAC's Bellman error  +  α Σ_i E_s[log ∫ exp Q_i(s, a) da − Q_i(s, a_data)];
             the integral is estimated by uniform actions and the policy's own at s and at s′, each over its density.
    Actor and temperature are SAC's. With ``target_gap`` = τ, α is multiplied by a learned α′ such that the
    difference stays at τ.
    For offline data that cover more than an expert's actions: values of actions outside of them are pushed down.
    """

    loops: ClassVar[frozenset[str]] = frozenset({OFFLINE, REPLAY, MIXED})
    tied_to_data: ClassVar[bool] = True

    actor_learning_rate: Positive = 1e-4  # step size of the policy, smaller than the critics'
    alpha_learning_rate: Positive = 1e-4  # step size of the temperature
    conservative_weight: NonNegative = 5.0  # α: weight of the conservative term
    target_gap: float | None = None  # τ that the conservative term is held at by a multiplier; null: weight α alone
    multiplier_learning_rate: Positive = 3e-4  # step size of that multiplier
    n_action_samples: Size = 10  # actions of each of the three kinds that estimate the integral
    backup: Backup = Backup.plain  # value of the next state: plain, soft (with entropy) or max (best of the samples)
    bc_updates: Natural = 0  # first updates, in which the actor clones the data instead of following the critics

    def __post_init__(self) -> None:
        if self.target_gap is None and self.multiplier_learning_rate != type(self).multiplier_learning_rate:
            raise ConfigError("multiplier_learning_rate has no effect without a target_gap. Set target_gap=…")

    def build(self, spec: EnvSpec, model: Model) -> None:
        """SAC's networks, and the multiplier."""
        super().build(spec, model)
        self.by_batch = normalizes_by_batch(self.critic)
        if self.target_gap is not None:
            self.log_multiplier = torch.zeros(()).requires_grad_()
            self.multiplier_optimizer = Adam([self.log_multiplier], self.multiplier_learning_rate)

    def randomness(self, batch: Batch) -> dict[str, Tensor]:
        """SAC's noise, that of the sampled actions, and at first the actions to clone."""
        shape = (self.n_action_samples, *batch.action.shape)
        noise = super().randomness(batch) | {
            "uniform": self.uniform(*shape) * 2 - 1,
            "samples": self.noise(*shape),
            "next_samples": self.noise(*shape),
        }
        return noise | {"cloned": batch.action} if self.updates <= self.bc_updates else noise

    @phase
    def critic_phase(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
        """SAC's step with the conservative loss, then one of the multiplier."""
        metrics, priority = super().critic_phase(batch, noise)
        if self.target_gap is not None:
            excess = self.conservative_weight * metrics["q/conservative_gap"] - self.target_gap
            self.multiplier_optimizer.step(cql_multiplier_loss(self.log_multiplier, excess))
        return metrics, priority

    def critic_loss(
        self, batch: Batch, next_value: Tensor, noise: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The Bellman error and the conservative term."""
        actions, log_density = self.sampled_actions(batch, noise)
        if self.by_batch:  # all in one pass: normalised apart, the values that are compared would be of two functions
            every = values_of_samples(self.critic, batch.obs, torch.cat((batch.action[None], actions)), whole=True)
            q, sampled_q = every[:, 0], every[:, 1:]
            td_loss = sac_critic_loss(q, batch.reward, batch.discount, next_value, batch.weight)
            metrics: dict[str, Tensor] = {}
        else:
            td_loss, q, metrics = super().critic_loss(batch, next_value, noise)
            sampled_q = values_of_samples(self.critic, batch.obs, actions)
        gap = cql_gap(q, self.compared(sampled_q, batch), log_density)
        metrics |= {"q/conservative_gap": gap.detach().mean()}
        if self.target_gap is None:
            return cql_loss(td_loss, gap, self.conservative_weight), q, metrics
        multiplier = self.log_multiplier.detach().clamp(max=LOG_MULTIPLIER).exp()
        loss = cql_loss(td_loss, self.conservative_weight * gap, multiplier, self.target_gap)
        return loss, q, metrics | {"q/multiplier": multiplier}

    @torch.no_grad()
    def sampled_actions(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """a_j [3m, B, A] and log μ(a_j) [3m, B]: uniform actions, the policy's at s, and its at s′."""
        current, log_prob = self.policy(batch.obs).sample_with_log_prob(noise["samples"])
        following, next_log_prob = self.policy(batch.next_obs).sample_with_log_prob(noise["next_samples"])
        uniform = noise["uniform"]
        density = torch.full_like(log_prob, -math.log(2) * uniform.shape[-1])  # ½ for each dimension of [−1, 1]
        return torch.cat((uniform, current, following)), torch.cat((density, log_prob, next_log_prob))

    def compared(self, sampled_q: Tensor, batch: Batch) -> Tensor:
        """The values [n, 3m, B] of those actions as they are compared with the data's."""
        return sampled_q

    def next_value(self, next_obs: Obs, noise: dict[str, Tensor]) -> Tensor:
        """V(s′) by the target critics, [B]."""
        if self.backup is Backup.soft:
            return super().next_value(next_obs, noise)
        policy = self.policy(next_obs)
        if self.backup is Backup.plain:
            q = self.target_critic(next_obs, policy.sample(noise["next_action"]))[..., 0]
            return self.reduce_target(q, noise)
        q = values_of_samples(self.target_critic, next_obs, policy.sample(noise["next_samples"]))  # [n, m, B]
        return self.reduce_target(q, noise).amax(0)

    def actor_loss(self, obs: Obs, alpha: Tensor, noise: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """SAC's loss; while cloning, the log-density of the data's actions stands for their value."""
        if "cloned" not in noise:
            return super().actor_loss(obs, alpha, noise)
        policy = self.policy(obs)
        _, log_prob = policy.sample_with_log_prob(noise["action"])
        return sac_actor_loss(alpha, log_prob, policy.log_prob(noise["cloned"])), -log_prob.detach()
