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


def td_priority(q: Tensor, target: Tensor, weight: Tensor | None) -> Tensor | None:
    """|Q(s, a) − y| [B], the mean over an ensemble: what prioritized replay samples by. None for unweighted batches."""
    if weight is None:  # nobody would read it
        return None
    error = (q.detach() - target).abs()
    return error if error.dim() == 1 else error.mean(0)


def quantile_huber(quantiles: Tensor, fraction: Tensor, target: Tensor, kappa: float | Tensor) -> Tensor:
    """Σ_i mean_j |τ_i − 1[u_ij < 0]| H_κ(u_ij) / κ with u_ij = y_j − θ_i, for each row: θ [B, N], y [B, N′] -> [B].

    H is the Huber loss: u²/2 up to κ, then κ (|u| − κ/2), which is c (u − c/2) with u clipped to c = ±κ.
    """
    error = target[:, None, :] - quantiles[:, :, None]  # [B, N, N′]
    clipped = error.clamp(-kappa, kappa)  # type: ignore[arg-type]
    tilt = (fraction.unsqueeze(-1) - (error < 0).float()).abs()
    return (tilt * clipped * (error - 0.5 * clipped)).mean(-1).sum(-1) / kappa
