"""What keeps networks in bounds: LayerNorm, BatchRenorm, dropout. Each for one network, or for an ensemble in one go.

All of it traces as one graph. What changes lies in buffers that are changed in place, as optimizers do it, and that
belong to the checkpoint; nothing is drawn from a generator.

BatchRenorm and Dropout have a switch that is on while an algorithm learns (:func:`learning`) and off elsewhere. Graphs
hold it as a constant: those of an update are traced within one, those of acting are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlexp.errors import ConfigError


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
    Otherwise:  (x − μ) / σ,  which is the same number wherever nothing reaches the bounds of r and d.

    A pass trains it while the algorithm learns (:func:`learning`), if gradients are recorded, for its parameters too
    (a target's are frozen), and unless the caller says ``frozen``.
    """

    mean: Tensor  # μ
    var: Tensor  # σ²
    passes: Tensor  # training passes so far

    MAX_R, MAX_D, EPS = 3.0, 5.0, 1e-3

    def __init__(self, width: int, ensemble: int | None = None, *, momentum: float = 0.99, warmup: int = 0) -> None:
        super().__init__()
        shape = _shape(width, ensemble)
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self.ensemble, self.momentum, self.warmup = ensemble, momentum, warmup
        self.on = False

    def forward(self, x: Tensor, frozen: bool = False, counted: Tensor | None = None) -> Tensor:
        """``[..., width]``, in an ensemble ``[n, B, width]``; a training pass goes by the batch and moves the averages.

        ``counted`` ``[...]``, 1 or 0, says which rows are part of the batch: others, such as padding, are normalised
        like them and leave no trace.
        """
        if frozen or not (self.on and torch.is_grad_enabled() and self.weight.requires_grad):
            scale = self.weight * (self.var + self.EPS).rsqrt()
            return torch.addcmul(torch.addcmul(self.bias, self.mean, scale, value=-1), x, scale)
        x = x.float()  # sums of a batch need more digits than autocast leaves
        axes = tuple(range(x.dim() - 1)) if self.ensemble is None else (1,)
        if counted is None:
            var, mean = torch.var_mean(x, axes, correction=0, keepdim=self.ensemble is not None)
        else:
            share = (counted / counted.sum()).unsqueeze(-1)
            mean = (share * x).sum(axes, keepdim=self.ensemble is not None)
            var = (share * (x - mean).square()).sum(axes, keepdim=self.ensemble is not None)
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

    It is off but while an algorithm learns (:func:`learning`). Which units are dropped follows from the counter and
    their place by a hash, so that nothing is drawn, no mask is stored, and a resumed run drops the same ones.

    Given a number for each row, which units are dropped in a row follows from its number instead, wherever and whenever
    it is asked again: so a policy is updated without the units that it went without when it acted (consistent dropout,
    Hausknecht & Wagener, 2022, arXiv:2202.11818). ``place`` tells the layers of a network apart.
    """

    calls: Tensor  # masks so far, from a random start

    def __init__(self, rate: float, place: int = 0) -> None:
        super().__init__()
        self.rate, self.on = rate, False
        self.numbered = False  # whether updates must number the rows: another mask than that of acting is a mistake
        self.salt = scramble(place + 1)
        self.register_buffer("calls", torch.empty((), dtype=torch.int64))
        self.restart()

    def restart(self) -> None:
        """Other masks than before: a copy would drop the same units as its source."""
        self.calls.random_(2**31)

    def forward(self, x: Tensor, numbers: Tensor | None = None) -> Tensor:
        """A share ``rate`` of the units set to zero, the others enlarged to keep the mean.

        ``numbers`` ``[...]`` for ``x`` ``[..., width]`` are whole, from 0 to :data:`NUMBERS`.
        """
        if numbers is not None:
            unit = torch.arange(x.shape[-1], device=x.device)
            drawn = scramble(unit ^ scramble(numbers ^ self.salt).unsqueeze(-1))
        elif not self.on:
            return x
        elif self.numbered:
            raise ConfigError(
                "model.dropout: this update does not say which units the policy dropped when it acted. Tell its "
                "network dropped=…, as PPO does, or use model.critic_dropout."
            )
        else:
            place = torch.arange(math.prod(x.shape), device=x.device).view(x.shape)
            drawn = scramble(place ^ scramble(self.calls))
            self.calls.add_(1)
        return torch.where(drawn < round(self.rate * 2**32), 0.0, x * (1 / (1 - self.rate)))


def normalizes_by_batch(net: nn.Module) -> bool:
    """Whether what a network says of a row depends, in training, on the rows beside it."""
    return any(isinstance(module, BatchRenorm) for module in net.modules())


def drops_units(net: nn.Module) -> bool:
    """Whether a network has dropout."""
    return any(isinstance(module, Dropout) for module in net.modules())


NUMBERS = 2**31  # so many different numbers of rows


@contextmanager
def learning(modules: Sequence[nn.Module]) -> Iterator[None]:
    """While it lasts, Dropout drops and BatchRenorm trains."""
    for module in modules:
        module.on = True  # type: ignore[assignment]
    try:
        yield
    finally:
        for module in modules:
            module.on = False  # type: ignore[assignment]


Whole = TypeVar("Whole", int, Tensor)


def scramble(value: Whole) -> Whole:
    """A hash of int64 numbers onto 32 bits (T. Mueller's); products stay below 2⁶³, where overflow is undefined."""
    for _ in range(2):
        value = (((value >> 16) ^ value) * 0x45D9F3B) & 0xFFFFFFFF
    return (value >> 16) ^ value
