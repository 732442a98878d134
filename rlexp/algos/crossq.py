"""CrossQ."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from rlexp.algos.losses import td_priority
from rlexp.algos.sac import SAC, sac_critic_loss
from rlexp.compiling import phase
from rlexp.config.component import component
from rlexp.config.fields import Count, Fraction, Positive, Static
from rlexp.models import NetDefaults, Norm
from rlexp.tree import tree_map
from rlexp.types import Batch, Obs


def crossq_joint(
    critic: nn.Module, obs: Obs, action: Tensor, next_obs: Obs, next_action: Tensor
) -> tuple[Tensor, Tensor]:
    """Q_i(s, a) and Q_i(s′, a′), each [n, B], of one training pass: both are normalised by the statistics of both."""
    both = tree_map(lambda now, later: torch.cat((now, later)), obs, next_obs)
    q = critic(both, torch.cat((action, next_action)))[..., 0]  # [n, 2B]
    taken, following = q.chunk(2, -1)
    return taken, following


@component("algo", "crossq")
@dataclass(eq=False, kw_only=True)
class CrossQ(SAC):
    """SAC without target networks, by batch normalisation (Bhatt et al., 2024, arXiv:1902.05605).

    Q_i(s, a) → r + γ (min_i Q_i(s′, a′) − α log π(a′|s′)),  a′ ~ π(·|s′),  where Q(s, a) and Q(s′, a′) come from one
    pass through wide critics with BatchRenorm, and the second is a constant to the gradient. Wherever a network is not
    itself being trained (a′, Q in the actor's loss, acting), it uses its running averages.
    As few steps as REDQ or DroQ with one update for each.
    """

    actor_network: ClassVar[NetDefaults] = NetDefaults(norm=Norm.batch_renorm, renorm_warmup=100_000)
    critic_network: ClassVar[NetDefaults] = replace(actor_network, hidden=(2048, 2048))

    actor_learning_rate: Positive = 1e-3  # step size of the policy
    critic_learning_rate: Positive = 1e-3  # step size of the critics
    alpha_learning_rate: Positive = 1e-3  # step size of the temperature
    actor_interval: Count = 3  # updates of the critics for one of the actor and the temperature
    adam_beta1: Annotated[Fraction, Static()] = 0.5  # memory of the gradients of actor and critics
    tau: float = field(init=False, default=1.0)  # there are no targets

    def build_target(self) -> None:
        """None."""

    def adam_betas(self) -> tuple[float, float]:
        """Less momentum than SAC's, as nothing slows the targets down."""
        return self.adam_beta1, 0.999

    @phase
    def critic_phase(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
        """One step of the critics towards the soft Bellman target of the same pass."""
        with torch.no_grad():
            next_action, log_prob = self.policy(batch.next_obs).sample_with_log_prob(noise["next_action"])
        q, next_q = crossq_joint(self.critic, batch.obs, batch.action, batch.next_obs, next_action)
        next_value = self.reduce_target(next_q.detach(), noise) - self.log_alpha.detach().exp() * log_prob
        loss = sac_critic_loss(q, batch.reward, batch.discount, next_value, batch.weight)
        self.critic_optimizer.step(loss)
        priority = td_priority(q, batch.reward + batch.discount * next_value, batch.weight)
        return {"loss/critic": loss.detach(), "q/mean": q.detach().mean()}, priority
