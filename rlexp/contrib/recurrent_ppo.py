"""PPO whose policy and value function remember."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rlexp.algos.losses import weighted_mean
from rlexp.algos.ppo import PPO, PPOLoss, ppo_loss
from rlexp.config.component import component
from rlexp.config.fields import Count, Size
from rlexp.envs.spec import EnvSpec
from rlexp.models import Activation, Model, NetDefaults, Recurrence, Recurrent
from rlexp.models.regularization import normalizes_by_batch
from rlexp.tree import tree_first, tree_map
from rlexp.types import Act, Obs, Rollout


def recurrent_ppo_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    value: Tensor,
    old_value: Tensor,
    returns: Tensor,
    mask: Tensor,
    clip_range: Any,
    value_clip: Any = None,
) -> PPOLoss:
    """``ppo_loss`` of sequences [B, L], every mean taken over the steps where ``mask`` is 1, not over the padding."""
    weight = mask / mask.mean()
    return ppo_loss(log_prob, old_log_prob, advantage, value, old_value, returns, clip_range, value_clip, weight)


def masked_normalize(value: Tensor, mask: Tensor) -> Tensor:
    """Zero mean and unit deviation over the steps where ``mask`` is 1."""
    count = mask.sum()
    centred = value - (value * mask).sum() / count
    variance = (centred.square() * mask).sum() / (count - 1).clamp_min(1)
    return centred / (variance.sqrt() + 1e-8)


def cut_sequences(column: Tensor, length: int) -> Tensor:
    """A column [T, N, …] of a rollout as sequences [⌈T / length⌉ · N, length, …], the last of each padded by zeros."""
    missing = -len(column) % length
    if missing:
        column = torch.cat((column, column.new_zeros(missing, *column.shape[1:])))
    return column.unflatten(0, (-1, length)).transpose(1, 2).flatten(0, 1)


@component("algo", "recurrent_ppo")
@dataclass(eq=False, kw_only=True)
class RecurrentPPO(PPO):
    """PPO with recurrent networks, for environments that do not show everything in one observation.

    PPO's objective with π(a|h), V(h′) where h and h′, one recurrence each, sum up the episode so far. Gradients flow
    back through sequences that begin with the state that was remembered there.
    """

    network: ClassVar[NetDefaults] = NetDefaults(hidden=(64,), activation=Activation.tanh, init="orthogonal")

    can_share: ClassVar[bool] = False

    recurrence: Recurrence = Recurrence.lstm  # lstm or gru
    recurrent_size: Size = 64  # units of each recurrence, between the model's layers and the outputs
    sequence_length: Size = 32  # steps that gradients flow back through; rollouts are cut into such sequences
    minibatch_size: Count = 256  # transitions in a gradient step, rounded down to whole sequences

    def build(self, spec: EnvSpec, model: Model) -> None:
        """PPO's, and the size of what is remembered: the actor's state and the critic's, side by side."""
        super().build(spec, model)
        self.carry_size = self.actor.carry_size + self.critic.carry_size
        self.by_batch = [normalizes_by_batch(net) for net in (self.actor, self.critic)]

    def build_network(self, spec: EnvSpec, model: Model, defaults: NetDefaults, out: int, out_gain: float) -> nn.Module:
        """The model's features, a recurrence and a linear head."""
        features = model.build(spec, None, defaults=defaults)
        return Recurrent(features, self.recurrence, self.recurrent_size, out, init=defaults.init, out_gain=out_gain)

    def states(self, obs: Obs, carry: Tensor | None) -> tuple[Tensor, Tensor]:
        """The actor's and the critic's part of the carry; None is the beginning of all episodes."""
        if carry is None:
            carry = torch.zeros(len(tree_first(obs)), self.carry_size, device=self.device)
        actor_state, critic_state = carry.chunk(2, -1)
        return actor_state, critic_state

    def policy(self, obs: Obs, carry: Tensor | None = None, **told: Tensor) -> Any:
        """π(·|h), h being what ``carry`` remembers and the observation."""
        outputs, _ = self.actor.step(obs, self.states(obs, carry)[0], **told)
        return self.head.dist(self.masked(outputs, obs), self.log_std)

    def value(self, obs: Obs, carry: Tensor | None = None) -> Tensor:
        """V(h), [B]."""
        return self.critic.step(obs, self.states(obs, carry)[1])[0].squeeze(-1)

    def act(self, obs: Obs, carry: Any, *, explore: bool, generator: torch.Generator) -> Act:
        """PPO's, with the state that comes of it; what was remembered before is stored with the transition."""
        actor_state, critic_state = self.states(obs, carry)
        told = self.dropping(len(actor_state), generator) if explore else {}
        outputs, new_actor_state = self.actor.step(obs, actor_state, **told)
        policy = self.head.dist(self.masked(outputs, obs), self.log_std)
        if not explore:  # nobody asks for values
            return Act(policy.mode(), torch.cat((new_actor_state, critic_state), -1))
        value, new_critic_state = self.critic.step(obs, critic_state)
        action = policy.sample(self.head.draw_noise(len(value), generator=generator, device=self.device))
        extras = {
            "log_prob": policy.log_prob(action),
            "value": value.squeeze(-1),
            "carry": torch.cat((actor_state, critic_state), -1),
            **told,
        }
        return Act(action, torch.cat((new_actor_state, new_critic_state), -1), extras)

    def rows(self, batch: Rollout, advantage: Tensor, returns: Tensor) -> tuple[Obs, dict[str, Tensor]]:
        """The rollout [T, N, …] as what minibatches are drawn from: sequences [S, L, …]."""
        length = min(self.sequence_length, len(batch.reward))
        columns = {
            "action": batch.action,
            "log_prob": batch.extras["log_prob"],
            "advantage": advantage,
            "value": batch.value,
            "returns": returns,
            "mask": torch.ones_like(returns),
            # An episode begins after one has ended; at the first step the remembered state already says so.
            "starts": torch.cat((torch.zeros_like(batch.done[:1]), batch.done[:-1])),
        }
        if self.drops:
            columns["dropped"] = batch.extras["dropped"]
        data = {name: cut_sequences(column, length) for name, column in columns.items()}
        data["carry"] = batch.extras["carry"][::length].flatten(0, 1)
        return tree_map(lambda leaf: cut_sequences(leaf, length), batch.obs), data

    def sequences(self, steps: int, num_envs: int) -> tuple[int, int]:
        """How many sequences a rollout has, and how many of them make a minibatch."""
        length = min(self.sequence_length, steps)
        count = -(-steps // length) * num_envs
        return count, min(max(1, self.minibatch_size // length), count)

    def minibatches(self, steps: int, num_envs: int) -> list[Tensor]:
        """The sequences of every minibatch of every epoch."""
        return self.shuffled(*self.sequences(steps, num_envs), self.epochs)

    def updates_per_rollout(self, steps: int, num_envs: int) -> int:
        """Minibatches of all epochs."""
        count, size = self.sequences(steps, num_envs)
        return self.epochs * (count // size)

    def losses(self, obs: Obs, part: dict[str, Tensor]) -> tuple[PPOLoss, Tensor]:
        """The objective's parts and the policy's entropy on a minibatch of sequences."""
        mask, advantage = part["mask"], part["advantage"]
        if self.normalize_advantage:
            advantage = masked_normalize(advantage, mask)
        time_major = tree_map(lambda leaf: leaf.transpose(0, 1), obs)
        actor_state, critic_state = part["carry"].chunk(2, -1)
        dropped = {"dropped": part["dropped"].T} if self.drops else {}
        counted = [{"counted": mask.T} if by_batch else {} for by_batch in self.by_batch]  # padding is not
        outputs, _ = self.actor(time_major, actor_state, part["starts"].T, **dropped, **counted[0])
        value, _ = self.critic(time_major, critic_state, part["starts"].T, **counted[1])
        policy = self.head.dist(self.masked(outputs.transpose(0, 1), obs), self.log_std)
        log_prob = policy.log_prob(part["action"])
        # Where there is nothing the ratio is 1: exp of anything else might overflow, and no mask hides ∞ · 0.
        old_log_prob = torch.where(mask.bool(), part["log_prob"], log_prob.detach())
        loss = recurrent_ppo_loss(
            log_prob,
            old_log_prob,
            advantage,
            value.squeeze(-1).T,
            part["value"],
            part["returns"],
            mask,
            self.clip_range,
            self.value_clip,
        )
        return loss, weighted_mean(policy.entropy(), mask / mask.mean())
