"""A2C as one would write it for a single experiment: n-step returns by a loop, torch.optim's RMSprop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class A2C:
    def __init__(
        self, actor: nn.Module, critic: nn.Module, distribution: Callable[[Tensor], Any], log_std: Tensor | None,
        *, lr: float, gamma: float, value_coef: float, entropy_coef: float, max_grad_norm: float,
    ) -> None:  # fmt: skip
        self.actor, self.critic, self.distribution, self.gamma = actor, critic, distribution, gamma
        self.value_coef, self.entropy_coef, self.max_grad_norm = value_coef, entropy_coef, max_grad_norm
        self.parameters = [*actor.parameters(), *critic.parameters(), *([] if log_std is None else [log_std])]
        self.optimizer = torch.optim.RMSprop(self.parameters, lr=lr, alpha=0.99, eps=1e-5)

    def returns(self, reward: Tensor, next_obs: Tensor, terminated: Tensor, truncated: Tensor) -> Tensor:
        """r + γ r′ + … up to the end of the episode or rollout, then V of the last true observation."""
        T, N = reward.shape
        found = torch.zeros(T, N)
        for n in range(N):
            for t in range(T):
                total, factor, last = 0.0, 1.0, t
                for k in range(t, T):
                    total, factor, last = total + factor * reward[k, n].item(), factor * self.gamma, k
                    if terminated[k, n] or truncated[k, n]:
                        break
                if not terminated[last, n]:
                    total += factor * self.critic(next_obs[last, n]).item()
                found[t, n] = total
        return found

    def update(
        self, obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, terminated: Tensor, truncated: Tensor
    ) -> dict[str, float]:
        returns = self.returns(reward, next_obs, terminated, truncated).flatten()
        obs, action = obs.flatten(0, 1), action.flatten(0, 1)
        value = self.critic(obs)[:, 0]
        advantage = (returns - value).detach()
        policy = self.distribution(self.actor(obs))
        gain = (advantage * policy.log_prob(action)).mean()
        error = ((returns - value) ** 2).mean()
        entropy = policy.entropy().mean()
        self.optimizer.zero_grad()
        (-gain + self.value_coef * error - self.entropy_coef * entropy).backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        self.optimizer.step()
        return {
            "loss/policy": -gain.item(),
            "loss/value": error.item(),
            "policy/entropy": entropy.item(),
            "loss/grad_norm": norm.item(),
        }
