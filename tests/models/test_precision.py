"""What autocast leaves in full precision: what a network sees, and what it says."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from rlexp.models.cnn import DrQv2CNN, NipsCNN, channels_last
from rlexp.models.encoders import Encoder
from rlexp.models.layers import MLP, NARROW, Norm
from rlexp.models.recurrent import Recurrence, Recurrent
from tests.models.specs import box, image, obs_spec


def in_bfloat16(net: MLP, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net(x)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "layer norm": {"norm": Norm.layer},
    "batch renorm": {"norm": Norm.batch_renorm},
    "dropout": {"dropout": 0.1},
    "residual": {"norm": Norm.layer, "residual": True},
}


@pytest.mark.parametrize("ensemble", [None, 1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_few_inputs_and_the_outputs_are_computed_in_full_precision(kind: str, ensemble: int | None) -> None:
    net, x = MLP(NARROW - 1, 4, hidden=(64,), ensemble=ensemble, **KINDS[kind]), torch.randn(8, NARROW - 1)
    for block in net.blocks or ():
        torch.nn.init.zeros_(block.contract.weight)  # what lies between entry and head may be rounded
        torch.nn.init.zeros_(block.contract.bias)
    assert torch.equal(in_bfloat16(net, x), net(x))  # an entry and a head: nothing is left to be rounded


@pytest.mark.parametrize(("inputs", "hidden"), [(NARROW, (64,)), (3, (64, 64))])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "residual"])
@pytest.mark.parametrize("ensemble", [None, 2])
def test_all_other_products_are_rounded(inputs: int, hidden: tuple[int, ...], kind: str, ensemble: int | None) -> None:
    torch.manual_seed(0)
    net, x = MLP(inputs, 1, hidden=hidden, ensemble=ensemble, **KINDS[kind]), torch.randn(8, inputs)
    low, full = in_bfloat16(net, x), net(x)
    assert low.dtype == torch.float32
    assert not torch.equal(low, full)
    torch.testing.assert_close(low, full, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("hidden", [(64,), (64, 64)])
def test_the_first_member_alone_is_computed_as_among_the_others(hidden: tuple[int, ...]) -> None:
    net, x = MLP(3, 1, hidden=hidden, ensemble=2), torch.randn(8, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = net.first(x)
        torch.testing.assert_close(low, net(x)[0])
    assert torch.allclose(low, net.first(x), rtol=1e-5, atol=1e-6) == (len(hidden) == 1)  # between its ends it rounds


@pytest.mark.parametrize("kind", list(Recurrence))
def test_a_recurrent_network_sees_and_says_in_full_precision(kind: Recurrence) -> None:
    net = Recurrent(Encoder(obs_spec(box(4))), kind, 64, 2)
    obs, carry = torch.randn(3, 5, 4), torch.zeros(5, net.carry_size)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low, _ = net(obs, carry)
    assert low.dtype == torch.float32
    assert not torch.equal(low, low.bfloat16().float())  # it has more digits than bfloat16
    if kind is Recurrence.lstm:  # whose first step has no product but with a state of zeros, and no bias in one
        torch.testing.assert_close(low[0], net(obs, carry)[0][0])


def test_networks_can_be_sent_to_other_processes() -> None:
    assert pickle.dumps(MLP(3, 2, hidden=(8,), ensemble=2))  # local functions among their attributes would forbid it


def test_gradients_of_low_precision_passes_are_those_of_the_full_ones_but_for_rounding() -> None:
    torch.manual_seed(0)
    net, x = MLP(3, 1, hidden=(64, 64), ensemble=2), torch.randn(32, 3)
    low = torch.autograd.grad(in_bfloat16(net, x).square().mean(), list(net.parameters()))
    full = torch.autograd.grad(net(x).square().mean(), list(net.parameters()))
    for one, other in zip(low, full):
        assert one.dtype == torch.float32
        assert float((one - other).norm()) < 0.1 * float(other.norm())  # a factor of 2, or a lost member, is more


def test_bytes_of_images_are_exact_in_bfloat16_before_they_are_scaled() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(1, 4, 4, 4)
    net = NipsCNN("", image(4, 64, 64))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scaled = net.scaled(every)
    assert scaled.dtype == torch.bfloat16
    assert torch.equal(scaled, (every.double() / 255).bfloat16())
    assert net.scaled(every).dtype == torch.float32


def test_channels_move_to_the_end_alike_compiled_and_not() -> None:
    images = torch.randint(256, (2, 3, 5, 7), dtype=torch.uint8)
    compiled = torch.compile(channels_last, backend="eager", fullgraph=True)
    for layout in (images, images.to(memory_format=torch.channels_last)):
        for move in (channels_last, compiled):
            assert torch.equal(move(layout), images.permute(0, 2, 3, 1))
            assert move(layout).is_contiguous()


def test_images_around_zero_are_rounded_after_they_were_shifted() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    net = DrQv2CNN("", image(1, 16, 16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(net.scaled(every), every / 255 - 0.5)
