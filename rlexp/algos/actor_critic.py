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
from rlexp.models.regularization import NUMBERS, Dropout, drops_units
from rlexp.tree import tree_first
from rlexp.types import Act, Obs, Rollout


@dataclass(eq=False, kw_only=True)
class ActorCritic(StochasticPolicy, OnPolicyAlgorithm):
    """A stochastic policy π and a value function V, a network each; who derives from it says how they learn."""

    actions: ClassVar[frozenset[str]] = frozenset({DISCRETE, CONTINUOUS, MULTI_DISCRETE, MULTI_BINARY})
    network: ClassVar[NetDefaults] = NetDefaults(hidden=(64, 64), activation=Activation.tanh, init="orthogonal")
    can_share: ClassVar[bool] = False  # one loss trains both networks, so that they may share a CNN
    tells_dropped: ClassVar[bool] = False  # updates tell the policy which units it dropped, see dropped_in

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
        self.drops = drops_units(self.actor)
        for module in self.actor.modules():
            if isinstance(module, Dropout):
                module.numbered = True

    def build_network(self, spec: EnvSpec, model: Model, defaults: NetDefaults, out: int, out_gain: float) -> nn.Module:
        """One of the two networks."""
        return model.build(spec, out, defaults=defaults, out_gain=out_gain)

    def dropout_problem(self) -> str | None:
        """The value function may drop any units; the policy those that it went without when it acted."""
        return super().dropout_problem() if self.drops and not self.tells_dropped else None

    def parameters(self) -> list[tuple[str, Tensor]]:
        """Everything to be trained, by name."""
        named: list[tuple[str, Tensor]] = [*self.actor.named_parameters(), *self.critic.named_parameters()]
        return named if self.log_std is None else [*named, ("log_std", self.log_std)]

    def outputs(self, obs: Obs, **told: Tensor) -> Tensor:
        """What the actor says, [B, out], impossible actions put out of reach; it is ``told`` the same as a policy."""
        return self.masked(self.actor(obs, **told), obs)

    def policy(self, obs: Obs, **told: Tensor) -> Any:
        """π(·|s); told ``dropped`` [B], numbers that :meth:`dropping` drew, without the units that these stand for."""
        return self.head.dist(self.outputs(obs, **told), self.log_std)

    def value(self, obs: Obs) -> Tensor:
        """V(s), [B]."""
        return self.critic(obs).squeeze(-1)

    def policy_and_value(self, obs: Obs, **told: Tensor) -> tuple[Any, Tensor]:
        """π(·|s) and V(s), images seen once if the networks share their CNN."""
        if not self.shares_encoder:
            return self.policy(obs, **told), self.value(obs)
        features = self.actor.encode(obs)
        outputs = self.masked(self.actor.decode(features, **told), obs)
        return self.head.dist(outputs, self.log_std), self.critic.decode(features).squeeze(-1)

    def dropping(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Where the policy has dropout: ``dropped`` [N], numbers that stand for the units each row goes without.

        It belongs to the act's extras, so that the update goes without the same units (:meth:`dropped_in`).
        """
        if not self.drops:
            return {}
        return {"dropped": torch.randint(NUMBERS, (rows,), generator=generator, device=self.device)}

    def dropped_in(self, batch: Rollout) -> dict[str, Tensor]:
        """What the policy has to be told in an update on the rows [T·N] of a rollout: what it was told as it acted."""
        return {"dropped": batch.extras["dropped"].flatten()} if self.drops else {}

    def act(self, obs: Obs, carry: Any, *, explore: bool, generator: torch.Generator) -> Act:
        """Sample, or take the mode.

        Values and probabilities wait for the whole rollout, where they cost less; with a shared CNN they come for free.
        """
        if not (explore and (self.shares_encoder or self.drops)):
            return super().act(obs, carry, explore=explore, generator=generator)
        rows = len(tree_first(obs))
        noise = self.head.draw_noise(rows, generator=generator, device=self.device)
        told = self.dropping(rows, generator)
        if not self.shares_encoder:
            return Act(self.explore(obs, noise, told), None, told)
        action, value, log_prob = self.explore_and_value(obs, noise, told)
        return Act(action, None, {"value": value, "log_prob": log_prob, **told})

    @acting
    def explore(self, obs: Obs, noise: Tensor, told: dict[str, Tensor] | None = None) -> Tensor:
        """Actions sampled from the policy."""
        return self.policy(obs, **(told or {})).sample(noise)  # type: ignore[no-any-return]

    @acting
    def explore_and_value(self, obs: Obs, noise: Tensor, told: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Actions sampled from the policy, V(s) and log π(a|s)."""
        policy, value = self.policy_and_value(obs, **told)
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
