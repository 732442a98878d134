"""Randomised ensembled double Q-learning."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlexp.algos.sac import SAC
from rlexp.config.component import component
from rlexp.config.fields import Count, Size
from rlexp.errors import ConfigError
from rlexp.types import Batch


def redq_target_value(q: Tensor, subset: Tensor) -> Tensor:
    """min over a random subset of the critics: q [n, B], subset [m] -> [B]."""
    return q[subset].amin(0)


@component("algo", "redq")
@dataclass(eq=False, kw_only=True)
class REDQ(SAC):
    """SAC with many critics and many updates for each step (Chen et al., 2021, arXiv:2101.05982).

    Critic:  Q_i(s, a) → r + γ (min_{i∈M} Q̄_i(s′, a′) − α log π(a′|s′)),  M random of size ``n_target_critics``.
    Actor:   minimise  α log π(a|s) − mean_i Q_i(s, a),  once for every ``actor_interval`` updates of the critics.
    The ensemble is what makes 20 updates per step safe (``trainer.gradient_updates_per_step``). For when a step costs
    far more than twenty updates.
    """

    n_critics: Size = 10  # ensemble, of which a random subset gives the target
    n_target_critics: Size = 2  # size of the random subset whose minimum is the target
    mean_actor: bool = True  # the actor follows the mean of the critics; false: their minimum, as in SAC
    actor_interval: Count = 20  # updates of the critics for one of the actor and the temperature

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_target_critics > self.n_critics:
            raise ConfigError(
                f"n_target_critics={self.n_target_critics} must not be more than n_critics={self.n_critics}, "
                "of which it is a subset."
            )

    def randomness(self, batch: Batch) -> dict[str, Tensor]:
        """SAC's noise and the subset of critics."""
        subset = self.uniform(self.n_critics).argsort()[: self.n_target_critics]
        return super().randomness(batch) | {"subset": subset}

    def reduce_target(self, q: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """The minimum over the random subset."""
        return redq_target_value(q, noise["subset"])

    def reduce_actor(self, q: Tensor) -> Tensor:
        """The mean of all critics (or their minimum)."""
        return q.mean(0) if self.mean_actor else q.amin(0)
