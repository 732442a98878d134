"""Monotonic advantage re-weighted imitation learning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from rlexp.algos.cloning import ReturnCloning
from rlexp.buffers.derived import MC_RETURN
from rlexp.config.component import component
from rlexp.config.fields import NonNegative, Positive, Share
from rlexp.envs.spec import EnvSpec
from rlexp.models import Model
from rlexp.types import Batch


def marwil_weight(
    advantage: Tensor, norm: float | Tensor, beta: float | Tensor, max_weight: float | Tensor = math.inf
) -> Tensor:
    """exp(β A / c) with the running norm c of the advantages, up to ``max_weight``."""
    return (beta * advantage / (norm + 1e-8)).exp().clamp(max=max_weight)


def marwil_loss(log_prob: Tensor, weight: Tensor) -> Tensor:
    """−E[exp(β A / c) log π(a|s)] over the dataset's actions."""
    return -(weight * log_prob).mean()


class RunningRMS(nn.Module):
    """The root mean square of a stream of batches, the newer counting more; free of where it began, as in Adam."""

    mean: Tensor
    missing: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("missing", torch.ones(()))  # share of the mean that is still its beginning, zero

    def forward(self, x: Tensor, rate: float | Tensor) -> Tensor:
        """Take in a batch, and give √E[x²]."""
        self.mean.lerp_(x.square().mean(), rate)
        self.missing.mul_(1 - rate)
        return (self.mean / (1 - self.missing)).sqrt()


@component("algo", "marwil")
@dataclass(eq=False, kw_only=True)
class MARWIL(ReturnCloning):
    """Monotonic advantage re-weighted imitation learning (Wang et al., 2018).

    Value:   V(s) → R, the discounted return of the rest of the episode.
    Actor:   maximise  E_D[e^{β A / c} log π(a|s)],  A = R − V(s),  c² the running mean of A².
    The better V, the more the largest A exceeds c, so weights are bounded. Imitation that prefers what went better than
    usual, without bootstrapping: robust, and with β = 0 plain behaviour cloning. For data of one decent policy or of
    several, in whole episodes.
    """

    derived: ClassVar[frozenset[str]] = frozenset({MC_RETURN})

    beta: NonNegative = 1.0  # how much more the better actions are cloned; 0: all alike
    max_weight: Positive = 20.0  # bound of the weights
    norm_rate: Share = 0.01  # share of the newest batch in the running norm of the advantages

    def build(self, spec: EnvSpec, model: Model) -> None:
        """Actor, V, and the norm of the advantages."""
        super().build(spec, model)
        self.norm = RunningRMS()

    def returns(self, batch: Batch) -> Tensor:
        """The rest of the episode."""
        return batch.extras[MC_RETURN]

    def advantage_weight(self, advantage: Tensor) -> Tensor:
        """By advantages in units of their running norm."""
        return marwil_weight(advantage, self.norm(advantage, self.norm_rate), self.beta, self.max_weight)

    def actor_loss(self, log_prob: Tensor, weight: Tensor) -> Tensor:
        """Weighted imitation."""
        return marwil_loss(log_prob, weight)
