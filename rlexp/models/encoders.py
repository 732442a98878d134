"""From observations to features: what lies between any observation space and a feed-forward network.

| leaf of the observation          | features                                              |
|----------------------------------|-------------------------------------------------------|
| float box                        | its values, flattened                                 |
| discrete, multi-discrete         | one-hot, one block per variable                       |
| multi-binary                     | 0.0 or 1.0                                            |
| uint8 box that is not an image   | flattened, scaled to [0, 1]                           |
| image: uint8 box, 3 or 4 axes    | the Nature CNN's 512 features (``flat``: as above)    |

A dict observation is the concatenation of its leaves in the order of the spec, but for an action mask.
The channel axis of an image is the shorter of its first and last axis (channels first if they are equal), which holds
for grey, RGB and stacks of grey frames alike; a fourth, leading axis is a stack of frames and joins the channels.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlexp.errors import ConfigError
from rlexp.models.layers import Init, init_weights

if TYPE_CHECKING:
    from rlexp.envs.spec import Leaf, ObsSpec
    from rlexp.types import Obs

_MIN_SIDE = 36  # the smallest image from which the Nature CNN's three convolutions leave one pixel
_CNN_FEATURES = 512


class EncoderKind(Enum):
    """How observations become features."""

    auto = "auto"
    flat = "flat"
    nature_cnn = "nature_cnn"


def is_image(leaf: Leaf) -> bool:
    """Whether a leaf is an image: a uint8 box with three axes, or four for a stack of frames."""
    return leaf.kind == "box" and leaf.dtype == "uint8" and len(leaf.shape) in (3, 4)


def channels_first(shape: tuple[int, ...]) -> bool:
    """Whether the last three axes of an image's shape are (channels, height, width)."""
    return shape[-3] <= shape[-1]


class Encoder(nn.Module):
    """Observations ``[..., *leaf shape]`` to features ``[..., out]``.

    ``identity`` says that the observation (one float vector) already is its features, so that the call can be skipped.
    """

    def __init__(self, obs: ObsSpec, kind: EncoderKind = EncoderKind.auto, init: Init = "torch") -> None:
        super().__init__()
        leaves = obs.seen
        images = [name for name, leaf in leaves.items() if is_image(leaf)]
        if kind is EncoderKind.nature_cnn and not images:
            shapes = ", ".join(f"{name or 'obs'}: {leaf.dtype} {leaf.shape}" for name, leaf in leaves.items())
            raise ConfigError(
                f"model.encoder=nature_cnn needs an image, a uint8 box with 3 axes, but the observation has none "
                f"({shapes}). Use model=auto or model=mlp."
            )
        if kind is EncoderKind.flat:
            images = []
        encoders = [
            NatureCNN(name, leaf, init) if name in images else _vector_encoder(leaf) for name, leaf in leaves.items()
        ]
        self.single = obs.single
        self.identity = obs.single and encoders[0] is None
        self.image_only = len(images) == len(encoders)
        widths = [
            leaf_width(leaf) if not isinstance(encoder, NatureCNN) else encoder.out
            for leaf, encoder in zip(leaves.values(), encoders)
        ]
        self.out = sum(widths)
        self.leaves = nn.ModuleList(encoder for encoder in encoders if encoder is not None)
        self._named = list(zip(leaves, encoders))

    def forward(self, obs: Obs) -> Tensor:
        """The features of a batch of observations with any leading axes."""
        if isinstance(obs, Tensor):
            encoder = self._named[0][1]
            return obs if encoder is None else encoder(obs)
        features = [obs[name] if encoder is None else encoder(obs[name]) for name, encoder in self._named]
        return features[0] if len(features) == 1 else torch.cat(features, -1)


def leaf_width(leaf: Leaf) -> int:
    """The number of features of a leaf that is encoded without a CNN."""
    return sum(leaf.nvec) if leaf.kind in ("discrete", "multi_discrete") else math.prod(leaf.shape)


def _vector_encoder(leaf: Leaf) -> nn.Module | None:
    """The encoder of a leaf that is not seen as an image; None if it is a vector of floats already."""
    if leaf.kind in ("discrete", "multi_discrete"):
        return OneHot(leaf)
    if leaf.dtype == "float32" and len(leaf.shape) == 1:
        return None
    return Flatten(leaf)


class OneHot(nn.Module):
    """Integers ``[...]`` or ``[..., k]`` to one-hot blocks, side by side."""

    variable: Tensor  # [width] the variable a feature belongs to
    value: Tensor  # [width] the value that switches it on

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        variable = torch.repeat_interleave(torch.arange(len(leaf.nvec)), torch.tensor(leaf.nvec))
        self.scalar = not leaf.shape
        self.register_buffer("variable", variable, persistent=False)
        self.register_buffer("value", torch.cat([torch.arange(n) for n in leaf.nvec]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """One-hot features as floats."""
        x = x.unsqueeze(-1) if self.scalar else x.index_select(-1, self.variable)
        return x.eq(self.value).to(torch.float32)


class Flatten(nn.Module):
    """Any array to a vector of floats; bytes are scaled to [0, 1] by their upper bound."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        self.axes = len(leaf.shape)
        self.scale = _byte_scale(leaf)

    def forward(self, x: Tensor) -> Tensor:
        """The flattened, scaled floats."""
        x = x.unsqueeze(-1) if self.axes == 0 else x.flatten(-self.axes)
        return x.to(torch.float32) if self.scale is None else x / self.scale


def _byte_scale(leaf: Leaf) -> float | None:
    if leaf.dtype != "uint8":
        return None
    return leaf.high if leaf.high else 255.0


class NatureCNN(nn.Module):
    """The convolutional network of Mnih et al. (2015) up to its 512 features, for images of at least 36×36."""

    def __init__(self, name: str, leaf: Leaf, init: Init = "torch") -> None:
        super().__init__()
        *stack, first, middle, last = leaf.shape
        self.channels_first = channels_first(leaf.shape)
        self.axes = len(leaf.shape)
        channels, height, width = (first, middle, last) if self.channels_first else (last, first, middle)
        if min(height, width) < _MIN_SIDE:
            raise ConfigError(
                f"The observation{f' {name!r}' if name else ''} is an image of {height}×{width}; "
                f"the Nature CNN needs at least {_MIN_SIDE}×{_MIN_SIDE}. Enlarge it with "
                "env.wrappers=[{_target_: gymnasium.wrappers.ResizeObservation, shape: [84, 84]}], "
                "or use model.encoder=flat."
            )
        self.scale = _byte_scale(leaf) or 255.0
        self.out = _CNN_FEATURES
        self.channels = math.prod(stack) * channels
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(self.channels, 32, 8, stride=4),
                nn.Conv2d(32, 64, 4, stride=2),
                nn.Conv2d(64, 64, 3, stride=1),
            ]
        )
        left_height, left_width = ((((side - 8) // 4 + 1) - 4) // 2 + 1 - 2 for side in (height, width))
        self.linear = nn.Linear(64 * left_height * left_width, self.out)
        gain = math.sqrt(2) if init == "orthogonal" else None
        for layer in (*self.convolutions, self.linear):
            init_weights(layer.weight, layer.bias, init, gain)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """The features of images with any leading axes."""
        batch = x.shape[: -self.axes]
        if not self.channels_first:
            x = x.movedim(-1, -3)
        x = (x / self.scale).reshape(-1, self.channels, *x.shape[-2:])
        for convolution in self.convolutions:
            x = torch.relu(convolution(x))
        return torch.relu(functional.linear(x.flatten(1), self.linear.weight, self.linear.bias)).view(*batch, self.out)
