"""Soft actor-critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from rlexp.algos.base import CONTINUOUS, MIXED, REPLAY, OffPolicyAlgorithm
from rlexp.algos.exploration import StochasticPolicy
from rlexp.algos.losses import mse, td_priority
from rlexp.compiling import phase
from rlexp.config.component import component
from rlexp.config.fields import Count, Fraction, NonNegative, Positive, Size, Static
from rlexp.envs.spec import EnvSpec
from rlexp.models import Model, NetDefaults, PolicyHead
from rlexp.models.distributions import SquashedGaussianHead
from rlexp.models.target import TargetNetwork
from rlexp.optim import Adam
from rlexp.types import Batch, Obs, Update


def sac_critic_loss(q: Tensor, reward: Tensor, discount: Tensor, next_value: Tensor, weight: Any = None) -> Tensor:
    """Σ_i E[(Q_i(s, a) − y)²] with y = r + γ (1 − terminated) V(s′); q is [n, B], everything else [B].

    The soft value of the next state is V(s′) = min_i Q̄_i(s′, a′) − α log π(a′|s′).
    """
    return mse(q, reward + discount * next_value, weight)


def sac_actor_loss(alpha: Tensor | float, log_prob: Tensor, q: Tensor) -> Tensor:
    """E[α log π(a|s) − Q(s, a)], a ~ π."""
    return (alpha * log_prob - q).mean()


def sac_alpha_loss(log_alpha: Tensor, entropy: Tensor, target_entropy: Tensor | float) -> Tensor:
    """α grows while the policy's entropy is below its target: E[log α · (H − H̄)]."""
    return (log_alpha * (entropy - target_entropy)).mean()


