"""TQC as its paper writes it: every pair of a quantile and a target, on top of the plain SAC."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.algos.oracles.sac import SAC


class TQC(SAC):
    def __init__(self, *args: object, drop: int, kappa: float = 1.0, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self.drop, self.kappa = drop, kappa

    def critic_loss(self, quantiles: list[Tensor], target: Tensor) -> Tensor:
        """Of each critic [B, K], towards the sorted targets [B, M]."""
        rows, k = quantiles[0].shape
        total = torch.zeros(())
        for theta in quantiles:
            for i in range(k):
                tau = (2 * i + 1) / (2 * k)
                error = target - theta[:, i : i + 1]
                huber = nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=self.kappa)
                total = total + (torch.abs(tau - (error.detach() < 0).float()) * huber / self.kappa).sum()
        return total / (rows * k * len(quantiles) * target.shape[1])

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
        alpha = self.alpha()
        with torch.no_grad():
            next_action, next_log_prob = self.sample(next_obs, next_noise)
            pair = torch.cat([next_obs, next_action], dim=1)
            everything = torch.cat([target(pair) for target in self.targets], dim=1)
            kept = everything.shape[1] - self.drop * len(self.targets)
            z = torch.sort(everything, dim=1).values[:, :kept]
            soft = z - alpha * next_log_prob[:, None]
            y = reward[:, None] + gamma * (1 - terminated.float())[:, None] * soft
        pair = torch.cat([obs, action], dim=1)
        quantiles = [critic(pair) for critic in self.critics]
        critic_loss = self.critic_loss(quantiles, y)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        for target, critic in zip(self.targets, self.critics):
            for slow, fast in zip(target.parameters(), critic.parameters()):
                slow.data = (1 - self.tau) * slow.data + self.tau * fast.data

        new_action, log_prob = self.sample(obs, noise)
        pair = torch.cat([obs, new_action], dim=1)
        q = torch.cat([critic(pair) for critic in self.critics], dim=1).mean(dim=1)
        actor_loss = (alpha * log_prob - q).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()
        alpha_loss = -(self.log_alpha * (log_prob.detach() + self.target_entropy)).mean()
        self.alpha_optimizer.zero_grad()
        alpha_loss.backward()
        self.alpha_optimizer.step()
        return {
            "loss/critic": critic_loss.item(),
            "q/mean": torch.cat(quantiles).mean().item(),
            "loss/actor": actor_loss.item(),
            "policy/alpha": alpha,
        }
