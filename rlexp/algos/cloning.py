"""What algorithms share whose policy clones actions of its data: a policy for either kind of actions, and critics."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from rlexp.algos.base import CONTINUOUS, DISCRETE, OFFLINE, OffPolicyAlgorithm
from rlexp.algos.exploration import StochasticPolicy
from rlexp.algos.losses import mse
from rlexp.compiling import phase
from rlexp.config.fields import Fraction, Positive, Size, Static, Structure
from rlexp.envs.spec import ActionSpec, EnvSpec
from rlexp.models import Model, NetDefaults, PolicyHead
from rlexp.models.distributions import BoundedGaussianHead, CategoricalHead
from rlexp.models.target import TargetNetwork
from rlexp.optim import Adam
from rlexp.tree import tree_map
from rlexp.types import Batch, Obs, Update


@dataclass(eq=False, kw_only=True)
class Cloning(StochasticPolicy, OffPolicyAlgorithm):
    """A stochastic policy π that is fitted to actions of the data; who derives from it says how much to each.

    Discrete actions have a categorical policy. Continuous ones have a normal around a mean in (−1, 1), which unlike a
    squashed one gives the many actions of replay data that lie on the bounds a finite density.
    """

    loops: ClassVar[frozenset[str]] = frozenset({OFFLINE})
    actions: ClassVar[frozenset[str]] = frozenset({CONTINUOUS, DISCRETE})
    unit_actions: ClassVar[bool] = True
    network: ClassVar[NetDefaults] = NetDefaults(hidden=(256, 256))
    max_log_std: ClassVar[float] = 0.0
    tied_to_data: ClassVar[bool] = True

    state_dependent_std: Structure = True  # whether each state has a deviation of its own (continuous actions)
    min_log_std: Annotated[float, Static()] = -5.0  # bound of the policy's deviation from below (continuous actions)

    def build_policy(self, spec: EnvSpec, model: Model) -> None:
        """The network of π, and the deviation of continuous actions if it does not depend on the state."""
        self.discrete = spec.action.kind == DISCRETE
        self.head = self.policy_head(spec.action)
        self.actor = model.build(spec, self.head.out, defaults=self.network)
        self.log_std = torch.zeros(self.head.out).requires_grad_() if self.head.needs_log_std else None

    def policy_head(self, action: ActionSpec) -> PolicyHead:
        """How the network's outputs become π."""
        if self.discrete:
            return CategoricalHead(action.n)
        return BoundedGaussianHead(
            action.dim,
            log_std_min=self.min_log_std,
            log_std_max=self.max_log_std,
            state_dependent_std=self.state_dependent_std,
        )

    def policy_parameters(self) -> list[tuple[str, Tensor]]:
        """Everything of π that is trained, by name."""
        named: list[tuple[str, Tensor]] = list(self.actor.named_parameters())
        return named if self.log_std is None else [*named, ("log_std", self.log_std)]

    def policy(self, obs: Obs) -> Any:
        """π(·|s), over the actions that are possible."""
        outputs = self.actor(obs)
        return self.head.dist(self.masked(outputs, obs) if self.discrete else outputs, self.log_std)

    def policy_noise(self, *batch: int) -> Tensor:
        """What ``policy(…).sample`` needs, from the algorithm's own generator."""
        return self.head.draw_noise(*batch, generator=self.generator, device=self.device)


