"""DQN as one would write it for a single experiment: torch's own layers and optimizer, no framework."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


def q_network(obs_dim: int, actions: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(obs_dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, actions)
    )


class DQN:
    def __init__(self, q: nn.Module, *, lr: float, double: bool, sync_every: int, tau: float, clip: float) -> None:
        self.q, self.target = q, copy.deepcopy(q)
        self.double, self.sync_every, self.tau, self.clip = double, sync_every, tau, clip
        self.optimizer = torch.optim.Adam(q.parameters(), lr=lr)
        self.steps = 0

    def update(
        self, obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, terminated: Tensor, gamma: float
    ) -> dict[str, float]:
        with torch.no_grad():
            next_values = self.target(next_obs)
            chosen = (self.q(next_obs) if self.double else next_values).argmax(dim=1)
            bootstrap = next_values[torch.arange(len(chosen)), chosen]
            y = reward + gamma * bootstrap * (1 - terminated.float())
        q = self.q(obs)[torch.arange(len(action)), action]
        loss = nn.HuberLoss(delta=1.0)(q, y)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.q.parameters(), self.clip)
        self.optimizer.step()
        self.steps += 1
        if self.steps % self.sync_every == 0:
            for slow, fast in zip(self.target.parameters(), self.q.parameters()):
                slow.data = self.tau * fast.data + (1 - self.tau) * slow.data
        return {"loss/q": loss.item(), "q/mean": q.mean().item(), "loss/grad_norm": norm.item()}
