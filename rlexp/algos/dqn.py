"""Deep Q-network, and the options that its family shares."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlexp.algos.base import DISCRETE, MIXED, REPLAY, OffPolicyAlgorithm
from rlexp.algos.losses import td_priority, weighted_mean
from rlexp.compiling import acting, phase
from rlexp.config.component import component
from rlexp.config.fields import Count, Fraction, Positive, Static, Structure
from rlexp.envs.spec import EnvSpec
from rlexp.errors import ConfigError
from rlexp.models import Model, NetDefaults
from rlexp.models.target import TargetNetwork
from rlexp.optim import Adam
from rlexp.tree import tree_first
from rlexp.types import Act, Batch, Obs, Update

Draw = dict[str, Tensor]  # the random numbers of one forward pass


def dqn_target(reward: Tensor, discount: Tensor, target_q: Tensor, online_q: Tensor | None = None) -> Tensor:
    """y = r + γ (1 − terminated) max_a Q̄(s′, a); with ``online_q`` [B, A] it chooses the action (double DQN)."""
    if online_q is None:
        next_q = target_q.amax(-1)
    else:
        next_q = target_q.gather(-1, online_q.argmax(-1, keepdim=True)).squeeze(-1)
    return reward + discount * next_q


def dqn_loss(q: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Huber loss (δ = 1) between Q(s, a) [B] and its target [B]."""
    return weighted_mean(F.smooth_l1_loss(q, target, reduction="none"), weight)


def dueling_values(out: Tensor) -> Tensor:
    """Q(s, a) = V(s) + A(s, a) − mean_a A(s, a): [B, 1 + A, …] with V first -> [B, A, …]."""
    value, advantage = out[:, :1], out[:, 1:]
    return value + advantage - advantage.mean(1, keepdim=True)


def value_taken(head: Tensor, action: Tensor) -> Tensor:
    """[B, A, …] at the actions [B] -> [B, …]."""
    return torch.take_along_dim(head, action.view(-1, *(1,) * (head.dim() - 1)), 1).squeeze(1)


