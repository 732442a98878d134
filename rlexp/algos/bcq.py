"""Batch-constrained Q-learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rlexp.algos.base import CONTINUOUS, OFFLINE, OffPolicyAlgorithm
from rlexp.algos.losses import mse, td_priority, vae_loss
from rlexp.algos.samples import repeat_obs, values_of_samples
from rlexp.compiling import phase
from rlexp.config.component import component
from rlexp.config.fields import Fraction, NonNegative, Positive, Size
from rlexp.envs.spec import EnvSpec
from rlexp.models import Model, NetDefaults
from rlexp.models.target import TargetNetwork
from rlexp.models.vae import ActionVAE
from rlexp.optim import Adam
from rlexp.tree import tree_first
from rlexp.types import Act, Batch, Obs, Update

LATENT_LIMIT = 0.5  # sampled latents are clipped to ± this, so that decoded actions stay near the data's


def bcq_target_value(q: Tensor, min_weight: float | Tensor) -> Tensor:
    """max_j [λ min_i Q_i(s, a_j) + (1 − λ) max_i Q_i(s, a_j)] of the values [n, m, B] of m actions -> [B]."""
    return (min_weight * q.amin(0) + (1 - min_weight) * q.amax(0)).amax(0)


def bcq_perturbed(action: Tensor, outputs: Tensor, phi: float | Tensor) -> Tensor:
    """Actions moved by at most Φ: a + Φ tanh(outputs), within the bounds."""
    return (action + phi * outputs.tanh()).clamp(-1, 1)


@component("algo", "bcq")
@dataclass(eq=False, kw_only=True)
class BCQ(OffPolicyAlgorithm):
    """Batch-constrained deep Q-learning (Fujimoto et al., 2019, arXiv:1812.02900).

    Actions come from a model G of the data's actions, moved by a small learned ξ:  a_j + ξ(s, a_j),  a_j ~ G(s).
    Critic:  Q_i(s, a) → r + γ max_j [λ min_i Q̄_i(s′, a_j) + (1 − λ) max_i Q̄_i(s′, a_j)],  a_j + ξ̄ of m samples at s′.
    Actor:   maximise  Q_1(s, a + ξ(s, a)),  a ~ G(s),  |ξ| ≤ Φ.   G: a variational autoencoder, fitted to D.
    Acts by the best of many such samples. For offline data whose good actions are worth staying close to.
    """

    loops: ClassVar[frozenset[str]] = frozenset({OFFLINE})
    actions: ClassVar[frozenset[str]] = frozenset({CONTINUOUS})
    unit_actions: ClassVar[bool] = True
    network: ClassVar[NetDefaults] = NetDefaults(hidden=(400, 300))
    vae_network: ClassVar[NetDefaults] = NetDefaults(hidden=(750, 750))
    tied_to_data: ClassVar[bool] = True

    actor_learning_rate: Positive = 1e-3  # step size of the actor
    critic_learning_rate: Positive = 1e-3  # step size of the critics
    vae_learning_rate: Positive = 1e-3  # step size of the model of the data's actions
    vae_kl_weight: NonNegative = 0.5  # weight of its latent's distance to the prior, against reconstruction
    phi: Fraction = 0.05  # Φ: how far the actor may move an action, as a share of half the action's range
    min_weight: Fraction = 0.75  # λ: weight of the smallest of the critics' values in the target, against the largest
    n_critics: Size = 2  # size of that ensemble
    n_target_samples: Size = 10  # actions of which the best is the target's
    n_action_samples: Size = 100  # actions of which the best is taken
    tau: Fraction = 0.005  # share of actor and critics that flows into their targets at each update

    def build(self, spec: EnvSpec, model: Model) -> None:
        """Actor and critics with targets, and the model of the data's actions."""
        dim = spec.action.dim
        self.actor = self.build_actor(spec, model)
        self.critic = model.build(spec, 1, defaults=self.network.of_critic(), action_dim=dim, ensemble=self.n_critics)
        self.target_actor, self.target_critic = TargetNetwork(self.actor), TargetNetwork(self.critic)
        self.vae = ActionVAE(model, spec, self.vae_network)
        self.greedy_noise = torch.randn(self.n_action_samples, 1, self.noise_size)  # the same for every state
        self.actor_optimizer = Adam(self.actor.named_parameters(), self.actor_learning_rate)
        self.critic_optimizer = Adam(self.critic.named_parameters(), self.critic_learning_rate)
        self.vae_optimizer = Adam(self.vae.named_parameters(), self.vae_learning_rate)

    def build_actor(self, spec: EnvSpec, model: Model) -> nn.Module:
        """The network of ξ(s, a)."""
        return model.build(spec, spec.action.dim, defaults=self.network, action_dim=spec.action.dim)

    @property
    def noise_size(self) -> int:
        """Random numbers that an action is made from."""
        return 2 * self.spec.action.dim

    # ---- acting

    def sampled_actions(self, actor: nn.Module, obs: Obs, noise: Tensor) -> Tensor:
        """a_j + ξ(s, a_j) for the latents that ``noise`` [m, B, L] gives after clipping, [m, B, A]."""
        repeated = repeat_obs(obs, len(noise))
        latent = noise.clamp(-LATENT_LIMIT, LATENT_LIMIT).flatten(0, 1)
        with torch.no_grad():
            action = self.vae.decode(repeated, latent).tanh()
        return bcq_perturbed(action, actor(repeated, action), self.phi).unflatten(0, noise.shape[:2])

    def act(self, obs: Obs, carry: Any, *, explore: bool, generator: torch.Generator) -> Act:
        """The best of sampled actions by the first critic; without exploring, of always the same noise."""
        count = tree_first(obs).shape[0]  # not len(): an exported policy takes any number of rows
        shape = (self.n_action_samples, count, self.noise_size)
        noise = self.greedy_noise.expand(shape)
        if explore:
            noise = torch.randn(shape, generator=generator, device=self.device)
        actions = self.sampled_actions(self.actor, obs, noise)
        best = values_of_samples(self.critic, obs, actions, whole=True)[0].argmax(0)  # [N]
        return Act(actions.gather(0, best.view(1, -1, 1).expand_as(actions[:1]))[0])

    def action_value(self, obs: Obs, action: Tensor) -> Tensor:
        """min_i Q_i(s, a), [B]."""
        return self.critic(obs, action)[..., 0].amin(0)

    # ---- learning

    def update(self, batch: Batch) -> Update:
        """The model of the data's actions, critics, actor."""
        self.updates += 1
        noise = self.randomness(batch)
        metrics = self.vae_phase(batch, noise["vae"])
        critic_metrics, priority = self.critic_phase(batch, noise["next_samples"])
        return Update(metrics | critic_metrics | self.actor_phase(batch.obs, noise), priority)

    def randomness(self, batch: Batch) -> dict[str, Tensor]:
        """All random numbers of one update."""
        rows = len(batch.reward)
        return {
            "vae": self.noise(rows, self.vae.latent),
            "next_samples": self.noise(self.n_target_samples, rows, self.noise_size),
            "action": self.noise(1, rows, self.noise_size),
        }

    @phase
    def vae_phase(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """One step of the model of the data's actions."""
        loss = vae_loss(*self.reconstruction(batch, noise), self.vae_kl_weight)
        self.vae_optimizer.step(loss)
        return {"loss/vae": loss.detach()}

    def reconstruction(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What the autoencoder makes of the batch's actions, these, and its latent's mean and log_std."""
        reconstruction, mean, log_std = self.vae(batch.obs, batch.action, noise)
        return reconstruction, batch.action, mean, log_std

    @phase
    def critic_phase(self, batch: Batch, noise: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
        """One step of the critics towards the best of the sampled actions, and of the targets."""
        with torch.no_grad():
            next_actions = self.sampled_actions(self.target_actor, batch.next_obs, noise)
            next_q = values_of_samples(self.target_critic, batch.next_obs, next_actions)  # [n, m, B]
            target = batch.reward + batch.discount * bcq_target_value(next_q, self.min_weight)
        q = self.critic(batch.obs, batch.action)[..., 0]  # [n, B]
        loss = mse(q, target, batch.weight)
        self.critic_optimizer.step(loss)
        self.target_critic.follow(self.tau)
        metrics = {"loss/critic": loss.detach(), "q/mean": q.detach().mean()}
        return metrics, td_priority(q, target, batch.weight)

    @phase
    def actor_phase(self, obs: Obs, noise: dict[str, Tensor]) -> dict[str, Tensor]:
        """One step of ξ towards larger values, and of its target."""
        action = self.sampled_actions(self.actor, obs, noise["action"])[0]
        loss = -self.critic(obs, action)[0].mean()
        self.actor_optimizer.step(loss)
        self.target_actor.follow(self.tau)
        return {"loss/actor": loss.detach()}
