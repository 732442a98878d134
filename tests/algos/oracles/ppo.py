"""PPO as one would write it for a single experiment: torch.distributions, torch.optim, loops over time and rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Independent, Normal


def network(inputs: int, outputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs)
    )


class Choices:
    """Several categorical choices side by side, from logits one after the other."""

    def __init__(self, logits: Tensor, sizes: list[int]) -> None:
        self.parts = [Categorical(logits=part) for part in logits.split(sizes, dim=1)]

    def log_prob(self, action: Tensor) -> Tensor:
        return sum(part.log_prob(action[:, k]) for k, part in enumerate(self.parts))

    def entropy(self) -> Tensor:
        return sum(part.entropy() for part in self.parts)


class Bits:
    """Independent bits."""

    def __init__(self, logits: Tensor) -> None:
        self.bits = Bernoulli(logits=logits)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.bits.log_prob(action.float()).sum(dim=1)

    def entropy(self) -> Tensor:
        return self.bits.entropy().sum(dim=1)


def distribution_of(kind: str, sizes: list[int], log_std: Tensor | None) -> Callable[[Tensor], Any]:
    """From the network's outputs to a policy."""
    return {
        "discrete": lambda out: Categorical(logits=out),
        "multi_discrete": lambda out: Choices(out, sizes),
        "multi_binary": lambda out: Bits(out),
        "continuous": lambda out: Independent(Normal(out, log_std.exp()), 1),
    }[kind]


class PPO:
    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        distribution: Callable[[Tensor], Any],
        log_std: Tensor | None,
        *,
        lr: float,
        gamma: float,
        gae_lambda: float,
        clip: float,
        value_clip: float | None,
        value_coef: float,
        entropy_coef: float,
        normalize: bool,
        max_grad_norm: float,
    ) -> None:
        self.actor, self.critic, self.distribution = actor, critic, distribution
        self.gamma, self.gae_lambda, self.clip, self.value_clip = gamma, gae_lambda, clip, value_clip
        self.value_coef, self.entropy_coef = value_coef, entropy_coef
        self.normalize, self.max_grad_norm = normalize, max_grad_norm
        self.parameters = [*actor.parameters(), *critic.parameters(), *([] if log_std is None else [log_std])]
        self.optimizer = torch.optim.Adam(self.parameters, lr=lr, eps=1e-5)

    def advantages(
        self, obs: Tensor, reward: Tensor, next_obs: Tensor, terminated: Tensor, truncated: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A and V of every step [T, N]; ``next_obs`` is where the step really led, also when the episode ended."""
        T, N = reward.shape
        with torch.no_grad():
            value = self.critic(obs).squeeze(-1)
            next_value = self.critic(next_obs).squeeze(-1)
        advantage = torch.zeros(T, N)
        for n in range(N):
            later = 0.0
            for t in reversed(range(T)):
                if terminated[t, n]:  # nothing comes after
                    later = reward[t, n] - value[t, n]
                elif truncated[t, n]:  # something would have come, but was not seen
                    later = reward[t, n] + self.gamma * next_value[t, n] - value[t, n]
                else:
                    delta = reward[t, n] + self.gamma * next_value[t, n] - value[t, n]
                    later = delta + self.gamma * self.gae_lambda * later
                advantage[t, n] = later
        return advantage, value

    def update(
        self,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        minibatches: list[Tensor],
    ) -> list[dict[str, float]]:
        advantage, value = self.advantages(obs, reward, next_obs, terminated, truncated)
        returns = (advantage + value).reshape(-1)
        advantage, old_value = advantage.reshape(-1), value.reshape(-1)
        obs, action = obs.flatten(0, 1), action.flatten(0, 1)
        with torch.no_grad():
            old_log_prob = self.distribution(self.actor(obs)).log_prob(action)
        reports = []
        for rows in minibatches:
            policy = self.distribution(self.actor(obs[rows]))
            A = advantage[rows]
            if self.normalize:
                A = (A - A.mean()) / (A.std() + 1e-8)
            ratio = torch.exp(policy.log_prob(action[rows]) - old_log_prob[rows])
            gain = torch.min(A * ratio, A * torch.clip(ratio, 1 - self.clip, 1 + self.clip)).mean()
            V = self.critic(obs[rows]).squeeze(-1)
            error = (V - returns[rows]) ** 2
            if self.value_clip is not None:
                near = old_value[rows] + torch.clip(V - old_value[rows], -self.value_clip, self.value_clip)
                error = torch.max(error, (near - returns[rows]) ** 2)
            entropy = policy.entropy().mean()
            loss = -gain + self.value_coef * error.mean() - self.entropy_coef * entropy
            self.optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
            self.optimizer.step()
            reports.append(
                {
                    "loss/policy": -gain.item(),
                    "loss/value": error.mean().item(),
                    "policy/entropy": entropy.item(),
                    "policy/clip_fraction": ((ratio - 1).abs() > self.clip).float().mean().item(),
                    "loss/grad_norm": norm.item(),
                }
            )
        return reports
