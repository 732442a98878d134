"""Reinforcement learning with prior data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rlexp.algos.base import MIXED
from rlexp.algos.sac import SAC
from rlexp.config.component import component
from rlexp.config.fields import Size
from rlexp.errors import ConfigError
from rlexp.models import NetDefaults, Norm
from rlexp.types import Batch


def rlpd_target_value(q: Tensor, subset: Tensor) -> Tensor:
    """min over a random subset of the critics: q [n, B], subset [m] -> [B]."""
    return q[subset].amin(0)


@component("algo", "rlpd")
@dataclass(eq=False, kw_only=True)
class RLPD(SAC):
    """SAC that learns online with prior data in every batch (Ball et al., 2023, arXiv:2302.02948).

    The prior data are the mixed trainer's business (``offline_batch_ratio``). What differs here from SAC keeps the
    critics in bounds on such data: LayerNorm, and an ensemble of which a random subset gives the target,
    Q_i(s, a) → r + γ (min_{i∈M} Q̄_i(s′, a′) − α log π(a′|s′)),  M random of size ``n_target_critics``,
    while the actor follows the mean of all. For when some data of the task exist already, however bad.
    """

    loops: ClassVar[frozenset[str]] = frozenset({MIXED})
    critic_network: ClassVar[NetDefaults] = NetDefaults(hidden=(256, 256), norm=Norm.layer)

    n_target_critics: Size = 2  # size of the random subset whose minimum is the target
    mean_actor: bool = True  # the actor follows the mean of the critics; false: their minimum, as in SAC

    def __post_init__(self) -> None:
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
        return rlpd_target_value(q, noise["subset"])

    def reduce_actor(self, q: Tensor) -> Tensor:
        """The mean of all critics (or their minimum)."""
        return q.mean(0) if self.mean_actor else q.amin(0)
