"""Recurrent networks: whole sequences equal one step after the other, and so do their gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rlexp.models import MLP, Recurrence, Recurrent
from rlexp.models.cells import gru, lstm

L, B, INPUTS, SIZE, OUT = 7, 3, 4, 5, 2
KINDS = list(Recurrence)


def network(kind: Recurrence) -> Recurrent:
    torch.manual_seed(0)
    net = Recurrent(MLP(INPUTS, None, hidden=(6,)), kind, SIZE, OUT, init="orthogonal", out_gain=1.0)
    with torch.no_grad():
        for parameter in net.cell.parameters():  # biases of zero would hide that one is forgotten
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return net


def step_by_step(net: Recurrent, obs: Tensor, carry: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """torch's own cell, one step and one sequence after the other, begun anew where an episode starts."""
    outputs, carries = torch.zeros(L, B, OUT), []
    rows = []
    for b in range(B):
        state = carry[b : b + 1]
        for t in range(L):
            if starts[t, b]:
                state = torch.zeros_like(state)
            features = net.encoder(obs[t, b : b + 1])
            if isinstance(net.cell, nn.LSTMCell):
                state = torch.cat(net.cell(features, (state[:, :SIZE], state[:, SIZE:])), 1)
            else:
                state = net.cell(features, state)
            rows.append(net.head(state[:, :SIZE])[0])
        carries.append(state)
    outputs = torch.stack(rows).view(B, L, OUT).transpose(0, 1)
    return outputs, torch.cat(carries)


def inputs(net: Recurrent) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    starts = torch.zeros(L, B, dtype=torch.bool)
    starts[3, 0] = starts[0, 1] = starts[4, 1] = starts[5, 1] = True  # amid, at the first step, twice in a row
    carry = torch.randn(B, net.carry_size, generator=generator)
    return torch.randn(L, B, INPUTS, generator=generator), carry, starts


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_with_starts_equals_single_steps_of_torchs_cells(kind: Recurrence) -> None:
    net = network(kind)
    obs, carry, starts = inputs(net)
    carry.requires_grad_()
    obs.requires_grad_()
    weights = torch.linspace(-1, 1, L * B * OUT).view(L, B, OUT)
    leaves = [obs, carry, *net.parameters()]
    found, expected = net(obs, carry, starts), step_by_step(net, obs, carry, starts)
    for mine, theirs in zip(found, expected):
        torch.testing.assert_close(mine, theirs)
    losses = [(out * weights).sum() + after.square().sum() for out, after in (found, expected)]
    for mine, theirs in zip(*(torch.autograd.grad(loss, leaves) for loss in losses), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_before_a_start_has_no_influence(kind: Recurrence) -> None:
    net = network(kind)
    obs, carry, starts = inputs(net)
    outputs, _ = net(obs, carry, starts)
    changed = obs.clone()
    changed[:3, 0] += 1
    others, _ = net(changed, carry + 1, starts)
    assert torch.equal(outputs[3:, 0], others[3:, 0])
    assert torch.equal(outputs[:, 1], others[:, 1])  # starts at its first step
    assert not torch.allclose(outputs[:, 2], others[:, 2])


@pytest.mark.parametrize("kind", KINDS)
def test_steps_one_by_one_are_the_sequence(kind: Recurrence) -> None:
    net = network(kind)
    obs, carry, _ = inputs(net)
    outputs, after = net(obs, carry)
    state = carry
    for t in range(L):
        out, state = net.step(obs[t], state)
        torch.testing.assert_close(out, outputs[t])
    torch.testing.assert_close(state, after)


@pytest.mark.parametrize("kind", KINDS)
def test_the_operators_keep_torchs_rules(kind: Recurrence) -> None:
    x = torch.randn(L, B, (4 if kind is Recurrence.lstm else 3) * SIZE, requires_grad=True)
    h, keep = torch.randn(B, SIZE, requires_grad=True), torch.ones(L, B, 1)
    weight = torch.randn(x.shape[-1], SIZE, requires_grad=True)
    if kind is Recurrence.lstm:
        torch.library.opcheck(lstm, (x, h, torch.randn(B, SIZE), keep, weight))
    else:
        torch.library.opcheck(gru, (x, h, keep, weight, torch.randn(x.shape[-1], requires_grad=True)))
