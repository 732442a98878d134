"""What passes between buffers, algorithms and trainers. Tuples of tensors, no behaviour."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

Obs = Tensor | dict[str, Tensor]  # one tensor, or a flat dict of tensors


class Batch(NamedTuple):
    """Transitions as a loss sees them: n, priorities and truncation are already folded in."""

    obs: Obs  # [B, …]
    action: Tensor  # [B, …] in the algorithm's units
    reward: Tensor  # [B] discounted sum over the window
    next_obs: Obs  # [B, …] the true observation at the end of the window
    discount: Tensor  # [B] γⁿ·(1 − terminated)
    weight: Tensor | None = None  # [B] importance of each row; None: all equal
    index: Tensor | None = None  # type: ignore[assignment]  # [B] where the row lies in the buffer (hides tuple.index)
    extras: dict[str, Tensor] = {}  # noqa: RUF012 (never written to)


class Act(NamedTuple):
    """What an algorithm answers when asked to act on N observations."""

    action: Tensor  # [N, …] in the algorithm's units
    carry: Tensor | None = None  # [N, …] recurrent state after this step; None: nothing is remembered
    extras: dict[str, Tensor] = {}  # noqa: RUF012 (stored with the transition: log_prob, value, …)


class Update(NamedTuple):
    """What an algorithm answers after an update."""

    metrics: dict[str, Tensor]  # 0-dim, read only when logged
    priority: Tensor | None = None  # [B]


class Rollout(NamedTuple):
    """T steps of N environments, complete with the values that advantages are computed from."""

    obs: Obs  # [T, N, …]
    action: Tensor  # [T, N, …]
    reward: Tensor  # [T, N]
    value: Tensor  # [T, N] V of `obs`
    next_value: Tensor  # [T, N] V of the true next observation; 0 at termination
    terminated: Tensor  # [T, N] bool
    done: Tensor  # [T, N] bool: terminated or truncated
    extras: dict[str, Tensor] = {}  # noqa: RUF012 (never written to)
