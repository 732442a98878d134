"""Several actions for each state, evaluated as one batched product."""

from __future__ import annotations

from torch import Tensor, nn

from rlexp.tree import tree_map
from rlexp.types import Obs


def repeat_obs(obs: Obs, m: int) -> Obs:
    """Observations [B, …] m times, one after the other: [m·B, …]."""
    return tree_map(lambda leaf: leaf.repeat(m, *(1,) * (leaf.dim() - 1)), obs)


def values_of_samples(critic: nn.Module, obs: Obs, actions: Tensor) -> Tensor:
    """Q_i(s, a_j) of an ensemble for m actions of each state, [m, B, A] -> [n, m, B]."""
    m = actions.shape[0]
    return critic(repeat_obs(obs, m), actions.flatten(0, 1))[..., 0].unflatten(-1, (m, -1))  # type: ignore[no-any-return]
