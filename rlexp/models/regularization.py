"""What keeps networks in bounds: LayerNorm, BatchRenorm, dropout. Each for one network, or for an ensemble in one go.

All of it traces as one graph. What changes lies in buffers that are changed in place, as optimizers do it, and that
belong to the checkpoint; nothing is drawn from a generator.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


def _shape(width: int, ensemble: int | None) -> tuple[int, ...]:
    return (width,) if ensemble is None else (ensemble, 1, width)


class LayerNorm(nn.Module):
    """LayerNorm (Ba et al., 2016) of the last axis; each member of an ensemble has a scale and shift of its own."""

    def __init__(self, width: int, ensemble: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(_shape(width, ensemble)))
        self.bias = nn.Parameter(torch.zeros(_shape(width, ensemble)))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., width]`` of mean 0 and variance 1 in every row, scaled and shifted."""
        return torch.addcmul(self.bias, functional.layer_norm(x, x.shape[-1:]), self.weight)


class BatchRenorm(nn.Module):
    """Batch renormalisation (Ioffe, 2017, arXiv:1702.03275) as CrossQ has it (Bhatt et al., 2024, arXiv:1902.05605).

    Training:  (x − μ_B) / σ_B · r + d,  r = σ_B / σ in [1/3, 3],  d = (μ_B − μ) / σ in [−5, 5],  both constants to the
    gradient, where μ, σ² are running averages; in the first ``warmup`` such passes r = 1 and d = 0, plain BatchNorm.
    Otherwise:  (x − μ) / σ.
    """

    mean: Tensor  # μ
    var: Tensor  # σ²
    passes: Tensor  # training passes so far

    MAX_R, MAX_D, EPS = 3.0, 5.0, 1e-3

    def __init__(
        self, width: int, ensemble: int | None = None, *, momentum: float = 0.99, warmup: int = 100_000
    ) -> None:
        super().__init__()
        shape = _shape(width, ensemble)
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self.ensemble, self.momentum, self.warmup = ensemble, momentum, warmup

    def forward(self, x: Tensor, train: bool = False) -> Tensor:
        """``[..., width]``, in an ensemble ``[n, B, width]``; ``train``: by this batch, which moves the averages."""
        if not train:
            scale = self.weight * (self.var + self.EPS).rsqrt()
            return torch.addcmul(torch.addcmul(self.bias, self.mean, scale, value=-1), x, scale)
        x = x.float()  # sums of a batch need more digits than autocast leaves
        axes = tuple(range(x.dim() - 1)) if self.ensemble is None else (1,)
        var, mean = torch.var_mean(x, axes, correction=0, keepdim=self.ensemble is not None)
        std = (var + self.EPS).sqrt()
        with torch.no_grad():
            running_std = (self.var + self.EPS).sqrt()
            warm = self.passes >= self.warmup
            r = torch.where(warm, (std / running_std).clamp(1 / self.MAX_R, self.MAX_R), 1.0)
            d = torch.where(warm, ((mean - self.mean) / running_std).clamp(-self.MAX_D, self.MAX_D), 0.0)
            self.mean.lerp_(mean, 1 - self.momentum)
            self.var.lerp_(var, 1 - self.momentum)
            self.passes.add_(1)
        return torch.addcmul(self.bias, torch.addcmul(d, x - mean, r / std), self.weight)


class Dropout(nn.Module):
    """Dropout (Srivastava et al., 2014) whose masks are a function of a counter, the same compiled or not.

    It is off but within the updates of an algorithm, which switches it on (``Algorithm.setup``). Which units are
    dropped follows from the counter and their place by a hash, so that nothing is drawn, no mask is stored, and a
    resumed run drops the same ones.
    """

    calls: Tensor  # masks so far, from a random start

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate, self.on = rate, False
        self.register_buffer("calls", torch.empty((), dtype=torch.int64))
        self.restart()

    def restart(self) -> None:
        """Other masks than before: a copy would drop the same units as its source."""
        self.calls.random_(2**31)

    def forward(self, x: Tensor) -> Tensor:
        """A share ``rate`` of the units set to zero, the others enlarged to keep the mean."""
        if not self.on:
            return x
        place = torch.arange(math.prod(x.shape), device=x.device).view(x.shape)
        drawn = scramble(place ^ scramble(self.calls))
        self.calls.add_(1)
        return torch.where(drawn < round(self.rate * 2**32), 0.0, x * (1 / (1 - self.rate)))


def scramble(value: Tensor) -> Tensor:
    """A hash of int64 numbers onto 32 bits (T. Mueller's); products stay below 2⁶³, where overflow is undefined."""
    for _ in range(2):
        value = (((value >> 16) ^ value) * 0x45D9F3B) & 0xFFFFFFFF
    return (value >> 16) ^ value