@component("algo", "dqn")
@dataclass(eq=False, kw_only=True)
class DQN(OffPolicyAlgorithm):
    """Q-learning with a target network (Mnih et al., 2015), and the options of its family as fields.

    Q(s, a) → r + γ max_a′ Q̄(s′, a′);  double:  Q(s, a) → r + γ Q̄(s′, argmax_a′ Q(s′, a′)).
    Double Q-learning: van Hasselt et al., 2016. Dueling: Wang et al., 2016. Noisy: Fortunato et al., 2018. With
    ``buffer=prioritized`` and ``buffer.n_step`` they combine freely, also in the subclasses.
    The simplest off-policy choice for discrete actions.
    """

    loops: ClassVar[frozenset[str]] = frozenset({REPLAY, MIXED})
    actions: ClassVar[frozenset[str]] = frozenset({DISCRETE})
    network: ClassVar[NetDefaults] = NetDefaults(hidden=(64, 64))

    learning_rate: Positive = 1e-4  # step size
    double: bool = False  # the online network chooses the action that the target network evaluates
    dueling: Structure = False  # the network predicts V(s) and the advantages of the actions
    noisy: Structure = False  # explore by noise on the weights, whose scale is learned, instead of by ε
    noisy_sigma: Annotated[Positive, Static()] = 0.5  # initial scale of that noise, times 1/√inputs of each layer
    epsilon: Fraction = 0.05  # probability of a random action while exploring, unless noisy; the YAML begins with 1
    target_interval: Count = 1_000  # updates between moves of the target network
    tau: Fraction = 1.0  # share of the online network that flows into the target at each move; 1: a copy
    max_grad_norm: Positive = 10.0  # gradients are scaled down to this norm; inf: never

    def __post_init__(self) -> None:
        # An epsilon beside noisy=true passes: our configs and presets begin with one, whoever adds noisy to them.
        if not self.noisy:
            self.refuse_idle("noisy_sigma", "noisy=false. Use noisy=true.")

    def build(self, spec: EnvSpec, model: Model) -> None:
        """Q-network, target and optimizer."""
        self.q = self.q_network(spec, model)
        self.target_q = TargetNetwork(self.q)
        self.optimizer = Adam(self.q.named_parameters(), self.learning_rate)

    def q_network(self, spec: EnvSpec, model: Model) -> nn.Module:
        """One output for each action, and one for the state's value if dueling."""
        return self.net(spec, model, spec.action.n + self.dueling)

    def net(self, spec: EnvSpec, model: Model, out: int | None) -> nn.Module:
        """A network of the model, noisy or not."""
        if not self.noisy:
            return model.build(spec, out, defaults=self.network)
        if "noisy" not in signature(model.build).parameters:
            raise ConfigError(
                f"algo.noisy needs a model with noisy weights, but build() of {type(model).__name__} takes no `noisy`. "
                "Use model=auto, or algo.noisy=false."
            )
        return model.build(spec, out, defaults=self.network, noisy=self.noisy_sigma)  # type: ignore[call-arg]

    # ---- what a network predicts: the seams of the family

    def forward(self, net: nn.Module, obs: Obs, draw: Draw) -> Tensor:
        """The outputs of a network, with the noise that was drawn for it."""
        return net(obs, noise=draw["weights"]) if draw else net(obs)  # type: ignore[no-any-return]

    def head(self, net: nn.Module, obs: Obs, draw: Draw) -> Tensor:
        """What a network predicts of each action: Q(s, a) [B, A], in subclasses a distribution [B, A, K]."""
        out = self.forward(net, obs, draw)
        return dueling_values(out) if self.dueling else out

    def q_values(self, head: Tensor) -> Tensor:
        """Q(s, a) [B, A] of such predictions."""
        return head

    def choice(self, batch: Batch, target: Tensor, draws: dict[str, Draw]) -> Tensor:
        """The action [B] whose value the target takes, where ``target`` is the target network's head."""
        chooser = self.head(self.q, batch.next_obs, draws["choice"]) if self.double else target
        return self.greedy(chooser, batch.next_obs)

    def greedy(self, head: Tensor, obs: Obs) -> Tensor:
        """The best possible action [B] by such predictions."""
        return self.masked(self.q_values(head), obs).argmax(-1)

    def action_value(self, obs: Obs, action: Tensor) -> Tensor:
        """Q(s, a) without noise, [B]."""
        return value_taken(self.q_values(self.head(self.q, obs, {})), action)

    # ---- acting and learning

    def act(self, obs: Obs, carry: Any, *, explore: bool, generator: torch.Generator) -> Act:
        """The greedy action; to explore, a random one with probability ε, or noise on the weights."""
        if not explore:
            return Act(self.greedy(self.head(self.q, obs, {}), obs))
        numbers = 1 + self.spec.action.n if self.spec.obs.masked else 2
        shape = (numbers, len(tree_first(obs)))
        chance = None if self.noisy else torch.rand(shape, generator=generator, device=self.device)
        if chance is not None and bool((chance[0] < self.epsilon).all()):
            return Act(self.anyone(obs, chance))  # early on that is most steps, and the network need not be asked
        return Act(self.explore(obs, self.draw_weights(generator), chance))

    @acting
    def explore(self, obs: Obs, draw: Draw, chance: Tensor | None) -> Tensor:
        """Noisy actions [N], or ε-greedy ones: ``chance`` [2, N] is whether to take a random one, and which.

        Where some are impossible it is [1 + A, N], a lot for each.
        """
        best = self.greedy(self.head(self.q, obs, draw), obs)
        return best if chance is None else torch.where(chance[0] < self.epsilon, self.anyone(obs, chance), best)

    def anyone(self, obs: Obs, chance: Tensor) -> Tensor:
        """Random actions [N] of those that are possible."""
        lots = self.masked(chance[1:].T, obs)
        return lots.argmax(-1) if self.spec.obs.masked else (lots[:, 0] * self.spec.action.n).long()

    def draw_weights(self, generator: torch.Generator) -> Draw:
        """Noise for the weights of one forward pass; nothing if they have none."""
        if not self.noisy:
            return {}
        size = int(self.q.noise_size)  # type: ignore[arg-type]
        return {"weights": torch.randn(size, generator=generator, device=self.device)}

    def randomness(self, batch: Batch) -> dict[str, Draw]:
        """All random numbers of one update, for each forward pass its own."""
        return {use: self.draw_weights(self.generator) for use in ("online", "target", "choice")}

    def update(self, batch: Batch) -> Update:
        """One step of the online network; now and then the target follows."""
        self.updates += 1
        metrics, priority = self.q_phase(batch, self.randomness(batch))
        if self.updates % self.target_interval == 0:
            self.target_q.follow(self.tau)
        return Update(metrics, priority)

    @phase
    def q_phase(self, batch: Batch, draws: dict[str, Draw]) -> tuple[dict[str, Tensor], Tensor | None]:
        """One step towards the Bellman target."""
        loss, q, priority = self.q_loss(batch, draws)
        norm = self.optimizer.step(loss)
        return {"loss/q": loss.detach(), "q/mean": q.detach().mean(), "loss/grad_norm": norm}, priority

    def q_loss(self, batch: Batch, draws: dict[str, Draw]) -> tuple[Tensor, Tensor, Tensor | None]:
        """The loss, Q(s, a) [B], and the priorities [B] of a weighted batch."""
        target = self.bellman_target(batch, draws)
        q = value_taken(self.head(self.q, batch.obs, draws["online"]), batch.action)
        return dqn_loss(q, target, batch.weight), q, td_priority(q, target, batch.weight)

    @torch.no_grad()
    def bellman_target(self, batch: Batch, draws: dict[str, Draw]) -> Tensor:
        """y [B], by the target network."""
        following = batch.next_obs
        online_q = self.masked(self.head(self.q, following, draws["choice"]), following) if self.double else None
        target_q = self.masked(self.head(self.target_q, following, draws["target"]), following)
        return dqn_target(batch.reward, batch.discount, target_q, online_q)
