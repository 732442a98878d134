"""What DrQ-v2 adds to its parents: numbers worked out by hand, and a padding written anew."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlexp.algos.drq_v2 import drq_v2_action, drq_v2_actor_loss, drq_v2_shift


@pytest.mark.parametrize(("shape", "axes"), [((3, 6, 7), (-2, -1)), ((6, 7, 3), (-3, -2)), ((2, 6, 7, 1), (-3, -2))])
def test_a_shift_pads_with_the_border_and_cuts_out(shape: tuple[int, ...], axes: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    image, shift = rng.integers(0, 256, (5, *shape), np.uint8), rng.integers(0, 5, (5, 2))
    shift[0] = 2  # not moved
    moved = drq_v2_shift(torch.from_numpy(image), torch.from_numpy(shift), 2, axes).numpy()
    assert moved.dtype == np.uint8
    np.testing.assert_array_equal(moved[0], image[0])
    rows, columns = (axis % (len(shape) + 1) - 1 for axis in axes)
    width = [(2, 2) if axis in (rows, columns) else (0, 0) for axis in range(len(shape))]
    for one, (top, left), expected in zip(image, shift, moved):
        padded = np.moveaxis(np.pad(one, width, mode="edge"), (rows, columns), (0, 1))
        cut = padded[top : top + 6, left : left + 7]
        np.testing.assert_array_equal(np.moveaxis(cut, (0, 1), (rows, columns)), expected)


def test_noise_is_clipped_before_the_action_and_gradients_pass_the_bounds() -> None:
    mean = torch.tensor([0.0, 0.0, 0.9, -0.9], requires_grad=True)
    action = drq_v2_action(mean, torch.tensor([0.2, -2.0, 1.0, -1.0]), 0.5, 0.3)
    torch.testing.assert_close(action, torch.tensor([0.1, -0.3, 1.0, -1.0]))
    action.sum().backward()
    torch.testing.assert_close(mean.grad, torch.ones(4))


def test_the_actor_follows_the_smaller_critic() -> None:
    assert drq_v2_actor_loss(torch.tensor([[1.0, 4.0], [3.0, 2.0]])).item() == -1.5
