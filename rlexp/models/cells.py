"""LSTM and GRU over sequences in which episodes begin, forwards and backwards.

Torch's own kernels cannot reset the state amid a sequence, and a loop left to autograd records every small operation
of every step: several times slower, and a graph that takes minutes to compile. Here the loop is one operator with its
derivative written out, in which all that does not depend on the following step is computed for the whole sequence.
Weights and gates are laid out as in ``nn.LSTMCell`` and ``nn.GRUCell``. Shapes: L steps, B sequences, H units.
"""
# No `from __future__ import annotations`: the operators' signatures are read from the annotations.

from typing import Any

import torch
from torch import Tensor


def _previous(first: Tensor, states: Tensor, keep: Tensor) -> Tensor:
    """The state that each step began with, [L, B, H]: that of the step before, or zero where an episode begins."""
    return torch.cat((first.unsqueeze(0), states[:-1])) * keep


# ---- LSTM


def lstm_forward(x: Tensor, h: Tensor, c: Tensor, keep: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All hidden states [L, B, H], cells [L, B, H] and gates [L, B, 4H].

    ``x`` [L, B, 4H] are the inputs' part of the gates with both biases, ``h`` and ``c`` [B, H] the state before,
    ``keep`` [L, B, 1] is 0 where an episode begins and else 1, ``weight`` [4H, H].
    """
    size, transposed = h.shape[-1], weight.T
    hidden, cells, gates = x.new_empty(*x.shape[:2], size), x.new_empty(*x.shape[:2], size), torch.empty_like(x)
    for x_t, keep_t, h_t, c_t, gate in zip(x, keep, hidden, cells, gates):
        torch.addmm(x_t, h * keep_t, transposed, out=gate)
        gate[:, : 2 * size].sigmoid_()
        gate[:, 2 * size : 3 * size].tanh_()
        gate[:, 3 * size :].sigmoid_()
        i, f, g, o = gate.chunk(4, -1)
        torch.addcmul(i * g, c * keep_t, f, out=c_t)
        torch.mul(o, c_t.tanh(), out=h_t)
        h, c = h_t, c_t
    return hidden, cells, gates


lstm = torch.library.custom_op("rlexp::lstm", lstm_forward, mutates_args=())


@torch.library.custom_op("rlexp::lstm_backward", mutates_args=())
def lstm_backward(
    d_hidden: Tensor,
    d_cells: Tensor,
    hidden: Tensor,
    cells: Tensor,
    gates: Tensor,
    h: Tensor,
    c: Tensor,
    keep: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, h, c and weight, given those of the hidden states and the cells."""
    before = _previous(c, cells, keep)
    i, f, g, o = gates.chunk(4, -1)
    squashed = cells.tanh()
    into_gates = torch.stack((g * i * (1 - i), before * f * (1 - f), i * (1 - g * g)), 2)  # of i, f, g by the cell
    into_cell, into_o = o * (1 - squashed * squashed), squashed * o * (1 - o)
    kept = f * keep
    d_x = torch.empty_like(gates)
    d_h, d_c = torch.zeros_like(h), torch.zeros_like(c)
    for t in range(len(gates) - 1, -1, -1):
        d_h = d_h + d_hidden[t]
        d_c = torch.addcmul(d_c + d_cells[t], d_h, into_cell[t])
        gate = d_x[t].view(len(d_h), 4, -1)
        torch.mul(d_c.unsqueeze(1), into_gates[t], out=gate[:, :3])
        torch.mul(d_h, into_o[t], out=gate[:, 3])
        d_h = (d_x[t] @ weight) * keep[t]
        d_c = d_c * kept[t]
    d_weight = d_x.flatten(0, 1).T @ _previous(h, hidden, keep).flatten(0, 1)
    return d_x, d_h, d_c, d_weight


@lstm.register_fake
def _(x: Tensor, h: Tensor, c: Tensor, keep: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    states = x.new_empty(*x.shape[:2], h.shape[-1])
    return states, torch.empty_like(states), x.new_empty(x.shape)


@lstm_backward.register_fake
def _(d_hidden, d_cells, hidden, cells, gates, h, c, keep, weight):  # type: ignore[no-untyped-def]
    return gates.new_empty(gates.shape), h.new_empty(h.shape), c.new_empty(c.shape), weight.new_empty(weight.shape)


def _keep_lstm(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    _, h, c, keep, weight = inputs
    ctx.save_for_backward(*output, h, c, keep, weight)


def _lstm_gradients(ctx: Any, d_hidden: Tensor, d_cells: Tensor, d_gates: Tensor) -> tuple[Tensor | None, ...]:
    d_x, d_h, d_c, d_weight = lstm_backward(d_hidden.contiguous(), d_cells.contiguous(), *ctx.saved_tensors)
    return d_x, d_h, d_c, None, d_weight


lstm.register_autograd(_lstm_gradients, setup_context=_keep_lstm)


# ---- GRU


def gru_forward(x: Tensor, h: Tensor, keep: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All hidden states [L, B, H], gates [L, B, 3H] and the hidden part of the new state [L, B, H] before its gate.

    ``x`` [L, B, 3H] are the inputs' part of the gates with their bias, ``h`` [B, H] the state before, ``keep``
    [L, B, 1] is 0 where an episode begins and else 1, ``weight`` [3H, H] and ``bias`` [3H] are of the hidden part.
    """
    size, transposed = h.shape[-1], weight.T
    hidden, candidates = x.new_empty(*x.shape[:2], size), x.new_empty(*x.shape[:2], size)
    gates = torch.empty_like(x)
    for x_t, keep_t, h_t, candidate, gate in zip(x, keep, hidden, candidates, gates):
        h = h * keep_t
        recurrent = torch.addmm(bias, h, transposed)
        candidate.copy_(recurrent[:, 2 * size :])
        both = gate[:, : 2 * size]
        torch.add(x_t[:, : 2 * size], recurrent[:, : 2 * size], out=both).sigmoid_()
        r, z, n = gate.chunk(3, -1)
        torch.addcmul(x_t[:, 2 * size :], r, candidate, out=n).tanh_()
        torch.lerp(n, h, z, out=h_t)
        h = h_t
    return hidden, gates, candidates


gru = torch.library.custom_op("rlexp::gru", gru_forward, mutates_args=())


@torch.library.custom_op("rlexp::gru_backward", mutates_args=())
def gru_backward(
    d_hidden: Tensor, hidden: Tensor, gates: Tensor, candidates: Tensor, h: Tensor, keep: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, h, weight and bias, given that of the hidden states."""
    size, before = h.shape[-1], _previous(h, hidden, keep)
    r, z, n = gates.chunk(3, -1)
    into_n, into_z = (1 - z) * (1 - n * n), (before - n) * z * (1 - z)
    into_r = into_n * candidates * r * (1 - r)
    into_x = torch.stack((into_r, into_z, into_n), 2)
    into_recurrent = torch.stack((into_r, into_z, into_n * r), 2)
    d_states = torch.empty_like(hidden)
    d_h = torch.zeros_like(h)
    for t in range(len(gates) - 1, -1, -1):
        d_state = torch.add(d_h, d_hidden[t], out=d_states[t])
        recurrent = (d_state.unsqueeze(1) * into_recurrent[t]).view(-1, 3 * size)
        d_h = torch.addcmul(recurrent @ weight, d_state, z[t]) * keep[t]
    d_recurrent = (d_states.unsqueeze(2) * into_recurrent).view(-1, 3 * size)
    d_x = (d_states.unsqueeze(2) * into_x).view(gates.shape)
    return d_x, d_h, d_recurrent.T @ before.flatten(0, 1), d_recurrent.sum(0)


@gru.register_fake
def _(x: Tensor, h: Tensor, keep: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    states = x.new_empty(*x.shape[:2], h.shape[-1])
    return states, x.new_empty(x.shape), torch.empty_like(states)


@gru_backward.register_fake
def _(d_hidden, hidden, gates, candidates, h, keep, weight):  # type: ignore[no-untyped-def]
    return (
        gates.new_empty(gates.shape),
        h.new_empty(h.shape),
        weight.new_empty(weight.shape),
        weight.new_empty(len(weight)),
    )


def _keep_gru(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    _, h, keep, weight, _ = inputs
    ctx.save_for_backward(*output, h, keep, weight)


def _gru_gradients(ctx: Any, d_hidden: Tensor, d_gates: Tensor, d_candidates: Tensor) -> tuple[Tensor | None, ...]:
    d_x, d_h, d_weight, d_bias = gru_backward(d_hidden.contiguous(), *ctx.saved_tensors)
    return d_x, d_h, None, d_weight, d_bias


gru.register_autograd(_gru_gradients, setup_context=_keep_gru)
