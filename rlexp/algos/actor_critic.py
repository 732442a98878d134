"""What the on-policy actor–critics share: two networks, a policy for every action space, and advantages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from rlexp.algos.base import CONTINUOUS, DISCRETE, MULTI_BINARY, MULTI_DISCRETE, OnPolicyAlgorithm
from rlexp.algos.exploration import StochasticPolicy
from rlexp.buffers.returns import gae
from rlexp.compiling import acting
from rlexp.config.fields import Fraction, Static
from rlexp.envs.spec import EnvSpec
from rlexp.models import Activation, Model, NetDefaults, Network, policy_distribution
from rlexp.models.regularization import Dropout
from rlexp.tree import tree_first
from rlexp.types import Act, Obs, Rollout


@dataclass(eq=False, kw_only=True)
class ActorCritic(StochasticPolicy, OnPolicyAlgorithm):
    """A stochastic policy π and a value function V, a network each; who derives from it says how they learn."""

    actions: ClassVar[frozenset[str]] = frozenset({DISCRETE, CONTINUOUS, MULTI_DISCRETE, MULTI_BINARY})
    network: ClassVar[NetDefaults] = NetDefaults(hidden=(64, 64), activation=Activation.tanh, init="orthogonal")
    can_share: ClassVar[bool] = False  # one loss trains both networks, so that they may share a CNN

    gae_lambda: Fraction = 0.95  # bias (0) against variance (1) of the advantages
    initial_log_std: Annotated[float, Static()] = 0.0  # of the Gaussian for continuous actions

    def build_networks(self, spec: EnvSpec, model: Model) -> None:
        """Actor, critic, and the deviation of continuous actions, which does not depend on the state."""
        self.head = policy_distribution(spec.action)
        self.actor: Any = self.build_network(spec, model, self.network, self.head.out, 0.01)
        self.critic: Any = self.build_network(spec, model, self.network.of_critic(), 1, 1.0)
        self.shares_encoder = (
            self.can_share and isinstance(model, Network) and model.share_encoder(self.actor, self.critic)
        )
        self.log_std = torch.full((self.head.out,), self.initial_log_std) if self.head.needs_log_std else None

        if self.log_std is not None:
            self.log_std.requires_grad_()

    def build_network(self, spec: EnvSpec, model: Model, defaults: NetDefaults, out: int, out_gain: float) -> nn.Module:
        """One of the two networks."""
        return model.build(spec, out, defaults=defaults, out_gain=out_gain)

    def dropout_problem(self) -> str | None:
        """The value function may drop units, the policy not."""
        dropping = any(isinstance(module, Dropout) for module in self.actor.modules())
        return super().dropout_problem() if dropping else None

    def parameters(self) -> list[tuple[str, Tensor]]:
        """Everything to be trained, by name."""
        named: list[tuple[str, Tensor]] = [*self.actor.named_parameters(), *self.critic.named_parameters()]
        return named if self.log_std is None else [*named, ("log_std", self.log_std)]

    def policy(self, obs: Obs) -> Any:
        """π(·|s)."""
        return self.head.dist(self.masked(self.actor(obs), obs), self.log_std)

    def value(self, obs: Obs) -> Tensor:
        """V(s), [B]."""
        return self.critic(obs).squeeze(-1)

    def policy_and_value(self, obs: Obs) -> tuple[Any, Tensor]:
        """π(·|s) and V(s), images seen once if the networks share their CNN."""
        if not self.shares_encoder:
            return self.policy(obs), self.value(obs)
        features = self.actor.encode(obs)
        policy = self.head.dist(self.masked(self.actor.decode(features), obs), self.log_std)
        return policy, self.critic.decode(features).squeeze(-1)

    def act(self, obs: Obs, carry: Any, *, explore: bool, generator: torch.Generator) -> Act:
        """Sample, or take the mode.

        Values and probabilities wait for the whole rollout, where they cost less; with a shared CNN they come for free.
        """
        if not (explore and self.shares_encoder):
            return super().act(obs, carry, explore=explore, generator=generator)
        noise = self.head.draw_noise(len(tree_first(obs)), generator=generator, device=self.device)
        action, value, log_prob = self.explore_and_value(obs, noise)
        return Act(action, None, {"value": value, "log_prob": log_prob})

    @acting
    def explore_and_value(self, obs: Obs, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Actions sampled from the policy, V(s) and log π(a|s)."""
        policy, value = self.policy_and_value(obs)
        action = policy.sample(noise)
        return action, value, policy.log_prob(action)

    def advantages(self, batch: Rollout) -> tuple[Tensor, Tensor]:
        """A and the returns that V should predict, [T, N]."""
        return gae(
            batch.reward, batch.value, batch.next_value, batch.terminated, batch.done, self.gamma, self.gae_lambda
        )

    def shuffled(self, count: int, size: int, epochs: int) -> list[Tensor]:
        """The rows of every minibatch of every epoch; a remainder smaller than ``size`` is left out of an epoch."""
        rows = []
        for _ in range(epochs):
            order = torch.randperm(count, generator=self.generator, device=self.device)
            rows += order[: count - count % size].split(size)
        return rows


def explained_variance(value: Tensor, returns: Tensor) -> Tensor:
    """The share of the returns' variance that V predicted: 1 is all of it, 0 no more than their mean, below 0 less."""
    return 1 - (returns - value).var(correction=0) / returns.var(correction=0).clamp_min(1e-8)
