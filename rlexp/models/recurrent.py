"""Networks that remember: an encoder, a recurrence over time, a linear head.

The encoder is whatever a model builds without outputs (an MLP's last layer, a CNN's features), so pixels need nothing
of their own here. The state is one tensor ``[B, carry_size]`` whose zeros are the beginning of an episode.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlexp.models.cells import gru, gru_forward, lstm, lstm_forward
from rlexp.models.layers import NARROW, Init, in_full_precision, linear
from rlexp.tree import tree_first, tree_map

if TYPE_CHECKING:
    from rlexp.types import Obs


class Recurrence(Enum):
    """What carries information from one step to the next."""

    lstm = "lstm"
    gru = "gru"


class Recurrent(nn.Module):
    """Encoder → recurrence of ``size`` units → ``out`` linear outputs.

    ``encoder`` gives features ``[..., encoder.out]``; the recurrence has the parameters of torch's own cells.
    """

    def __init__(
        self,
        encoder: nn.Module,
        kind: Recurrence,
        size: int,
        out: int,
        *,
        init: Init = "torch",
        out_gain: float | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.kind, self.size = encoder, kind, size
        inputs: int = encoder.out  # type: ignore[assignment]
        self.cell = nn.LSTMCell(inputs, size) if kind is Recurrence.lstm else nn.GRUCell(inputs, size)
        self.carry_size = 2 * size if kind is Recurrence.lstm else size
        if init == "orthogonal":
            for name, parameter in self.cell.named_parameters():
                nn.init.zeros_(parameter) if "bias" in name else nn.init.orthogonal_(parameter)
        self.head = linear(size, out, init, out_gain)

    def forward(self, obs: Obs, carry: Tensor, starts: Tensor | None = None, **told: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs ``[L, B, out]`` for observations ``[L, B, …]``, and the state after them.

        ``carry`` ``[B, carry_size]`` is the state before them; where ``starts`` ``[L, B]`` is True, an episode begins.
        ``told`` ``[L, B]`` is what the encoder is told of each observation (``dropped``, ``counted``: see ``Net``).
        """
        cell, size = self.cell, self.size
        steps, rows = tree_first(obs).shape[:2]
        told = {name: column.flatten() for name, column in told.items()}
        features = self.encoder(tree_map(lambda leaf: leaf.flatten(0, 1), obs), **told).unflatten(0, (steps, rows))
        x = self._entry(features, cell.weight_ih, cell.bias_ih).float()  # all steps at once
        keep = x.new_ones(*x.shape[:2], 1) if starts is None else (~starts).unsqueeze(-1).to(x.dtype)
        learning = torch.is_grad_enabled()  # where nobody asks for gradients, an operator would cost more than its work
        if self.kind is Recurrence.lstm:
            h, c = carry.split(size, -1)
            hidden, cells, _ = (lstm if learning else lstm_forward)(x + cell.bias_hh, h, c, keep, cell.weight_hh)
            carry = torch.cat((hidden[-1], cells[-1]), -1)
        else:
            hidden, _, _ = (gru if learning else gru_forward)(x, carry, keep, cell.weight_hh, cell.bias_hh)
            carry = hidden[-1].clone()  # not a view into all states
        return in_full_precision(functional.linear, hidden, self.head.weight, self.head.bias), carry

    def _entry(self, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The product of the features; of few of them in full precision."""
        if features.shape[-1] < NARROW:
            return in_full_precision(functional.linear, features, weight, bias)
        return functional.linear(features, weight, bias)

    def step(self, obs: Obs, carry: Tensor, **told: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs ``[B, out]`` for one observation of each of B episodes, and the state after it."""
        if torch.compiler.is_exporting():  # by torch's own cell: the loop here writes in place, which ONNX cannot say
            return self._exported_step(obs, carry)
        told = {name: column.unsqueeze(0) for name, column in told.items()}
        out, carry = self(tree_map(lambda leaf: leaf.unsqueeze(0), obs), carry, **told)
        return out.squeeze(0), carry

    def _exported_step(self, obs: Obs, carry: Tensor) -> tuple[Tensor, Tensor]:
        """The same for whoever reads an exported policy."""
        features = self.encoder(obs)
        if self.kind is Recurrence.lstm:
            hidden, cells = self.cell(features, tuple(carry.split(self.size, -1)))
            carry = torch.cat((hidden, cells), -1)
        else:
            hidden = carry = self.cell(features, carry)
        return self.head(hidden), carry
