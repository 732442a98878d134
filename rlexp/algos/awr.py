"""Advantage-weighted regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rlexp.algos.cloning import ReturnCloning
from rlexp.buffers.derived import LAMBDA_RETURN
from rlexp.config.component import component
from rlexp.config.fields import Count, Fraction, Positive
from rlexp.types import Batch


def awr_weight(advantage: Tensor, temperature: float | Tensor, max_weight: float | Tensor) -> Tensor:
    """exp(Â / T) up to ``max_weight``, with Â the advantages of the batch at mean 0 and deviation 1."""
    standardized = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-5)
    return (standardized / temperature).exp().clamp(max=max_weight)


def awr_loss(log_prob: Tensor, weight: Tensor) -> Tensor:
    """−E[exp(Â / T) log π(a|s)] over the dataset's actions."""
    return -(weight * log_prob).mean()


@component("algo", "awr")
@dataclass(eq=False, kw_only=True)
class AWR(ReturnCloning):
    """Advantage-weighted regression (Peng et al., 2019, arXiv:1910.00177).

    Value:   V(s) → R^λ, the TD(λ) return: all n-step returns r + … + γⁿ V(s_n) of the rest of the episode, mixed by λ.
    Actor:   maximise  E_D[e^{Â/T} log π(a|s)],  Â = R^λ − V(s) at mean 0 and deviation 1.
    As in the paper's iterations, the returns of all data are computed together, by the V of that moment, and learned
    from for ``return_interval`` updates. For whole episodes of policies that are not too different from each other.
    """

    derived: ClassVar[frozenset[str]] = frozenset({LAMBDA_RETURN})

    td_lambda: Fraction = 0.95  # bias (0: one step, then V) against variance (1: the whole episode) of the returns
    return_interval: Count = 1_000  # updates after which the returns are computed anew
    temperature: Positive = 1.0  # of the weights: the lower, the more only the best actions are cloned
    max_weight: Positive = 20.0  # bound of the weights

    def returns(self, batch: Batch) -> Tensor:
        """TD(λ), as of the last time they were computed."""
        return batch.extras[LAMBDA_RETURN]

    def advantage_weight(self, advantage: Tensor) -> Tensor:
        """By standardised advantages, bounded."""
        return awr_weight(advantage, self.temperature, self.max_weight)

    def actor_loss(self, log_prob: Tensor, weight: Tensor) -> Tensor:
        """Weighted regression."""
        return awr_loss(log_prob, weight)
