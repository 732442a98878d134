"""How policies act and explore: a stochastic one by sampling, a deterministic one by noise on its actions."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from rlexp.algos.base import Algorithm, OffPolicyAlgorithm
from rlexp.compiling import acting
from rlexp.config.fields import Fraction, NonNegative, Static
from rlexp.models import PolicyHead
from rlexp.tree import tree_first
from rlexp.types import Act, Obs


class StochasticPolicy(Algorithm):
    """Explores by sampling from its policy, and takes the mode where it should be at its best."""

    head: PolicyHead  # of the policy; made by build

    @abstractmethod
    def policy(self, obs: Obs) -> Any:
        """π(·|s)."""

    def act(self, obs: Obs, carry: Any, *, explore: bool, generator: torch.Generator) -> Act:
        """Sample, or take the mode."""
        if not explore:
            return Act(self.policy(obs).mode())
        noise = self.head.draw_noise(len(tree_first(obs)), generator=generator, device=self.device)
        return Act(self.explore(obs, noise))

    @acting
    def explore(self, obs: Obs, noise: Tensor) -> Tensor:
        """Actions sampled from the policy."""
        return self.policy(obs).sample(noise)


class Exploration(Enum):
    """The noise on actions while exploring: none, independent at each step, or an Ornstein-Uhlenbeck process."""

    none = "none"
    gaussian = "gaussian"
    ou = "ou"


def ornstein_uhlenbeck(previous: Tensor, draw: Tensor, theta: float | Tensor, scale: float | Tensor) -> Tensor:
    """x ← (1 − θ) x + σ ε: noise that is drawn back to zero and wanders in between.

    In the long run its variance is σ² / (1 − (1 − θ)²), and values k steps apart correlate by (1 − θ)^k.
    """
    return (1 - theta) * previous + scale * draw


@dataclass(eq=False, kw_only=True)
class DeterministicPolicy(OffPolicyAlgorithm):
    """Acts by a function of the state, in [−1, 1], and explores by noise added to it.

    The scale follows any schedule: ``algo.schedules.exploration_noise.end=0.1``. The process of ``ou`` is the carry of
    an episode: it starts at zero in each environment and is part of the checkpoint.
    """

    noise_in_losses: ClassVar[bool] = False  # its scale has a use beside exploring

    exploration: Annotated[Exploration, Static()] = Exploration.gaussian  # noise on actions: none, gaussian or ou
    exploration_noise: NonNegative = 0.1  # its standard deviation at each step, σ, of actions in [−1, 1]
    ou_theta: Fraction = 0.15  # share of the Ornstein-Uhlenbeck process that is forgotten at each step, if it is chosen

    def __post_init__(self) -> None:
        if self.exploration is not Exploration.ou:
            self.refuse_idle("ou_theta", f"exploration={self.exploration.value}. Use exploration=ou.")
        if self.exploration is Exploration.none and not self.noise_in_losses:
            self.refuse_idle("exploration_noise", "exploration=none. Use gaussian or ou.")

    @property
    def greedy_carry_size(self) -> int:
        """The memory is that of the noise."""
        return 0

    @abstractmethod
    def policy(self, obs: Obs) -> Tensor:
        """π(s), [N, A] in [−1, 1]."""

    def act(self, obs: Obs, carry: Any, *, explore: bool, generator: torch.Generator) -> Act:
        """π(s), and noise to explore."""
        if not explore or self.exploration is Exploration.none:
            return Act(self.policy(obs), carry)
        shape = (len(tree_first(obs)), self.spec.action.dim)
        if self.exploration is Exploration.ou and carry is None:
            carry = torch.zeros(shape, device=self.device)
        return Act(*self.explore(obs, torch.randn(shape, generator=generator, device=self.device), carry))

    @acting
    def explore(self, obs: Obs, draw: Tensor, process: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Actions with noise made of ``draw`` [N, A], and the process that it follows, if it has memory."""
        if process is None:
            noise = self.exploration_noise * draw
        else:
            noise = process = ornstein_uhlenbeck(process, draw, self.ou_theta, self.exploration_noise)
        return (self.policy(obs) + noise).clamp(-1, 1), process
