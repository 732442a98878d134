"""Bootstrapping error accumulation reduction."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

import torch
from torch import Tensor, nn

from rlexp.algos.bcq import BCQ, LATENT_LIMIT
from rlexp.algos.samples import repeat_obs
from rlexp.compiling import phase
from rlexp.config.component import component
from rlexp.config.fields import Natural, NonNegative, Positive, Size
from rlexp.envs.spec import EnvSpec
from rlexp.models import DiagGaussian, Model, NetDefaults
from rlexp.optim import Adam
from rlexp.types import Batch, Obs, Update

LOG_MULTIPLIER = (-5.0, 10.0)  # bounds of the multiplier's logarithm
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0  # of the policy


class Kernel(Enum):
    """How alike two actions are: exp(−|a − b|₁ / 2σ) or exp(−|a − b|² / 2σ)."""

    laplacian = "laplacian"
    gaussian = "gaussian"


def bear_mmd(data: Tensor, policy: Tensor, kernel: Kernel, sigma: float | Tensor) -> Tensor:
    """The maximum mean discrepancy between samples [m, B, A] and [m′, B, A] of two distributions, [B].

    MMD² = E k(a, a′) + E k(b, b′) − 2 E k(a, b), each over all pairs of samples.
    """

    def likeness(x: Tensor, y: Tensor) -> Tensor:
        difference = x.unsqueeze(0) - y.unsqueeze(1)  # [m′, m, B, A]
        distance = difference.abs() if kernel is Kernel.laplacian else difference.square()
        return (-distance.sum(-1) / (2 * sigma)).exp().mean((0, 1))

    squared = likeness(data, data) + likeness(policy, policy) - 2 * likeness(data, policy)
    return (squared.clamp(min=0) + 1e-6).sqrt()  # the root has no slope at zero


def bear_actor_loss(q: Tensor | float, mmd: Tensor, multiplier: Tensor) -> Tensor:
    """E[−Q(s, a) + α MMD(s)]."""
    return (multiplier * mmd - q).mean()


def bear_multiplier_loss(log_multiplier: Tensor, mmd: Tensor, threshold: float | Tensor) -> Tensor:
    """The multiplier α grows while the policy is further than ε from the data: −α E[MMD − ε]."""
    return -(log_multiplier.exp() * (mmd - threshold).mean())


@component("algo", "bear")
@dataclass(eq=False, kw_only=True)
class BEAR(BCQ):
    """Bootstrapping error accumulation reduction (Kumar et al., 2019, arXiv:1906.00949).

    Actor:   maximise  min_i Q_i(s, a),  a ~ π(·|s),  such that  MMD(π(·|s), G(s)) ≤ ε, by a multiplier α,
             where G is BCQ's model of the data's actions; actions are compared before their tanh.
    Critic:  BCQ's, with actions of π. Acts by the best of several samples.
    For offline data of bad actions too: only what the data hold at all is asked for, not how often.
    """

    network: ClassVar[NetDefaults] = NetDefaults(hidden=(256, 256))

    actor_learning_rate: Positive = 1e-4  # step size of the policy
    critic_learning_rate: Positive = 3e-4  # step size of the critics
    vae_learning_rate: Positive = 3e-4  # step size of the model of the data's actions
    multiplier_learning_rate: Positive = 1e-3  # step size of the multiplier's logarithm
    phi: float = field(init=False, default=0.0)  # of BCQ: the policy does not move actions, it makes them
    n_action_samples: Size = 10  # actions of which the best is taken
    kernel: Kernel = Kernel.laplacian  # likeness of two actions: laplacian or gaussian
    mmd_sigma: Positive = 20.0  # σ: width of the kernel
    mmd_threshold: NonNegative = 0.05  # ε: distance from the data's actions that is allowed
    n_mmd_samples: Size = 10  # actions of policy and data that the distance is computed from
    warmup_updates: Natural = 20_000  # first updates, in which the policy only comes near to the data

    def build(self, spec: EnvSpec, model: Model) -> None:
        """BCQ's networks with a policy in place of ξ, and the multiplier."""
        super().build(spec, model)
        self.log_multiplier = torch.zeros(()).requires_grad_()
        self.multiplier_optimizer = Adam([self.log_multiplier], self.multiplier_learning_rate)

    def build_actor(self, spec: EnvSpec, model: Model) -> nn.Module:
        """The network of π(·|s)."""
        return model.build(spec, 2 * spec.action.dim, defaults=self.network)

    @property
    def noise_size(self) -> int:
        """Random numbers that an action is made from."""
        return self.spec.action.dim

    def unsquashed(self, actor: nn.Module, obs: Obs) -> DiagGaussian:
        """π(·|s) before the tanh."""
        mean, log_std = actor(obs).chunk(2, -1)
        return DiagGaussian(mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX))

    def sampled_actions(self, actor: nn.Module, obs: Obs, noise: Tensor) -> Tensor:
        """Actions of the policy for ``noise`` [m, B, A]."""
        return self.unsquashed(actor, obs).sample(noise).tanh()

    def update(self, batch: Batch) -> Update:
        """The model of the data's actions, critics, policy."""
        self.updates += 1
        noise = self.randomness(batch)
        metrics = self.vae_phase(batch, noise["vae"])
        critic_metrics, priority = self.critic_phase(batch, noise["next_samples"])
        warm = self.updates > self.warmup_updates
        return Update(metrics | critic_metrics | self.actor_phase(batch.obs, noise, warm), priority)

    def randomness(self, batch: Batch) -> dict[str, Tensor]:
        """All random numbers of one update."""
        rows = len(batch.reward)
        return {
            "vae": self.noise(rows, self.vae.latent),
            "next_samples": self.noise(self.n_target_samples, rows, self.noise_size),
            "data": self.noise(self.n_mmd_samples, rows, self.vae.latent),
            "policy": self.noise(self.n_mmd_samples, rows, self.noise_size),
        }

    @phase
    def actor_phase(self, obs: Obs, noise: dict[str, Tensor], warm: bool = True) -> dict[str, Tensor]:
        """One step of the policy within reach of the data's actions, of its target, and of the multiplier."""
        with torch.no_grad():
            latent = noise["data"].clamp(-LATENT_LIMIT, LATENT_LIMIT).flatten(0, 1)
            data = self.vae.decode(repeat_obs(obs, self.n_mmd_samples), latent).unflatten(0, noise["data"].shape[:2])
        samples = self.unsquashed(self.actor, obs).sample(noise["policy"])  # [m, B, A]
        mmd = bear_mmd(data, samples, self.kernel, self.mmd_sigma)
        q = self.critic(obs, samples[0].tanh())[..., 0].amin(0) if warm else 0.0
        multiplier = self.log_multiplier.detach().exp()
        loss = bear_actor_loss(q, mmd, multiplier)
        self.actor_optimizer.step(loss)
        self.target_actor.follow(self.tau)
        self.multiplier_optimizer.step(bear_multiplier_loss(self.log_multiplier, mmd.detach(), self.mmd_threshold))
        with torch.no_grad():
            self.log_multiplier.clamp_(*LOG_MULTIPLIER)
        return {"loss/actor": loss.detach(), "policy/mmd": mmd.detach().mean(), "policy/multiplier": multiplier}
