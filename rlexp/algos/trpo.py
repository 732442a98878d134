"""Trust-region policy optimisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import grad

from rlexp.algos.actor_critic import ActorCritic, explained_variance
from rlexp.algos.losses import mse
from rlexp.compiling import phase
from rlexp.config.component import component
from rlexp.config.fields import Count, Fraction, NonNegative, Positive
from rlexp.envs.spec import EnvSpec
from rlexp.models import Model
from rlexp.models.regularization import Dropout
from rlexp.optim import Adam
from rlexp.tree import tree_map
from rlexp.types import Obs, Rollout, Update


def trpo_loss(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor) -> Tensor:
    """The surrogate −E[ρ A] with ρ = π/π_old, to be minimised within the trust region; all inputs [B]."""
    return -((log_prob - old_log_prob).exp() * advantage).mean()


def conjugate_gradient(product: Callable[[Tensor], Tensor], b: Tensor, iterations: int) -> Tensor:
    """x with A x = b for the symmetric positive A that ``product`` multiplies by; stands still once it has it."""
    x, residual, direction = torch.zeros_like(b), b, b
    squared = b.dot(b)
    enough = 1e-12 * squared  # a relative residual of 1e-6, as far as float32 goes
    for _ in range(iterations):
        image = product(direction)
        step = torch.where(squared > enough, squared / direction.dot(image), 0.0)
        x = x + step * direction
        residual = residual - step * image
        before, squared = squared, residual.dot(residual)
        direction = residual + torch.where(squared > enough, squared / before, 0.0) * direction
    return x


@component("algo", "trpo")
@dataclass(eq=False, kw_only=True)
class TRPO(ActorCritic):
    """Trust-region policy optimisation (Schulman et al., 2015, arXiv:1502.05477) with GAE.

    Maximise  E[ρ A]  subject to  E[KL(π_old ‖ π)] ≤ δ,  ρ = π(a|s) / π_old(a|s):  a natural-gradient step
    x = F⁻¹ g  of length √(2δ / xᵀF x), taken back until surrogate and constraint agree with it.
    Small, monotone steps without a learning rate of the policy; for every kind of action space.
    """

    tells_dropped: ClassVar[bool] = True

    target_kl: Positive = 0.01  # δ: how far the policy may move in one rollout
    cg_iterations: Count = 15  # of the conjugate gradient that solves F x = g
    cg_damping: NonNegative = 0.1  # added to the diagonal of F
    line_search_steps: Count = 10  # step lengths that are tried
    line_search_shrink: Fraction = 0.8  # each is this share of the one before
    normalize_advantage: bool = True  # zero mean and unit deviation within a rollout
    learning_rate: Positive = 1e-3  # step size of the value function
    value_epochs: Count = 10  # passes of the value function over each rollout
    minibatch_size: Count = 128  # transitions in a gradient step of the value function
    max_grad_norm: Positive | None = None  # gradients of the value function are scaled down to this norm; null: never

    def build(self, spec: EnvSpec, model: Model) -> None:
        """Separate actor and critic; only the critic has an optimizer."""
        self.build_networks(spec, model)
        self.optimizer = Adam(self.critic.named_parameters(), self.learning_rate, max_grad_norm=self.max_grad_norm)

    def update(self, batch: Rollout) -> Update:
        """One step of the policy, then epochs of the value function."""
        advantage, returns = self.advantages(batch)
        if self.normalize_advantage and advantage.numel() > 1:  # a single one has no deviation
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        obs = tree_map(lambda leaf: leaf.flatten(0, 1), batch.obs)
        action, advantage = batch.action.flatten(0, 1), advantage.flatten()
        metrics = self.improve_policy(obs, action, advantage, self.dropped_in(batch))
        self.updates += 1
        targets, losses = returns.flatten(), []
        for rows in self.shuffled(len(targets), min(self.minibatch_size, len(targets)), self.value_epochs):
            losses.append(self.value_phase(obs, targets, rows))
            self.updates += 1
        metrics["loss/value"] = torch.stack(losses).mean()
        return Update(metrics | {"value/explained_variance": explained_variance(batch.value, returns)})

    def updates_per_rollout(self, steps: int, num_envs: int) -> int:
        """The policy's step and the minibatches of the value function."""
        count = steps * num_envs
        return 1 + self.value_epochs * (count // min(self.minibatch_size, count))

    @phase
    def value_phase(self, obs: Obs, returns: Tensor, rows: Tensor) -> Tensor:
        """One gradient step of V on some rows of the rollout; gives the loss."""
        loss = mse(self.value(tree_map(lambda leaf: leaf[rows], obs)), returns[rows])
        self.optimizer.step(loss)
        return loss.detach()

    # ---- the policy's step, on the whole rollout; not a phase, because F keeps one autograd graph for all products

    def improve_policy(self, obs: Obs, action: Tensor, advantage: Tensor, told: dict[str, Tensor]) -> dict[str, Tensor]:
        """Move π along the natural gradient as far as the trust region and the surrogate allow.

        π_old is asked first: the pass that the gradient is taken of moves the averages of BatchRenorm, and what that
        does to the policy counts against the trust region, too. Without a step they stay as they were.
        """
        parameters = self.policy_parameters()
        moving = [module for module in self.actor.modules() if not isinstance(module, Dropout)]
        averages = [(buffer, buffer.clone()) for module in moving for buffer in module.buffers(recurse=False)]
        with torch.no_grad():  # log_std is going to change in place: π_old needs one of its own
            old = self.head.dist(self.outputs(obs, **told), None if self.log_std is None else self.log_std.clone())
        outputs = self.outputs(obs, **told)
        policy = self.head.dist(outputs, self.log_std)
        log_prob = policy.log_prob(action)
        loss = trpo_loss(log_prob, log_prob.detach(), advantage)
        slope = flat(grad(loss, parameters, retain_graph=True))
        fisher = self.fisher_product(outputs)
        direction = conjugate_gradient(fisher, -slope, self.cg_iterations)
        length = (2 * self.target_kl / direction.dot(fisher(direction)).clamp_min(1e-12)).sqrt()
        step = (length * direction).nan_to_num()  # of a degenerate F nothing is taken
        with torch.no_grad():
            entropy = policy.entropy().mean()
            found = self.line_search(parameters, step, old, obs, action, advantage, told)
            for buffer, before in averages:
                buffer.copy_(torch.where(found["policy/step"] > 0, buffer, before))
            return found | {"policy/entropy": entropy}

    def policy_parameters(self) -> list[Tensor]:
        """Whatever π depends on."""
        parameters: list[Tensor] = list(self.actor.parameters())
        return parameters if self.log_std is None else [*parameters, self.log_std]

    def fisher_product(self, outputs: Tensor) -> Callable[[Tensor], Tensor]:
        """v ↦ (F + damping) v, where F is the Hessian of E[KL(π_old ‖ π)] at π = π_old.

        There KL is flat, so what the network's own second derivatives would add is zero, and F = Jᵀ H J with the
        derivative J of the network's outputs and the curvature H of KL in them: a quarter of the time of
        differentiating KL twice through the network.
        """
        weights = list(self.actor.parameters())
        spread = [] if self.log_std is None else [self.log_std]  # enters KL directly
        heads = [outputs.detach().requires_grad_(), *spread]
        old = self.head.dist(outputs.detach(), None if self.log_std is None else self.log_std.detach())
        kl = old.kl(self.head.dist(heads[0], self.log_std)).mean()
        kl_slope = grad(kl, heads, create_graph=True)
        probe = torch.zeros_like(outputs, requires_grad=True)
        pulled = grad(outputs, weights, probe, create_graph=True)  # Jᵀ probe: linear, so that its derivative is J

        def product(v: Tensor) -> Tensor:
            parts = unflat(v, [*weights, *spread])
            moved = grad(pulled, probe, parts[: len(weights)], retain_graph=True)
            curved = grad(kl_slope, heads, [*moved, *parts[len(weights) :]], retain_graph=True)
            back = grad(outputs, weights, curved[0], retain_graph=True)
            return flat([*back, *curved[1:]]) + self.cg_damping * v

        return product

    def line_search(
        self,
        parameters: list[Tensor],
        step: Tensor,
        old: Any,
        obs: Obs,
        action: Tensor,
        advantage: Tensor,
        told: dict[str, Tensor],
    ) -> dict[str, Tensor]:
        """Take the longest of the step's fractions that keeps to δ and improves the surrogate, or none.

        All are tried, so that nothing has to be read back from the device: a forward pass each.
        """
        start, moves = [parameter.clone() for parameter in parameters], unflat(step, parameters)
        old_log_prob = old.log_prob(action)
        before = trpo_loss(old_log_prob, old_log_prob, advantage)
        taken, kl, loss = torch.zeros_like(before), torch.zeros_like(before), before
        for k in range(self.line_search_steps):
            fraction = torch.ones_like(before) * self.line_search_shrink**k
            move_to(parameters, start, moves, fraction)
            policy = self.policy(obs, **told)
            new_kl, new_loss = old.kl(policy).mean(), trpo_loss(policy.log_prob(action), old_log_prob, advantage)
            good = (taken == 0) & (new_kl <= self.target_kl) & (new_loss < before)
            taken, kl = torch.where(good, fraction, taken), torch.where(good, new_kl, kl)
            loss = torch.where(good, new_loss, loss)
        move_to(parameters, start, moves, taken)
        return {"loss/policy": loss, "policy/kl": kl, "policy/step": taken}


def move_to(parameters: list[Tensor], start: list[Tensor], moves: list[Tensor], fraction: Tensor) -> None:
    """θ ← θ_start + fraction · move, in place."""
    for parameter, begin, move in zip(parameters, start, moves):
        parameter.copy_(torch.addcmul(begin, move, fraction))


def flat(tensors: Any) -> Tensor:
    """Tensors as one vector."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unflat(vector: Tensor, like: list[Tensor]) -> list[Tensor]:
    """A vector cut into tensors of the shapes of ``like``."""
    parts = vector.split([tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like)]
