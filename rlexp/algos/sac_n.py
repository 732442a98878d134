"""Soft actor-critic with many critics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlexp.algos.base import MIXED, OFFLINE, REPLAY
from rlexp.algos.sac import SAC
from rlexp.config.component import component
from rlexp.config.fields import Size
from rlexp.models import NetDefaults


@component("algo", "sac_n")
@dataclass(eq=False, kw_only=True)
class SACN(SAC):
    """SAC offline, with the minimum of N critics (An et al., 2021, arXiv:2110.01548).

    Q_i(s, a) → r + γ (min_{i≤N} Q̄_i(s′, a′) − α log π(a′|s′)): the more critics, the lower the value of actions on
    which they disagree, those that the data do not show. Nothing else differs from SAC.
    The simplest offline algorithm there is, if many critics can be afforded.
    """

    loops: ClassVar[frozenset[str]] = frozenset({OFFLINE, REPLAY, MIXED})
    actor_network: ClassVar[NetDefaults] = NetDefaults(hidden=(256, 256, 256))
    critic_network: ClassVar[NetDefaults] = NetDefaults(hidden=(256, 256, 256))

    n_critics: Size = 10  # N: ensemble whose minimum is taken; up to 500 in the paper
