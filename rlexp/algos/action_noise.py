"""Noise on the actions of a deterministic policy: the parts that ``algo.exploration`` chooses from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rlexp.config.component import component
from rlexp.config.fields import Fraction, Range, Static


class ActionNoise(ABC):
    """A pure function of random numbers and of what it remembers of the episode, so that it compiles and resumes.

    Whoever acts draws the random numbers and keeps the memory: for each environment, saved with it, and all zeros where
    an episode begins.
    """

    @property
    def draws(self) -> int:
        """Random numbers that it is given for each dimension of an action and each step."""
        return 1

    @property
    def memory(self) -> int:
        """Numbers that it remembers for each dimension of an action."""
        return 0

    @abstractmethod
    def __call__(self, draw: Tensor, memory: Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor]:
        """Noise [N, A], and the memory [N, A, memory] after it, of standard normal ``draw`` [N, A, draws]."""


@component("exploration", "none")
@dataclass(eq=False, kw_only=True)
class NoNoise(ActionNoise):
    """The policy itself."""

    @property
    def draws(self) -> int:
        """Nothing is drawn."""
        return 0

    def __call__(self, draw: Tensor, memory: Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor]:
        """Zeros."""
        return draw.sum(-1), memory


@component("exploration", "gaussian")
@dataclass(eq=False, kw_only=True)
class GaussianNoise(ActionNoise):
    """σ ε, independent at each step."""

    def __call__(self, draw: Tensor, memory: Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor]:
        """Of standard deviation ``scale``."""
        return scale * draw[..., 0], memory


@component("exploration", "ou")
@dataclass(eq=False, kw_only=True)
class OrnsteinUhlenbeckNoise(ActionNoise):
    """x ← (1 − θ) x + σ ε: drawn back to zero, and wandering in between.

    In the long run its variance is σ² / (1 − (1 − θ)²), and values k steps apart correlate by (1 − θ)^k.
    """

    theta: Fraction = 0.15  # share of the process that is forgotten at each step

    @property
    def memory(self) -> int:
        """The process, x."""
        return 1

    def __call__(self, draw: Tensor, memory: Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor]:
        """The process after one more step."""
        process = (1 - self.theta) * memory + scale * draw
        return process[..., 0], process


@component("exploration", "pink")
@dataclass(eq=False, kw_only=True)
class PinkNoise(ActionNoise):
    """Noise whose power falls as 1/f (Eberhard et al., 2023, "Pink Noise Is All You Need", ICLR).

    σ / √K · Σ_k x_k,  x_k ← a_k x_k + √(1 − a_k²) ε_k,  a_k = exp(−1/τ_k),  τ_k = ½, 1, 2, … 2^(K−2) steps: processes
    of variance 1 that forget at rates an octave apart. The paper draws a whole episode at once, whose length this need
    not know. x_k begins as ε_k, in its long run. Beyond 24 octaves a_k is 1 in float32.
    The variance is σ² from the first step on, the spectrum 1/K Σ_k (1 − a_k²) / (1 − 2 a_k cos ω + a_k²).
    """

    octaves: Annotated[int, Range(1, 24), Static()] = 10  # processes summed, K: 1/f up to periods of about 2^K steps

    @property
    def draws(self) -> int:
        """ε_k."""
        return self.octaves

    @property
    def memory(self) -> int:
        """x_k."""
        return self.octaves

    def __call__(self, draw: Tensor, memory: Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the processes after one more step."""
        forgotten = 2.0 ** (1.0 - torch.arange(self.octaves, device=draw.device))  # 1/τ
        kept, new = torch.exp(-forgotten), torch.sqrt(-torch.expm1(-2 * forgotten))
        started = torch.where(memory == 0, draw, kept * memory + new * draw)
        return scale * started.sum(-1) / math.sqrt(self.octaves), started
