"""Data-regularised Q-learning for pixels, second version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from rlexp.algos.ddpg import DDPG, ddpg_critic_loss
from rlexp.algos.losses import td_priority
from rlexp.compiling import phase
from rlexp.config.component import component
from rlexp.config.fields import Fraction, Natural, NonNegative, Positive, Size, Static
from rlexp.envs.spec import EnvSpec, channels_first
from rlexp.models import MLP, Activation, EncoderKind, Model, NetDefaults, Network, Norm
from rlexp.models.encoders import feature_spec, is_image
from rlexp.models.target import TargetNetwork
from rlexp.optim import Adam
from rlexp.types import Batch, Obs, Update


def drq_v2_shift(image: Tensor, shift: Tensor, pad: int, axes: tuple[int, int]) -> Tensor:
    """Images moved by up to ``pad`` pixels, their border repeated: padded on all sides and cut out again.

    ``shift`` [B, 2] in 0 … 2·pad is where the cut begins (``pad``: not moved), ``axes`` are those of rows and columns.
    """
    for axis, start in zip(axes, shift.unbind(-1)):
        size = image.shape[axis]
        source = torch.arange(size, device=image.device) + (start - pad).unsqueeze(-1)  # [B, size]
        shape = [1] * image.dim()
        shape[0], shape[axis] = source.shape
        image = image.gather(axis, source.clamp(0, size - 1).view(shape).expand(image.shape))
    return image


def drq_v2_action(mean: Tensor, draw: Tensor, scale: float | Tensor, clip: Any) -> Tensor:
    """a = π(s) + clip(σ ε, −c, c) within [−1, 1]; the gradient passes the bounds as if they were not there."""
    action = mean + (scale * draw).clamp(-clip, clip)
    return action + (action.clamp(-1, 1) - action).detach()


def drq_v2_actor_loss(q: Tensor) -> Tensor:
    """−E[min_i Q_i(s, a)], q is [n, B]."""
    return -q.amin(0).mean()


class Trunked(nn.Module):
    """A trunk that narrows features (linear, LayerNorm, tanh), and a network behind it."""

    def __init__(self, inputs: int, size: int, net: nn.Module) -> None:
        super().__init__()
        self.trunk = MLP(
            inputs, None, hidden=(size,), activation=Activation.tanh, norm=Norm.layer, init="orthogonal", hidden_gain=1
        )
        self.net = net

    def forward(self, features: Tensor, *action: Tensor) -> Tensor:
        """What the network answers to the narrowed features."""
        return self.net(self.trunk(features), *action)  # type: ignore[no-any-return]


@component("algo", "drq_v2")
@dataclass(eq=False, kw_only=True)
class DrQv2(DDPG):
    """DrQ-v2 (Yarats et al., 2022, arXiv:2107.09645): DDPG on images that are shifted by a few pixels at random.

    Encoder:  h = f(shift(s)), trained by the critics alone.
    Critic:   Q_i(h, a) → Σ_k γᵏ r_k + γⁿ min_i Q̄_i(h′, a′),  a′ = π(h′) + clip(ε, −c, c),  ε ~ N(0, σ²).
    Actor:    maximise  min_i Q_i(h, a),  a = π(h) + clip(ε, −c, c).
    The noise σ of exploring is the one in both, and shrinks over the run. For continuous control from pixels; on other
    observations nothing is shifted.
    """

    actor_network: ClassVar[NetDefaults] = NetDefaults(
        hidden=(1024, 1024), init="orthogonal", hidden_gain=1.0, features=True, cnn=EncoderKind.drq_v2
    )
    critic_network: ClassVar[NetDefaults] = actor_network
    noise_in_losses: ClassVar[bool] = True

    actor_learning_rate: Positive = 1e-4  # step size of the policy
    critic_learning_rate: Positive = 1e-4  # step size of the critics and of the encoder
    n_critics: Size = 2  # ensemble whose minimum is taken
    tau: Fraction = 0.01  # share of the critics that flows into their targets at each update
    exploration_noise: NonNegative = 0.1  # deviation σ of the noise on actions; the YAML begins with 1
    noise_clip: NonNegative = 0.3  # bound of the noise on the actions that are learned from, c
    shift: Annotated[Natural, Static()] = 4  # pixels by which images are moved at most
    feature_size: Size = 50  # width of the trunks between the encoder and the networks

    def check_new(self, spec: EnvSpec) -> None:
        """Refuse a shift of images where there are none."""
        if not any(is_image(leaf) for leaf in spec.obs.seen.values()):
            self.refuse_idle("shift", f"the observations of {spec.id}, which hold no image. Leave it out.")

    def build(self, spec: EnvSpec, model: Model) -> None:
        """Encoder, actor, critics with targets; the actor has none."""
        self.build_networks(spec, model)
        self.target_critic = TargetNetwork(self.critic)
        self.actor_optimizer = Adam(self.actor.named_parameters(), self.actor_learning_rate)
        learned = [*self.encoder.named_parameters("encoder"), *self.critic.named_parameters("critic")]
        self.critic_optimizer = Adam(learned, self.critic_learning_rate)

    def build_networks(self, spec: EnvSpec, model: Model) -> None:
        """The encoder f(s), and behind a trunk each the policy and the critics."""
        dim, size = spec.action.dim, self.feature_size
        if isinstance(model, Network):
            self.encoder: nn.Module = model.build_encoder(spec, self.actor_network)
        else:
            self.encoder = model.build(spec, None, defaults=self.actor_network)
        inputs: int = self.encoder.out  # type: ignore[assignment]
        narrow = feature_spec(spec, size)
        actor = model.build(narrow, dim, defaults=self.actor_network, out_gain=1.0)
        critic = model.build(
            narrow,
            1,
            defaults=self.critic_network.of_critic(),
            action_dim=dim,
            ensemble=self.n_critics,
            out_gain=1.0,
        )
        self.actor, self.critic = Trunked(inputs, size, actor), Trunked(inputs, size, critic)
        # The axes of rows and columns of each image, its batch axis counted.
        self.images = {
            name: (-2, -1) if channels_first(leaf.shape) else (-3, -2)
            for name, leaf in spec.obs.seen.items()
            if is_image(leaf)
        }

    def policy(self, obs: Obs) -> Tensor:
        """π(s), [B, A], of images as they are."""
        return self.actor(self.encoder(obs)).tanh()  # type: ignore[no-any-return]

    def q(self, obs: Obs, action: Tensor) -> Tensor:
        """Q_i(s, a), [n, B], of images as they are."""
        return self.critic(self.encoder(obs), action)[..., 0]  # type: ignore[no-any-return]

    def shifted(self, obs: Obs, shift: Tensor) -> Obs:
        """Observations with their images moved; those of one observation together."""
        if not isinstance(obs, dict):
            return drq_v2_shift(obs, shift, self.shift, self.images[""]) if self.images else obs
        moved = {name: drq_v2_shift(obs[name], shift, self.shift, axes) for name, axes in self.images.items()}
        return obs | moved

    def randomness(self, batch: Batch) -> dict[str, Tensor]:
        """All random numbers of one update: noise on actions, and where images are cut out."""
        rows = len(batch.reward)
        current, following = self.noise(2, *batch.action.shape)
        cuts = (self.uniform(2, rows, 2) * (2 * self.shift + 1)).long()
        return {"action": current, "next_action": following, "shift": cuts[0], "next_shift": cuts[1]}

    def update(self, batch: Batch) -> Update:
        """Critics with the encoder and their targets, then the actor on the same features."""
        self.updates += 1
        noise = self.randomness(batch)
        metrics, priority, features = self.critic_phase(batch, noise)
        if self.updates % self.actor_interval == 0:
            metrics |= self.actor_phase(features, noise)
        return Update(metrics, priority)

    @phase
    def critic_phase(  # type: ignore[override]
        self, batch: Batch, noise: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], Tensor | None, Tensor]:
        """One step of the critics and the encoder towards the Bellman target, and of the targets after them."""
        with torch.no_grad():
            target = self.target(batch, noise)
        features = self.encoder(self.shifted(batch.obs, noise["shift"]))
        q = self.critic(features, batch.action)[..., 0]
        loss = ddpg_critic_loss(q, target, batch.weight)
        self.critic_optimizer.step(loss)
        self.target_critic.follow(self.tau)
        metrics = {"loss/critic": loss.detach(), "q/mean": q.detach().mean()}
        features = features.detach().clone()  # no view: compiled code is called directly if it made all it returns
        return metrics, td_priority(q, target, batch.weight), features

    @phase
    def actor_phase(self, features: Tensor, noise: dict[str, Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        """One step of the policy."""
        action = drq_v2_action(self.actor(features).tanh(), noise["action"], self.exploration_noise, self.noise_clip)
        loss = drq_v2_actor_loss(self.critic(features, action)[..., 0])
        self.actor_optimizer.step(loss)
        return {"loss/actor": loss.detach()}

    def target(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """y = r + γⁿ (1 − terminated) min_i Q̄_i(h′, a′), [B]."""
        features = self.encoder(self.shifted(batch.next_obs, noise["next_shift"]))
        mean = self.actor(features).tanh()
        action = drq_v2_action(mean, noise["next_action"], self.exploration_noise, self.noise_clip)
        return batch.reward + batch.discount * self.target_critic(features, action)[..., 0].amin(0)
