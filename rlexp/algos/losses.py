"""Small pieces that several losses are made of."""

from __future__ import annotations

from torch import Tensor


def mse(prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Squared error [n, B] or [B], summed over the ensemble, (importance-weighted) mean over the batch."""
    error = (prediction - target).square()
    if weight is not None:
        error = error * weight
    return error.mean(-1).sum()


def weighted_mean(value: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean over the batch, each row times its importance weight."""
    return value.mean() if weight is None else (value * weight).mean()
