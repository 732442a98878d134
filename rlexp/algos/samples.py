"""Several actions for each state, evaluated as batched products."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlexp.tree import tree_map
from rlexp.types import Obs

CPU_ROWS = 768  # of a product: with more, a layer's activations leave the processor's caches (CQL: a third slower)


def repeat_obs(obs: Obs, m: int) -> Obs:
    """Observations [B, …] m times, one after the other: [m·B, …]."""
    return tree_map(lambda leaf: leaf.repeat(m, *(1,) * (leaf.dim() - 1)), obs)


def values_of_samples(critic: nn.Module, obs: Obs, actions: Tensor, whole: bool = False) -> Tensor:
    """Q_i(s, a_j) of an ensemble for m actions of each state, [m, B, A] -> [n, m, B]; on a CPU a few j at a time.

    ``whole``: all at once, for acting: the number of states of an exported policy is not known when it is traced.
    """
    m, batch = actions.shape[:2]
    at_once = m if whole or actions.device.type != "cpu" else max(1, CPU_ROWS // batch)
    values = [
        critic(repeat_obs(obs, len(part)), part.flatten(0, 1))[..., 0].unflatten(-1, (len(part), -1))
        for part in actions.split(at_once)
    ]
    return torch.cat(values, 1) if len(values) > 1 else values[0]
