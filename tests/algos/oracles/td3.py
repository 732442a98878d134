"""DDPG and TD3 as one would write them for a single experiment: separate critics, torch.optim."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from tests.algos.oracles.sac import network as network


class TD3:
    """With one critic, no smoothing noise and no delay it is DDPG."""

    def __init__(
        self,
        actor: nn.Module,
        critics: list[nn.Module],
        *,
        actor_lr: float,
        critic_lr: float,
        tau: float,
        delay: int = 1,
        noise_scale: float = 0.0,
        noise_clip: float = 0.0,
        max_norm: float | None = None,
    ) -> None:
        self.actor, self.critics = actor, critics
        self.target_actor, self.target_critics = copy.deepcopy(actor), copy.deepcopy(critics)
        self.tau, self.delay, self.max_norm = tau, delay, max_norm
        self.noise_scale, self.noise_clip = noise_scale, noise_clip
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=actor_lr)
        self.critic_optimizer = torch.optim.Adam([p for critic in critics for p in critic.parameters()], lr=critic_lr)
        self.count = 0

    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], self.max_norm)
        optimizer.step()

    def update(
        self,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        terminated: Tensor,
        gamma: float,
        noise: Tensor,
    ) -> dict[str, float]:
        self.count += 1
        with torch.no_grad():
            smoothing = torch.clip(noise * self.noise_scale, -self.noise_clip, self.noise_clip)
            next_action = torch.clip(torch.tanh(self.target_actor(next_obs)) + smoothing, -1, 1)
            pair = torch.cat([next_obs, next_action], dim=1)
            next_q = torch.stack([critic(pair).squeeze(1) for critic in self.target_critics]).min(dim=0).values
            y = reward + gamma * (1 - terminated.float()) * next_q
        pair = torch.cat([obs, action], dim=1)
        values = [critic(pair).squeeze(1) for critic in self.critics]
        critic_loss = sum(nn.functional.mse_loss(q, y) for q in values)
        self.step(self.critic_optimizer, critic_loss)
        report = {
            "loss/critic": critic_loss.item(),
            "q/mean": sum(value.mean().item() for value in values) / len(values),
        }
        if self.count % self.delay == 0:
            pair = torch.cat([obs, torch.tanh(self.actor(obs))], dim=1)
            actor_loss = -self.critics[0](pair).mean()
            self.step(self.actor_optimizer, actor_loss)
            pairs = zip([self.target_actor, *self.target_critics], [self.actor, *self.critics])
            for target, source in pairs:
                for slow, fast in zip(target.parameters(), source.parameters()):
                    slow.data = (1 - self.tau) * slow.data + self.tau * fast.data
            report["loss/actor"] = actor_loss.item()
        return report
