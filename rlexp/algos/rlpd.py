"""Reinforcement learning with prior data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlexp.algos.base import MIXED
from rlexp.algos.redq import REDQ
from rlexp.config.component import component
from rlexp.config.fields import Count, Size
from rlexp.models import NetDefaults, Norm


@component("algo", "rlpd")
@dataclass(eq=False, kw_only=True)
class RLPD(REDQ):
    """SAC that learns online with prior data in every batch (Ball et al., 2023, arXiv:2302.02948).

    The prior data are the mixed trainer's business (``offline_batch_ratio``). What differs here from SAC keeps the
    critics in bounds on such data: LayerNorm, and REDQ's ensemble of which a random subset gives the target,
    Q_i(s, a) → r + γ (min_{i∈M} Q̄_i(s′, a′) − α log π(a′|s′)),  M random of size ``n_target_critics``,
    while the actor follows the mean of all. For when some data of the task exist already, however bad.
    """

    loops: ClassVar[frozenset[str]] = frozenset({MIXED})
    critic_network: ClassVar[NetDefaults] = NetDefaults(hidden=(256, 256), norm=Norm.layer)

    n_critics: Size = 2  # ensemble, of which a random subset gives the target; 10 in the paper
    actor_interval: Count = 1  # updates of the critics for one of the actor and the temperature; 20 in the paper
