"""Calibrated Q-learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from rlexp.algos.cql import CQL
from rlexp.config.component import component
from rlexp.config.fields import Static
from rlexp.errors import ConfigError
from rlexp.types import Batch


def cal_ql_bound(policy_q: Tensor, mc_return: Tensor) -> Tensor:
    """max(Q_i(s, a_j), G): policy_q [n, m, B], the data's return G from each state on [B] -> [n, m, B].

    Where the return is larger there is no gradient: values are not pushed below it.
    """
    return torch.maximum(policy_q, mc_return)


@component("algo", "cal_ql")
@dataclass(eq=False, kw_only=True)
class CalQL(CQL):
    """CQL whose values do not fall below the data's returns (Nakamoto et al., 2023, arXiv:2303.05479).

    Critic:  as in CQL, with  max(Q_i(s, a_j), G(s))  in place of  Q_i(s, a_j)  for the policy's actions a_j (not for
    uniform ones), where G is the Monte Carlo return of the data from s on.
    For runs that go on online: values on the right scale are not unlearned first. The conservative term stays on there.
    """

    derived: ClassVar[frozenset[str]] = frozenset({"mc_return"})

    failure_reward: Annotated[float | None, Static()] = None  # r of a failing step: a failed episode returns r/(1 − γ)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.failure_reward is not None and self.gamma >= 1:
            raise ConfigError("algo.failure_reward: the return of an endless failure, r/(1 − γ), needs algo.gamma < 1.")

    def failing_reward(self) -> float | None:
        """As it is set."""
        return self.failure_reward

    def compared(self, sampled_q: Tensor, batch: Batch) -> Tensor:
        """Those of CQL, the policy's actions calibrated."""
        uniform, policy = sampled_q.split((self.n_action_samples, 2 * self.n_action_samples), 1)
        return torch.cat((uniform, cal_ql_bound(policy, batch.extras["mc_return"])), 1)
