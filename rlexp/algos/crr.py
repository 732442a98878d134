"""Critic-regularised regression."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar

from torch import Tensor

from rlexp.algos.awac import AWAC, awac_loss, awac_weight
from rlexp.algos.base import OFFLINE
from rlexp.config.component import component
from rlexp.config.fields import Positive, Size, Static, Structure
from rlexp.errors import ConfigError
from rlexp.types import Batch


class AdvantageType(Enum):
    """What Q(s, a) is compared with: the mean or the best of sampled policy actions."""

    mean = "mean"
    max = "max"


class WeightType(Enum):
    """How an advantage becomes a weight: clone what is better (binary), or the better the more (exp)."""

    binary = "binary"
    exp = "exp"


def crr_advantage(q: Tensor, sampled_q: Tensor, kind: AdvantageType) -> Tensor:
    """A(s, a) = Q(s, a) − mean_j or max_j Q(s, a_j); q [B], sampled_q [m, B]."""
    return q - (sampled_q.mean(0) if kind is AdvantageType.mean else sampled_q.amax(0))


def crr_weight(advantage: Tensor, kind: WeightType, beta: float | Tensor, max_weight: float | Tensor) -> Tensor:
    """1[A > 0], or exp(A / β) up to ``max_weight``."""
    if kind is WeightType.binary:
        return (advantage > 0).float()
    return awac_weight(advantage, beta, max_weight)


crr_loss = awac_loss  # −E[f(A(s, a)) log π(a|s)] over the dataset's actions: only f differs


@component("algo", "crr")
@dataclass(eq=False, kw_only=True)
class CRR(AWAC):
    """Critic-regularised regression (Wang et al., 2020, arXiv:2006.15134).

    Actor:   maximise  E_D[f(A(s, a)) log π(a|s)],  f(A) = 1[A > 0] or e^{A/β},
             A(s, a) = Q(s, a) − mean or max of Q(s, a_j),  a_j ~ π(·|s).
    Critic:  Q(s, a) → r + γ min_i Q̄_i(s′, a′),  a′ ~ π(·|s′).
    For offline data of mixed quality: it clones what its own critic finds better than the policy. Where AWAC has the
    mean and e^{A/β}, baseline and weight are a choice. Of discrete actions mean and target are exact expectations.
    """

    loops: ClassVar[frozenset[str]] = frozenset({OFFLINE})

    advantage_type: AdvantageType = AdvantageType.mean  # baseline of the advantage: mean or max of sampled actions
    weight_type: WeightType = WeightType.exp  # clone better actions alike (binary) or by how much better (exp)
    beta: Positive = 1.0  # temperature of the exponential weight
    n_action_samples: Size = 4  # policy actions that estimate the baseline (of discrete ones the mean is exact)
    max_weight: Positive = 20.0  # bound of the exponential weight
    state_dependent_std: Structure = True  # whether each state has a deviation of its own (continuous actions)
    min_log_std: Annotated[float, Static()] = -5.0  # bound of the policy's deviation from below (continuous actions)

    def __post_init__(self) -> None:
        if self.weight_type is WeightType.binary:
            for name in ("beta", "max_weight"):
                if getattr(self, name) != getattr(type(self), name) or self.schedules.get(name):
                    raise ConfigError(f"{name} has no effect with weight_type=binary. Use weight_type=exp.")

    def randomness(self, size: int) -> dict[str, Tensor]:
        """All random numbers of one update; the best of sampled actions needs samples of discrete ones too."""
        if self.discrete and self.advantage_type is AdvantageType.max:
            return {"action": self.policy_noise(self.n_action_samples, size)}
        return super().randomness(size)

    def advantage(self, batch: Batch, policy: Any, noise: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """A(s, a) of the batch's actions and the weight each is cloned with, [B]."""
        if self.discrete and self.advantage_type is AdvantageType.mean:
            baseline = self.expected_q(self.critic, batch.obs, policy, None)[None]
        else:
            baseline = self.q_of_samples(self.critic, batch.obs, policy.sample(noise["action"]))
        q = self.q(self.critic, batch.obs, batch.action).amin(0)
        advantage = crr_advantage(q, baseline, self.advantage_type)
        return advantage, crr_weight(advantage, self.weight_type, self.beta, self.max_weight)
