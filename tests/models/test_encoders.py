from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from rlexp.envs.spec import Leaf, channels_first
from rlexp.errors import ConfigError
from rlexp.models.encoders import Encoder, EncoderKind
from tests.models.specs import box, discrete, image, multi_discrete, obs_spec


def encode(leaf: Leaf, x: torch.Tensor, kind: EncoderKind = EncoderKind.auto) -> torch.Tensor:
    encoder = Encoder(obs_spec(leaf), kind)
    features = encoder(x)
    assert features.shape == (*x.shape[: x.dim() - len(leaf.shape)], encoder.out)
    assert features.dtype == torch.float32
    return features


def test_float_arrays_are_flattened() -> None:
    vector = torch.randn(2, 3)
    assert encode(box(3), vector) is vector
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(encode(box(3, 4), x), x.view(2, 12))
    torch.testing.assert_close(encode(box(), torch.tensor([1.0, 2.0])), torch.tensor([[1.0], [2.0]]))


def test_integers_become_one_hot() -> None:
    torch.testing.assert_close(encode(discrete(3), torch.tensor([2, 0])), torch.tensor([[0.0, 0, 1], [1, 0, 0]]))
    expected = torch.tensor([[0.0, 1, 0, 0, 1], [1, 0, 1, 0, 0]])
    torch.testing.assert_close(encode(multi_discrete(2, 3), torch.tensor([[1, 2], [0, 0]])), expected)
    single = encode(multi_discrete(4), torch.tensor([[3], [1]]))
    torch.testing.assert_close(single, torch.tensor([[0.0, 0, 0, 1], [0, 1, 0, 0]]))


def test_bits_become_floats_and_bytes_are_scaled_by_their_bound() -> None:
    bits = Leaf("multi_binary", (3,), "int8")
    torch.testing.assert_close(encode(bits, torch.tensor([[1, 0, 1]], dtype=torch.int8)), torch.tensor([[1.0, 0, 1]]))
    ram = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    torch.testing.assert_close(encode(image(3), ram), torch.tensor([[0, 0.2, 1.0]]))
    board = Leaf("box", (3,), "uint8", low=0.0, high=2.0)
    torch.testing.assert_close(encode(board, torch.tensor([[0, 1, 2]], dtype=torch.uint8)), torch.tensor([[0, 0.5, 1]]))
    unknown = Leaf("box", (1,), "uint8")
    torch.testing.assert_close(encode(unknown, torch.tensor([[51]], dtype=torch.uint8)), torch.tensor([[0.2]]))


def test_a_dict_is_the_concatenation_of_its_leaves_in_the_order_of_the_spec() -> None:
    encoder = Encoder(obs_spec(z=box(2), a=discrete(2)))
    obs = {"a": torch.tensor([1]), "z": torch.tensor([[3.0, 4.0]])}
    torch.testing.assert_close(encoder(obs), torch.tensor([[3.0, 4, 0, 1]]))
    assert not encoder.identity
    alone = Encoder(obs_spec(z=box(2)))
    torch.testing.assert_close(alone({"z": obs["z"]}), obs["z"])


@pytest.mark.parametrize(
    ("shape", "first"),
    [((3, 96, 96), True), ((96, 96, 3), False), ((4, 84, 84), True), ((84, 84, 4), False), ((84, 84, 1), False)],
)
def test_the_channel_axis_is_the_shorter_of_first_and_last(shape: tuple[int, ...], first: bool) -> None:
    assert channels_first(shape) is first


def naive_cnn(cnn: torch.nn.Module, x: torch.Tensor, strides: tuple[int, ...] = (4, 2, 1)) -> torch.Tensor:
    """The published network, on bytes [B, C, H, W]."""
    x = x.float() / 255
    for convolution, stride in zip(cnn.convolutions, strides, strict=True):
        x = functional.conv2d(x, convolution.weight, convolution.bias, stride=stride).relu()
    return cnn.linear(x.reshape(len(x), -1)).relu()


def test_images_pass_the_nature_cnn_wherever_their_channels_are() -> None:
    x = torch.randint(256, (2, 3, 40, 52), dtype=torch.uint8)
    first, last = Encoder(obs_spec(image(3, 40, 52))), Encoder(obs_spec(image(40, 52, 3)))
    last.load_state_dict(first.state_dict())
    assert first.image_only
    assert [tuple(c.weight.shape) for c in first.leaves[0].convolutions] == [
        (32, 3, 8, 8),
        (64, 32, 4, 4),
        (64, 64, 3, 3),
    ]
    expected = naive_cnn(first.leaves[0], x)
    assert expected.shape == (2, 512)
    torch.testing.assert_close(first(x), expected)
    torch.testing.assert_close(last(x.permute(0, 2, 3, 1).contiguous()), expected)


