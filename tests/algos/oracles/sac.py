"""SAC as one would write it for a single experiment: two separate critics, torch.distributions, torch.optim."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.distributions.transforms import TanhTransform


def network(inputs: int, outputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
    )


class SAC:
    def __init__(
        self,
        actor: nn.Module,
        critics: list[nn.Module],
        *,
        lr: float,
        tau: float,
        target_entropy: float,
        initial_alpha: float | None,  # None with fixed_alpha
        fixed_alpha: float | None = None,
    ) -> None:
        self.actor, self.critics = actor, critics
        self.targets = [copy.deepcopy(critic) for critic in critics]
        self.tau, self.target_entropy, self.fixed_alpha = tau, target_entropy, fixed_alpha
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=lr)
        self.critic_optimizer = torch.optim.Adam([p for critic in critics for p in critic.parameters()], lr=lr)
        if fixed_alpha is None:
            assert initial_alpha is not None
            self.log_alpha = torch.log(torch.tensor([initial_alpha])).requires_grad_()
            self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=lr)

    def alpha(self) -> float:
        return self.fixed_alpha if self.fixed_alpha is not None else self.log_alpha.exp().item()

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(obs).chunk(2, dim=1)
        normal = Normal(mean, torch.clamp(log_std, -20, 2).exp())
        before = normal.loc + normal.scale * noise
        action = torch.tanh(before)
        # p(a) = p(u) / |da/du|
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
        with torch.no_grad():
            next_action, next_log_prob = self.sample(next_obs, next_noise)
            pair = torch.cat([next_obs, next_action], dim=1)
            next_q = torch.min(*[target(pair).squeeze(1) for target in self.targets])
            y = reward + gamma * (1 - terminated.float()) * (next_q - self.alpha() * next_log_prob)
        pair = torch.cat([obs, action], dim=1)
        values = [critic(pair).squeeze(1) for critic in self.critics]
        critic_loss = sum(nn.functional.mse_loss(q, y) for q in values)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        for target, critic in zip(self.targets, self.critics):
            for slow, fast in zip(target.parameters(), critic.parameters()):
                slow.data = (1 - self.tau) * slow.data + self.tau * fast.data

        alpha = self.alpha()
        new_action, log_prob = self.sample(obs, noise)
        pair = torch.cat([obs, new_action], dim=1)
        q = torch.min(*[critic(pair).squeeze(1) for critic in self.critics])
        actor_loss = (alpha * log_prob - q).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()

        if self.fixed_alpha is None:
            alpha_loss = -(self.log_alpha * (log_prob.detach() + self.target_entropy)).mean()
            self.alpha_optimizer.zero_grad()
            alpha_loss.backward()
            self.alpha_optimizer.step()
        return {
            "loss/critic": critic_loss.item(),
            "q/mean": sum(value.mean().item() for value in values) / len(values),
            "loss/actor": actor_loss.item(),
            "policy/entropy": -log_prob.mean().item(),
            "policy/alpha": alpha,
        }