@component("algo", "sac")
@dataclass(eq=False, kw_only=True)
class SAC(StochasticPolicy, OffPolicyAlgorithm):
    """Soft actor-critic with learned temperature (Haarnoja et al., 2018, arXiv:1812.05905).

    Critic:  Q_i(s, a) → r + γ (min_i Q̄_i(s′, a′) − α log π(a′|s′)),  a′ ~ π(·|s′).
    Actor:   minimise  α log π(a|s) − min_i Q_i(s, a).
    Temperature: α such that the entropy of π stays at its target.
    The first choice for continuous actions when environment steps are worth more than computation.
    """

    loops: ClassVar[frozenset[str]] = frozenset({REPLAY, MIXED})
    actions: ClassVar[frozenset[str]] = frozenset({CONTINUOUS})
    unit_actions: ClassVar[bool] = True
    actor_network: ClassVar[NetDefaults] = NetDefaults(hidden=(256, 256))
    critic_network: ClassVar[NetDefaults] = NetDefaults(hidden=(256, 256))
    learned_alpha: ClassVar[tuple[str, ...]] = ("alpha_learning_rate", "initial_alpha", "target_entropy_scale")

    actor_learning_rate: Positive = 3e-4  # step size of the policy
    critic_learning_rate: Positive = 3e-4  # step size of the critics
    alpha_learning_rate: Positive = 3e-4  # step size of the temperature
    alpha: Positive | None = None  # temperature if it is to stay fixed; null: learned
    initial_alpha: Annotated[Positive, Static()] = 1.0  # temperature that learning starts from
    target_entropy_scale: NonNegative = 1.0  # target entropy is −this · |A|
    n_critics: Size = 2  # ensemble whose minimum is taken
    actor_interval: Count = 1  # updates of the critics for one of the actor and the temperature
    tau: Fraction = 0.005  # share of the critics that flows into their targets at each update

    def __post_init__(self) -> None:
        if self.alpha is not None:
            for name in self.learned_alpha:
                self.refuse_idle(name, f"a fixed temperature, alpha={self.alpha:g}. Leave out one of the two.")

    def build(self, spec: EnvSpec, model: Model) -> None:
        """Actor, critics with targets, temperature."""
        self.build_networks(spec, model)
        self.build_target()
        self.log_alpha = torch.tensor(float(self.alpha or self.initial_alpha)).log().requires_grad_(self.alpha is None)
        betas = self.adam_betas()
        self.actor_optimizer = Adam(self.actor.named_parameters(), self.actor_learning_rate, betas)
        self.critic_optimizer = Adam(self.critic.named_parameters(), self.critic_learning_rate, betas)
        if self.alpha is None:
            self.alpha_optimizer = Adam([self.log_alpha], self.alpha_learning_rate)

    def build_networks(self, spec: EnvSpec, model: Model) -> None:
        """The policy π(·|s) and the critics Q_i(s, a)."""
        dim = spec.action.dim
        self.head: PolicyHead = SquashedGaussianHead(dim)
        self.actor = model.build(spec, self.head.out, defaults=self.actor_network)
        self.critic = model.build(
            spec,
            self.critic_outputs(),
            defaults=self.critic_network.of_critic(),
            action_dim=dim,
            ensemble=self.n_critics,
        )

    def critic_outputs(self) -> int:
        """Numbers that each critic predicts: Q(s, a)."""
        return 1

    def build_target(self) -> None:
        """Critics that follow the critics."""
        self.target_critic = TargetNetwork(self.critic)

    def adam_betas(self) -> tuple[float, float]:
        """Of the optimizers of actor and critics."""
        return 0.9, 0.999

    def target_entropy(self, obs: Obs) -> Any:
        """H̄, read anew at every update because its scale may be scheduled."""
        return -self.target_entropy_scale * self.spec.action.dim

    def policy(self, obs: Obs) -> Any:
        """π(·|s)."""
        return self.head.dist(self.actor(obs))

    def update(self, batch: Batch) -> Update:
        """Critics, their targets, then actor and temperature."""
        self.updates += 1
        noise = self.randomness(batch)
        metrics, priority = self.critic_phase(batch, noise)
        if self.updates % self.actor_interval == 0:
            metrics |= self.actor_phase(batch.obs, noise)
        return Update(metrics, priority)

    def randomness(self, batch: Batch) -> dict[str, Tensor]:
        """All random numbers of one update."""
        current, following = self.noise(2, *batch.action.shape)
        return {"action": current, "next_action": following}

    @phase
    def critic_phase(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
        """One step of the critics towards the soft Bellman target, and of the targets towards the critics."""
        with torch.no_grad():
            next_value = self.next_value(batch.next_obs, noise)
        loss, q, metrics = self.critic_loss(batch, next_value, noise)
        self.critic_optimizer.step(loss)
        self.target_critic.follow(self.tau)
        priority = td_priority(q, batch.reward + batch.discount * next_value, batch.weight)
        return {"loss/critic": loss.detach(), "q/mean": q.detach().mean(), **metrics}, priority

    @phase
    def actor_phase(self, obs: Obs, noise: dict[str, Tensor]) -> dict[str, Tensor]:
        """One step of the policy, and of the temperature towards the target entropy."""
        alpha = self.log_alpha.detach().exp()
        loss, entropy = self.actor_loss(obs, alpha, noise)
        self.actor_optimizer.step(loss)
        if self.alpha is None:
            self.alpha_optimizer.step(sac_alpha_loss(self.log_alpha, entropy, self.target_entropy(obs)))
        return {"loss/actor": loss.detach(), "policy/entropy": entropy.mean(), "policy/alpha": alpha}

    def critic_loss(
        self, batch: Batch, next_value: Tensor, noise: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The critics' loss, Q_i(s, a) [n, B], and the metrics of what a subclass adds."""
        q = self.q_taken(batch)
        return sac_critic_loss(q, batch.reward, batch.discount, next_value, batch.weight), q, {}

    def q_taken(self, batch: Batch) -> Tensor:
        """Q_i(s, a) of the actions in the batch, [n, B]."""
        return self.critic(batch.obs, batch.action)[..., 0]

    def action_value(self, obs: Obs, action: Tensor) -> Tensor:
        """Q(s, a) as the actor follows it, [B]."""
        return self.reduce_actor(self.critic(obs, action).mean(-1))

    def next_value(self, next_obs: Obs, noise: dict[str, Tensor]) -> Tensor:
        """The soft value of the next state by the target critics, [B]."""
        action, log_prob = self.policy(next_obs).sample_with_log_prob(noise["next_action"])
        q = self.target_critic(next_obs, action)[..., 0]  # [n, B]
        return self.reduce_target(q, noise) - self.log_alpha.exp() * log_prob

    def reduce_target(self, q: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """[n, B] -> [B] in the target."""
        return q.amin(0)

    def reduce_actor(self, q: Tensor) -> Tensor:
        """[n, B] -> [B] in the actor's loss."""
        return q.amin(0)

    def actor_loss(self, obs: Obs, alpha: Tensor, noise: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The actor's loss, and the entropy estimate [B] that steers the temperature."""
        action, log_prob = self.policy(obs).sample_with_log_prob(noise["action"])
        q = self.reduce_actor(self.critic(obs, action).mean(-1))  # of a single output, or of quantiles
        return sac_actor_loss(alpha, log_prob, q), -log_prob.detach()