def test_the_nips_cnn_is_the_smaller_network_of_2013() -> None:
    x = torch.randint(256, (2, 4, 20, 84), dtype=torch.uint8)
    encoder = Encoder(obs_spec(image(4, 20, 84)), EncoderKind.nips_cnn)
    cnn = encoder.leaves[0]
    assert [tuple(c.weight.shape) for c in cnn.convolutions] == [(16, 4, 8, 8), (32, 16, 4, 4)]
    assert cnn.linear.weight.shape == (256, 32 * 1 * 9)
    torch.testing.assert_close(encoder(x), naive_cnn(cnn, x, (4, 2)))


@pytest.mark.parametrize("shape", [(4, 40, 52, 3), (4, 3, 40, 52)])
def test_a_stack_of_frames_joins_the_channels(shape: tuple[int, ...]) -> None:
    x = torch.randint(256, (2, *shape), dtype=torch.uint8)
    encoder = Encoder(obs_spec(image(*shape)))
    frames = [frame if frame.shape[1] == 3 else frame.permute(0, 3, 1, 2) for frame in x.unbind(1)]
    torch.testing.assert_close(encoder(x), naive_cnn(encoder.leaves[0], torch.cat(frames, 1)))


def test_images_with_leading_axes_and_beside_vectors() -> None:
    encoder = Encoder(obs_spec(camera=image(36, 36, 1), speed=box(2)))
    obs = {"camera": torch.randint(256, (3, 2, 36, 36, 1), dtype=torch.uint8), "speed": torch.randn(3, 2, 2)}
    features = encoder(obs)
    assert features.shape == (3, 2, encoder.out) == (3, 2, 514)
    flat = {name: leaf.flatten(0, 1) for name, leaf in obs.items()}
    torch.testing.assert_close(features.flatten(0, 1), encoder(flat))


def test_flat_flattens_images_too() -> None:
    x = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(encode(image(3, 8, 8), x, EncoderKind.flat), x.view(2, -1).float() / 255)


def test_too_small_an_image_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match=r"35×40.*36×36.*env.resize=84.*encoder=flat"):
        Encoder(obs_spec(image(3, 35, 40)))
    with pytest.raises(ConfigError, match="'camera'"):
        Encoder(obs_spec(camera=image(7, 7, 3)))
    assert Encoder(obs_spec(image(3, 36, 36)))(torch.zeros(1, 3, 36, 36, dtype=torch.uint8)).shape == (1, 512)


def test_a_cnn_without_an_image_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"nature_cnn.*none.*float32 \(4,\)"):
        Encoder(obs_spec(box(4)), EncoderKind.nature_cnn)


def test_orthogonal_initialisation_reaches_the_convolutions() -> None:
    weight = Encoder(obs_spec(image(3, 36, 36)), init="orthogonal").leaves[0].convolutions[0].weight.flatten(1)
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(32), rtol=1e-4, atol=1e-4)


def test_impala_is_three_sections_of_residual_blocks() -> None:
    x = torch.randint(256, (2, 4, 20, 18), dtype=torch.uint8)
    encoder = Encoder(obs_spec(image(4, 20, 18)), EncoderKind.impala)
    cnn = encoder.leaves[0]
    y = x.float() / 255
    for section in cnn.sections:
        entry, a, b, c, d = section
        y = functional.max_pool2d(entry(y), 3, 2, 1)
        y = y + b(a(y.relu()).relu())
        y = y + d(c(y.relu()).relu())
    assert y.shape == (2, 32, 3, 3)
    torch.testing.assert_close(encoder(x), cnn.linear(y.relu().flatten(1)).relu())
    assert [section[0].out_channels for section in cnn.sections] == [16, 32, 32]
    assert encoder.out == 256


def test_drq_v2_is_four_convolutions_without_a_layer_behind() -> None:
    x = torch.randint(256, (2, 84, 84, 9), dtype=torch.uint8)
    encoder = Encoder(obs_spec(image(84, 84, 9)), EncoderKind.auto, "torch", EncoderKind.drq_v2)
    y = x.permute(0, 3, 1, 2).float() / 255 - 0.5
    for i, layer in enumerate(encoder.leaves[0].convolutions):
        y = functional.conv2d(y, layer.weight, layer.bias, stride=1 if i else 2).relu()
    assert encoder.out == 39200
    torch.testing.assert_close(encoder(x), y.flatten(1))