@dataclass(eq=False, kw_only=True)
class ReturnCloning(Cloning):
    """Cloning what went better than expected: V(s) predicts returns of the data, A(s, a) = R − V(s) weights actions.

    Who derives from it says which returns, and how an advantage becomes a weight.
    """

    actor_learning_rate: Positive = 3e-4  # step size of the policy
    value_learning_rate: Positive = 3e-4  # step size of V

    def build(self, spec: EnvSpec, model: Model) -> None:
        """Actor and V."""
        self.build_policy(spec, model)
        self.value_net = model.build(spec, 1, defaults=self.network.of_critic())
        self.actor_optimizer = Adam(self.policy_parameters(), self.actor_learning_rate)
        self.value_optimizer = Adam(self.value_net.named_parameters(), self.value_learning_rate)

    def value(self, obs: Obs) -> Tensor:
        """V(s), [B]."""
        return self.value_net(obs)[..., 0]

    @abstractmethod
    def returns(self, batch: Batch) -> Tensor:
        """R, [B]."""

    @abstractmethod
    def advantage_weight(self, advantage: Tensor) -> Tensor:
        """What each action is cloned with, [B]."""

    @abstractmethod
    def actor_loss(self, log_prob: Tensor, weight: Tensor) -> Tensor:
        """What π minimises; importance weights are part of ``weight``."""

    def update(self, batch: Batch) -> Update:
        """V, and the policy by the advantages over it."""
        self.updates += 1
        return Update(self.learn_phase(batch))

    @phase
    def learn_phase(self, batch: Batch) -> dict[str, Tensor]:
        """One step of each, by the advantages of before."""
        returns, value = self.returns(batch), self.value(batch.obs)
        advantage = (returns - value).detach()
        weight = self.advantage_weight(advantage)
        value_loss = mse(value, returns, batch.weight)
        self.value_optimizer.step(value_loss)
        importance = weight if batch.weight is None else weight * batch.weight
        actor_loss = self.actor_loss(self.policy(batch.obs).log_prob(batch.action), importance)
        self.actor_optimizer.step(actor_loss)
        metrics = {
            "loss/value": value_loss.detach(),
            "loss/actor": actor_loss.detach(),
            "value/mean": value.detach().mean(),
        }
        return metrics | {"advantage/mean": advantage.mean(), "advantage/weight": weight.mean()}


@dataclass(eq=False, kw_only=True)
class CriticCloning(Cloning):
    """Cloning what critics Q_i find good: an ensemble with target networks, for either kind of actions."""

    actor_learning_rate: Positive = 3e-4  # step size of the policy
    critic_learning_rate: Positive = 3e-4  # step size of the critics
    n_critics: Size = 2  # ensemble whose minimum is taken
    tau: Fraction = 0.005  # share of the critics that flows into their targets at each update

    def build(self, spec: EnvSpec, model: Model) -> None:
        """Actor, critics with targets."""
        self.build_policy(spec, model)
        out, dim = (spec.action.n, 0) if self.discrete else (1, spec.action.dim)
        self.critic = model.build(spec, out, defaults=self.network.of_critic(), action_dim=dim, ensemble=self.n_critics)
        self.target_critic = TargetNetwork(self.critic)
        self.actor_optimizer = Adam(self.policy_parameters(), self.actor_learning_rate)
        self.critic_optimizer = Adam(self.critic.named_parameters(), self.critic_learning_rate)

    def q(self, critic: nn.Module, obs: Obs, action: Tensor) -> Tensor:
        """Q_i(s, a), [n, B]; the critics of discrete actions have one output for each."""
        if not self.discrete:
            return critic(obs, action)[..., 0]
        q = critic(obs)  # [n, B, A]
        return q.gather(-1, action.expand(q.shape[0], -1).unsqueeze(-1))[..., 0]

    def action_value(self, obs: Obs, action: Tensor) -> Tensor:
        """min_i Q_i(s, a), [B]."""
        return self.q(self.critic, obs, action).amin(0)

    def q_of_samples(self, critic: nn.Module, obs: Obs, actions: Tensor) -> Tensor:
        """min_i Q_i(s, a_j) for several actions [m, B, …] of each state, [m, B]."""
        if self.discrete:
            return critic(obs).amin(0).gather(-1, actions.T).T
        m = actions.shape[0]
        repeated = tree_map(lambda leaf: leaf.repeat(m, *(1,) * (leaf.dim() - 1)), obs)
        return self.q(critic, repeated, actions.flatten(0, 1)).amin(0).view(m, -1)

    def expected_q(self, critic: nn.Module, obs: Obs, policy: Any, noise: Tensor | None) -> Tensor:
        """E min_i Q_i(s, a) over a ~ π, [B]: exact for discrete actions, else the mean over samples by noise [m, …]."""
        if self.discrete:
            return (policy.probs * critic(obs).amin(0)).sum(-1)
        return self.q_of_samples(critic, obs, policy.sample(noise)).mean(0)
