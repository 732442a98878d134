"""CrossQ as one would write it for a single experiment: modules with training modes, separate critics, torch.optim."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.distributions.transforms import TanhTransform


class Renorm(nn.Module):
    """Batch renormalisation by ``self.training``, like torch's own BatchNorm."""

    def __init__(self, width: int, warmup: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("average", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))
        self.warmup, self.count = warmup, 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return (x - self.average) / torch.sqrt(self.spread + 1e-3) * self.scale + self.shift
        mean, var = x.mean(dim=0), x.var(dim=0, unbiased=False)
        x = (x - mean) / torch.sqrt(var + 1e-3)
        if self.count >= self.warmup:
            running = torch.sqrt(self.spread + 1e-3)
            x = x * torch.clip(torch.sqrt(var + 1e-3) / running, 1 / 3, 3).detach()
            x = x + torch.clip((mean - self.average) / running, -5, 5).detach()
        self.average = 0.99 * self.average + 0.01 * mean.detach()
        self.spread = 0.99 * self.spread + 0.01 * var.detach()
        self.count += 1
        return x * self.scale + self.shift


def network(inputs: int, outputs: int, width: int, warmup: int) -> nn.Sequential:
    layers: list[nn.Module] = [Renorm(inputs, warmup)]
    for into in (inputs, width):
        layers += [nn.Linear(into, width), nn.ReLU(), Renorm(width, warmup)]
    return nn.Sequential(*layers, nn.Linear(width, outputs)).eval()


class CrossQ:
    def __init__(
        self, actor: nn.Module, critics: list[nn.Module], *, lr: float, target_entropy: float, delay: int
    ) -> None:
        self.actor, self.critics, self.target_entropy, self.delay = actor, critics, target_entropy, delay
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=lr, betas=(0.5, 0.999))
        weights = [p for critic in critics for p in critic.parameters()]
        self.critic_optimizer = torch.optim.Adam(weights, lr=lr, betas=(0.5, 0.999))
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=lr)
        self.updates = 0

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(obs).chunk(2, dim=1)
        normal = Normal(mean, torch.clamp(log_std, -20, 2).exp())
        before = normal.loc + normal.scale * noise
        action = torch.tanh(before)
        log_prob = normal.log_prob(before) - TanhTransform().log_abs_det_jacobian(before, action)
        return action, log_prob.sum(dim=1)

    def update(
        self,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        terminated: Tensor,
        gamma: float,
        noise: Tensor,
        next_noise: Tensor,
    ) -> dict[str, float]:
        self.updates += 1
        alpha = self.log_alpha.exp().item()
        with torch.no_grad():
            next_action, next_log_prob = self.sample(next_obs, next_noise)
        pairs = torch.cat([torch.cat([obs, action], dim=1), torch.cat([next_obs, next_action], dim=1)])
        now, later = [], []
        for critic in self.critics:
            critic.train()
            q = critic(pairs).squeeze(1)
            critic.eval()
            now.append(q[: len(obs)])
            later.append(q[len(obs) :].detach())
        y = reward + gamma * (1 - terminated.float()) * (torch.min(*later) - alpha * next_log_prob)
        critic_loss = sum(nn.functional.mse_loss(q, y) for q in now)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        report = {"loss/critic": critic_loss.item(), "q/mean": sum(q.mean().item() for q in now) / len(now)}
        if self.updates % self.delay:
            return report

        self.actor.train()
        new_action, log_prob = self.sample(obs, noise)
        self.actor.eval()
        pair = torch.cat([obs, new_action], dim=1)
        q = torch.min(*[critic(pair).squeeze(1) for critic in self.critics])
        actor_loss = (alpha * log_prob - q).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()
        alpha_loss = -(self.log_alpha * (log_prob.detach() + self.target_entropy)).mean()
        self.alpha_optimizer.zero_grad()
        alpha_loss.backward()
        self.alpha_optimizer.step()
        return report | {
            "loss/actor": actor_loss.item(),
            "policy/entropy": -log_prob.mean().item(),
            "policy/alpha": alpha,
        }
