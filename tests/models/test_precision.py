"""What autocast leaves in full precision: what a network sees, and what it says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlexp.envs.spec import Leaf
from rlexp.models.cnn import NipsCNN, channels_last
from rlexp.models.layers import MLP, NARROW


def in_bfloat16(net: MLP, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net(x)


@pytest.mark.parametrize("ensemble", [None, 1, 3])
def test_few_inputs_and_the_outputs_are_computed_in_full_precision(ensemble: int | None) -> None:
    net, x = MLP(NARROW - 1, 4, hidden=(64,), ensemble=ensemble), torch.randn(8, NARROW - 1)
    assert torch.equal(in_bfloat16(net, x), net(x))  # an entry and a head: nothing is left to be rounded
    if ensemble is not None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(net.first(x), net(x)[0])


@pytest.mark.parametrize(("inputs", "hidden"), [(NARROW, (64,)), (3, (64, 64))])
@pytest.mark.parametrize("ensemble", [None, 2])
def test_all_other_products_are_rounded_but_added_up_in_full(
    inputs: int, hidden: tuple[int, ...], ensemble: int | None
) -> None:
    net, x = MLP(inputs, 1, hidden=hidden, ensemble=ensemble), torch.randn(8, inputs)
    low, full = in_bfloat16(net, x), net(x)
    assert low.dtype == torch.float32
    assert not torch.equal(low, full)
    torch.testing.assert_close(low, full, rtol=0.02, atol=0.02)


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
    net = NipsCNN("", Leaf("box", (4, 64, 64), "uint8", high=255.0))
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
