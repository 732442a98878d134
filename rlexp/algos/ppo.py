"""Proximal policy optimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from rlexp.algos.actor_critic import ActorCritic, explained_variance
from rlexp.algos.losses import weighted_mean
from rlexp.buffers.rollout import in_parts
from rlexp.compiling import lowered, phase
from rlexp.config.component import component
from rlexp.config.fields import Count, NonNegative, Positive
from rlexp.envs.spec import EnvSpec
from rlexp.models import Model
from rlexp.optim import Adam
from rlexp.tree import tree_map
from rlexp.types import Obs, Rollout, Update


class PPOLoss(NamedTuple):
    """The parts of PPO's objective, each to be minimised, and what tells how far the policy moved."""

    policy: Tensor
    value: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def ppo_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    value: Tensor,
    old_value: Tensor,
    returns: Tensor,
    clip_range: Any,  # a number, or a 0-dim tensor where it is scheduled
    value_clip: Any = None,
    weight: Tensor | None = None,
) -> PPOLoss:
    """Clipped surrogate −E[min(ρ A, clip(ρ, 1 ± ε) A)] with ρ = π/π_old, and the value error; all inputs [B].

    ``weight``, of mean 1, says how much each row counts; None: all the same.
    """
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    policy = -weighted_mean(torch.minimum(ratio * advantage, clipped * advantage), weight)
    error = (value - returns).square()
    if value_clip is not None:
        near = old_value + (value - old_value).clamp(-value_clip, value_clip)
        error = torch.maximum(error, (near - returns).square())
    with torch.no_grad():
        approx_kl = weighted_mean(ratio - 1 - log_ratio, weight)  # low-variance, never negative (Schulman, 2020)
        clip_fraction = weighted_mean(((ratio - 1).abs() > clip_range).float(), weight)
    return PPOLoss(policy, weighted_mean(error, weight), approx_kl, clip_fraction)


METRICS = ("loss/policy", "loss/value", "policy/entropy", "policy/approx_kl", "policy/clip_fraction", "loss/grad_norm")


@component("algo", "ppo")
@dataclass(eq=False, kw_only=True)
class PPO(ActorCritic):
    """Proximal policy optimisation (Schulman et al., 2017, arXiv:1707.06347) with GAE.

    Maximise  E[min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)] − c_v E[(V − R)²] + c_e H(π),  ρ = π(a|s) / π_old(a|s).
    Robust, for every kind of action space; the first choice when environment steps are cheap.
    """

    can_share: ClassVar[bool] = True
    tells_dropped: ClassVar[bool] = True

    learning_rate: Positive = 3e-4  # step size
    epochs: Count = 10  # passes over each rollout
    minibatch_size: Count = 64  # transitions in a gradient step; a remainder smaller than this is left out of an epoch
    clip_range: Positive = 0.2  # how far the probability ratio may leave 1
    value_clip: Positive | None = None  # how far a value may leave the old one; null: not clipped
    value_coef: NonNegative = 0.5  # weight of the value error
    entropy_coef: NonNegative = 0.0  # weight of the entropy bonus
    normalize_advantage: bool = True  # zero mean and unit deviation within each minibatch
    target_kl: Positive | None = None  # stop a rollout's epochs once the policy moved 1.5 times this far
    max_grad_norm: Positive = 0.5  # gradients are scaled down to this norm; inf: never

    def build(self, spec: EnvSpec, model: Model) -> None:
        """Separate actor and critic under one optimizer."""
        self.build_networks(spec, model)
        parameters = self.parameters()
        self.optimizer = Adam(parameters, self.learning_rate, eps=1e-5, max_grad_norm=self.max_grad_norm)

    def update(self, batch: Rollout) -> Update:
        """Epochs of minibatches over one rollout."""
        advantage, returns = self.advantages(batch)
        obs, data = self.rows(batch, advantage, returns)
        steps = []
        for rows in self.minibatches(*batch.reward.shape):
            steps.append(self.minibatch_phase(obs, data, rows))
            self.updates += 1
            if self.target_kl is not None and float(steps[-1][3]) > 1.5 * self.target_kl:
                break
        metrics = dict(zip(METRICS, torch.stack(steps).mean(0)))
        return Update(metrics | {"value/explained_variance": explained_variance(batch.value, returns)})

    def rows(self, batch: Rollout, advantage: Tensor, returns: Tensor) -> tuple[Obs, dict[str, Tensor]]:
        """The rollout [T, N, …] as what minibatches are drawn from: T·N rows."""
        obs, action = tree_map(lambda leaf: leaf.flatten(0, 1), batch.obs), batch.action.flatten(0, 1)
        told = self.dropped_in(batch)
        if "log_prob" in batch.extras and self.autocast is None:  # else as computed by updates, in their precision
            log_prob = batch.extras["log_prob"].flatten()
        else:
            with torch.no_grad():
                log_prob = in_parts(self.log_prob, obs, action, told)
        data = {
            "action": action,
            "log_prob": log_prob,
            "advantage": advantage.flatten(),
            "value": batch.value.flatten(),
            "returns": returns.flatten(),
        }
        return obs, data | told

    @lowered
    def log_prob(self, obs: Obs, action: Tensor, told: dict[str, Tensor]) -> Tensor:
        """log π(a|s), [B], as updates compute it: before the first one the ratio is 1."""
        return self.policy(obs, **told).log_prob(action)  # type: ignore[no-any-return]

    def minibatches(self, steps: int, num_envs: int) -> list[Tensor]:
        """The rows of every minibatch of every epoch."""
        count = steps * num_envs
        return self.shuffled(count, min(self.minibatch_size, count), self.epochs)

    def updates_per_rollout(self, steps: int, num_envs: int) -> int:
        """Minibatches of all epochs."""
        count = steps * num_envs
        return self.epochs * (count // min(self.minibatch_size, count))

    @phase
    def minibatch_phase(self, obs: Obs, data: dict[str, Tensor], rows: Tensor) -> Tensor:
        """One gradient step on some rows of the rollout; gives the METRICS."""
        obs = tree_map(lambda leaf: leaf[rows], obs)
        loss, entropy = self.losses(obs, {name: column[rows] for name, column in data.items()})
        norm = self.optimizer.step(loss.policy + self.value_coef * loss.value - self.entropy_coef * entropy)
        return torch.stack((loss.policy, loss.value, entropy, loss.approx_kl, loss.clip_fraction, norm)).detach()

    def losses(self, obs: Obs, part: dict[str, Tensor]) -> tuple[PPOLoss, Tensor]:
        """The objective's parts and the policy's entropy on one minibatch."""
        advantage = part["advantage"]
        if self.normalize_advantage and len(advantage) > 1:  # a single one has no deviation
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        told = {"dropped": part["dropped"]} if self.drops else {}
        policy, value = self.policy_and_value(obs, **told)
        loss = ppo_loss(
            policy.log_prob(part["action"]),
            part["log_prob"],
            advantage,
            value,
            part["value"],
            part["returns"],
            self.clip_range,
            self.value_clip,
        )
        return loss, policy.entropy().mean()
