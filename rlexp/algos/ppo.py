"""Proximal policy optimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from rlexp.algos.base import CONTINUOUS, DISCRETE, MULTI_BINARY, MULTI_DISCRETE, OnPolicyAlgorithm
from rlexp.buffers.returns import gae
from rlexp.compiling import acting, phase
from rlexp.config.component import component
from rlexp.config.fields import Count, Fraction, NonNegative, Positive, Static
from rlexp.envs.spec import EnvSpec
from rlexp.models import Activation, Model, NetDefaults, policy_distribution
from rlexp.optim import Adam
from rlexp.tree import tree_first, tree_map
from rlexp.types import Act, Obs, Rollout, Update


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
) -> PPOLoss:
    """Clipped surrogate −E[min(ρ A, clip(ρ, 1 ± ε) A)] with ρ = π/π_old, and the value error; all inputs [B]."""
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    policy = -torch.minimum(ratio * advantage, clipped * advantage).mean()
    error = (value - returns).square()
    if value_clip is not None:
        near = old_value + (value - old_value).clamp(-value_clip, value_clip)
        error = torch.maximum(error, (near - returns).square())
    with torch.no_grad():
        approx_kl = (ratio - 1 - log_ratio).mean()  # low-variance, never negative (Schulman, 2020)
        clip_fraction = ((ratio - 1).abs() > clip_range).float().mean()
    return PPOLoss(policy, error.mean(), approx_kl, clip_fraction)


METRICS = ("loss/policy", "loss/value", "policy/entropy", "policy/approx_kl", "policy/clip_fraction", "loss/grad_norm")


@component("algo", "ppo")
@dataclass(eq=False, kw_only=True)
class PPO(OnPolicyAlgorithm):
    """Proximal policy optimisation (Schulman et al., 2017, arXiv:1707.06347) with GAE.

    Maximise  E[min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)] − c_v E[(V − R)²] + c_e H(π),  ρ = π(a|s) / π_old(a|s).
    Robust, for every kind of action space; the first choice when environment steps are cheap.
    """

    actions: ClassVar[frozenset[str]] = frozenset({DISCRETE, CONTINUOUS, MULTI_DISCRETE, MULTI_BINARY})
    network: ClassVar[NetDefaults] = NetDefaults(hidden=(64, 64), activation=Activation.tanh, init="orthogonal")

    learning_rate: Positive = 3e-4  # step size
    epochs: Count = 10  # passes over each rollout
    minibatch_size: Count = 64  # transitions in a gradient step; a remainder smaller than this is left out of an epoch
    gae_lambda: Fraction = 0.95  # bias (0) against variance (1) of the advantages
    clip_range: Positive = 0.2  # how far the probability ratio may leave 1
    value_clip: Positive | None = None  # how far a value may leave the old one; null: not clipped
    value_coef: NonNegative = 0.5  # weight of the value error
    entropy_coef: NonNegative = 0.0  # weight of the entropy bonus
    normalize_advantage: bool = True  # zero mean and unit deviation within each minibatch
    target_kl: Positive | None = None  # stop a rollout's epochs once the policy moved 1.5 times this far
    max_grad_norm: Positive = 0.5  # gradients are scaled down to this norm
    initial_log_std: Annotated[float, Static()] = 0.0  # of the Gaussian for continuous actions

    def build(self, spec: EnvSpec, model: Model) -> None:
        """Separate actor and critic under one optimizer."""
        self.head = policy_distribution(spec.action)
        self.actor = model.build(spec, self.head.out, defaults=self.network, out_gain=0.01)
        self.critic = model.build(spec, 1, defaults=self.network, out_gain=1.0)
        self.log_std = torch.full((self.head.out,), self.initial_log_std) if self.head.needs_log_std else None
        parameters: list[tuple[str, Tensor]] = [*self.actor.named_parameters(), *self.critic.named_parameters()]
        if self.log_std is not None:
            parameters.append(("log_std", self.log_std.requires_grad_()))
        self.optimizer = Adam(parameters, self.learning_rate, eps=1e-5, max_grad_norm=self.max_grad_norm)

    def policy(self, obs: Obs) -> Any:
        """π(·|s)."""
        return self.head.dist(self.masked(self.actor(obs), obs), self.log_std)

    def value(self, obs: Obs) -> Tensor:
        """V(s), [B]."""
        return self.critic(obs).squeeze(-1)

    def act(self, obs: Obs, carry: Any, *, explore: bool, generator: torch.Generator) -> Act:
        """Sample with log-probability and value, or take the mode."""
        if not explore:
            return Act(self.policy(obs).mode())
        noise = self.head.draw_noise(len(tree_first(obs)), generator=generator, device=self.device)
        action, log_prob, value = self.explore(obs, noise)
        return Act(action, extras={"log_prob": log_prob, "value": value})

    @acting
    def explore(self, obs: Obs, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sampled actions, their log-probabilities, and values."""
        policy = self.policy(obs)
        action = policy.sample(noise)
        return action, policy.log_prob(action), self.value(obs)

    def update(self, batch: Rollout) -> Update:
        """Epochs of minibatches over one rollout."""
        advantage, returns = gae(
            batch.reward, batch.value, batch.next_value, batch.terminated, batch.done, self.gamma, self.gae_lambda
        )
        data = {
            "action": batch.action.flatten(0, 1),
            "log_prob": batch.extras["log_prob"].flatten(),
            "advantage": advantage.flatten(),
            "value": batch.value.flatten(),
            "returns": returns.flatten(),
        }
        obs = tree_map(lambda leaf: leaf.flatten(0, 1), batch.obs)
        steps = []
        for rows in self.minibatches(batch.reward.numel()):
            steps.append(self.minibatch_phase(obs, data, rows))
            self.updates += 1
            if self.target_kl is not None and float(steps[-1][3]) > 1.5 * self.target_kl:
                break
        metrics = dict(zip(METRICS, torch.stack(steps).mean(0)))
        variance = data["returns"].var(correction=0).clamp_min(1e-8)
        residual = (data["returns"] - data["value"]).var(correction=0) / variance
        return Update(metrics | {"value/explained_variance": 1 - residual})

    def minibatches(self, count: int) -> list[Tensor]:
        """The rows of every minibatch of every epoch."""
        size = min(self.minibatch_size, count)
        rows = []
        for _ in range(self.epochs):
            order = torch.randperm(count, generator=self.generator, device=self.device)
            rows += order[: count - count % size].split(size)
        return rows

    def updates_per_rollout(self, transitions: int) -> int:
        """Minibatches of all epochs."""
        return self.epochs * (transitions // min(self.minibatch_size, transitions))

    @phase
    def minibatch_phase(self, obs: Obs, data: dict[str, Tensor], rows: Tensor) -> Tensor:
        """One gradient step on some rows of the rollout; gives the METRICS."""
        obs = tree_map(lambda leaf: leaf[rows], obs)
        part = {name: column[rows] for name, column in data.items()}
        advantage = part["advantage"]
        if self.normalize_advantage and len(rows) > 1:  # a single one has no deviation
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy = self.policy(obs)
        loss = ppo_loss(
            policy.log_prob(part["action"]),
            part["log_prob"],
            advantage,
            self.value(obs),
            part["value"],
            part["returns"],
            self.clip_range,
            self.value_clip,
        )
        entropy = policy.entropy().mean()
        norm = self.optimizer.step(loss.policy + self.value_coef * loss.value - self.entropy_coef * entropy)
        return torch.stack((loss.policy, loss.value, entropy, loss.approx_kl, loss.clip_fraction, norm)).detach()
