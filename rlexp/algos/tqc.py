"""Truncated quantile critics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor

from rlexp.algos.losses import quantile_huber, weighted_mean
from rlexp.algos.qrdqn import qrdqn_fractions
from rlexp.algos.sac import SAC
from rlexp.config.component import component
from rlexp.config.fields import Natural, Positive, Size, Static
from rlexp.errors import ConfigError
from rlexp.types import Batch, Obs


def tqc_truncated(quantiles: Tensor, drop: int) -> Tensor:
    """The quantiles of all critics as one sorted sample without its largest: [n, B, K] -> [B, n (K − drop)]."""
    n, _, k = quantiles.shape
    pooled = quantiles.transpose(0, 1).flatten(1)  # [B, n K]
    return pooled.sort(-1).values[:, : n * (k - drop)]


def tqc_loss(quantiles: Tensor, fraction: Tensor, target: Tensor, kappa: float | Tensor, weight: Any = None) -> Tensor:
    """Quantile regression of every critic onto one sample: θ [n, B, K] at τ [K], y [B, M]; mean over n, B, K and M.

    Onto the same targets the quantiles of all critics are n K quantiles of one, which is how they are computed.
    """
    n, _, k = quantiles.shape
    pooled = quantiles.transpose(0, 1).flatten(1)  # [B, n K]
    return weighted_mean(quantile_huber(pooled, fraction.repeat(n), target, kappa), weight) / (n * k)


@component("algo", "tqc")
@dataclass(eq=False, kw_only=True)
class TQC(SAC):
    """SAC whose critics learn quantiles of the return, the largest left out of targets (Kuznetsov et al., 2020,
    arXiv:2005.04269).

    Critic:  θ_ik(s, a), the quantile of the return at τ̂_k, by quantile regression onto
             r + γ (z_j − α log π(a′|s′)),  z the sorted quantiles of all target critics at (s′, a′) without the
             largest ``n_dropped`` for each critic.
    Actor:   minimise  α log π(a|s) − mean_ik θ_ik(s, a).
    Overestimation is kept down by degrees instead of by a minimum: for the highest returns on locomotion.
    """

    n_critics: Size = 5  # ensemble whose quantiles are pooled
    n_quantiles: Size = 25  # quantiles of each critic
    n_dropped: Annotated[Natural, Static()] = 2  # largest quantiles left out of the target, for each critic
    kappa: Positive = 1.0  # errors up to here count squared, larger ones linearly

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_dropped >= self.n_quantiles:
            raise ConfigError(
                f"n_dropped={self.n_dropped} must be less than n_quantiles={self.n_quantiles}, of which it is a part."
            )

    def critic_outputs(self) -> int:
        """Quantiles of the return."""
        return self.n_quantiles

    def next_value(self, next_obs: Obs, noise: dict[str, Tensor]) -> Tensor:
        """A sample of the soft return from the next state by the target critics, without its largest, [M, B]."""
        action, log_prob = self.policy(next_obs).sample_with_log_prob(noise["next_action"])
        kept = tqc_truncated(self.target_critic(next_obs, action), self.n_dropped)
        return kept.T - self.log_alpha.exp() * log_prob

    def critic_loss(
        self, batch: Batch, next_value: Tensor, noise: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Quantile regression onto all of that sample."""
        target = batch.reward + batch.discount * next_value  # [M, B]
        quantiles = self.critic(batch.obs, batch.action)  # [n, B, K]
        fraction = qrdqn_fractions(self.n_quantiles, self.device)
        return tqc_loss(quantiles, fraction, target.T.contiguous(), self.kappa, batch.weight), quantiles.mean(-1), {}

    def reduce_actor(self, q: Tensor) -> Tensor:
        """The mean of all critics."""
        return q.mean(0)
