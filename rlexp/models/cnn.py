"""Convolutional networks from images to features. Bytes are scaled here, as late as possible."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlexp.envs.spec import channels_first
from rlexp.errors import ConfigError
from rlexp.models.layers import Init, init_weights

if TYPE_CHECKING:
    from rlexp.envs.spec import Leaf


def byte_scale(leaf: Leaf) -> float | None:
    """What bytes are divided by; None for other numbers."""
    if leaf.dtype != "uint8":
        return None
    return leaf.high if leaf.high else 255.0


def channels_last(x: Tensor) -> Tensor:
    """[B, C, H, W] to [B, H, W, C], contiguous.

    Eagerly, stacking is twice as fast as .contiguous(); the compiler writes vector code for the transpose of a matrix.
    """
    last = x.movedim(1, -1)
    if last.is_contiguous():
        return last
    if torch.compiler.is_compiling():
        return x.flatten(2).transpose(1, 2).contiguous().unflatten(1, x.shape[2:])
    return torch.stack(x.unbind(1), -1)


class CNN(nn.Module):
    """Images ``[..., *leaf shape]`` to features ``[..., out]``, wherever their channels are."""

    name: ClassVar[str]
    min_side: ClassVar[int]  # of the smallest image that leaves a pixel
    dense: ClassVar[bool] = True  # it ends with a layer of units
    out: int

    def __init__(self, name: str, leaf: Leaf, init: Init = "torch") -> None:
        super().__init__()
        self.init = init
        *stack, first, middle, last = leaf.shape
        self.channels_first = channels_first(leaf.shape)
        self.axes = len(leaf.shape)
        channels, self.height, self.width = (first, middle, last) if self.channels_first else (last, first, middle)
        if min(self.height, self.width) < self.min_side:
            raise ConfigError(
                f"The observation{f' {name!r}' if name else ''} is an image of {self.height}×{self.width}; "
                f"{self.name} needs at least {self.min_side}×{self.min_side}. Enlarge it with "
                "env.resize=84 (Atari: env.size=84), or use model.encoder=flat."
            )
        self.scale = byte_scale(leaf) or 255.0
        self.channels = math.prod(stack) * channels

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] in [0, 1] to [B, out]."""

    def draw_weights(self) -> None:
        """The initial weights of all layers, in their order."""
        gain = math.sqrt(2) if self.init == "orthogonal" else None
        for layer in self.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                init_weights(layer.weight, layer.bias, self.init, gain)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """The features of images with any leading axes."""
        batch = x.shape[: -self.axes]
        if not self.channels_first:
            x = x.movedim(-1, -3)
        x = x.reshape(-1, self.channels, self.height, self.width)
        on_cpu = x.device.type == "cpu"  # where convolutions want the channels last
        x = self.scaled(channels_last(x)).movedim(-1, 1) if on_cpu else self.scaled(x)
        return self.features(x).view(*batch, self.out)

    def scaled(self, x: Tensor) -> Tensor:
        """Bytes as numbers in [0, 1]; under autocast at once of its type, in which all bytes are exact."""
        kind = x.device.type
        return x.to(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32) / self.scale


class NatureCNN(CNN):
    """The convolutional network of Mnih et al. (2015) up to its 512 features, for images of at least 36×36."""

    name = "the Nature CNN"
    min_side = 36
    layers: ClassVar[tuple[tuple[int, int, int], ...]] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # width, kernel, stride
    units: ClassVar[int] = 512

    def __init__(self, name: str, leaf: Leaf, init: Init = "torch") -> None:
        super().__init__(name, leaf, init)
        self.out = self.units
        self.convolutions = nn.ModuleList()
        channels, sides = self.channels, [self.height, self.width]
        for width, kernel, stride in self.layers:
            self.convolutions.append(nn.Conv2d(channels, width, kernel, stride=stride))
            channels, sides = width, [(side - kernel) // stride + 1 for side in sides]
        self.linear = nn.Linear(channels * sides[0] * sides[1], self.out)
        self.draw_weights()

    def features(self, x: Tensor) -> Tensor:
        """The convolutions and a layer of units."""
        for convolution in self.convolutions:
            x = torch.relu(convolution(x))
        return torch.relu(functional.linear(x.flatten(1), self.linear.weight, self.linear.bias))


class NipsCNN(NatureCNN):
    """The network of Mnih et al. (2013, arXiv:1312.5602), 256 features, for images of at least 20×20.

    A third of the Nature CNN's arithmetic; also that of A3C (Mnih et al., 2016) and of PPO's own Atari results.
    """

    name = "the NIPS CNN"
    min_side = 20
    layers = ((16, 8, 4), (32, 4, 2))
    units = 256


class ImpalaCNN(CNN):
    """The residual network of IMPALA (Espeholt et al., 2018, arXiv:1802.01561, figure 3), 256 features.

    Three sections of 16, 32 and 32 channels: a convolution, a maximum over 3×3 with stride 2, two residual blocks.
    """

    name = "the IMPALA CNN"
    min_side = 8

    def __init__(self, name: str, leaf: Leaf, init: Init = "torch") -> None:
        super().__init__(name, leaf, init)
        self.out = 256
        self.sections = nn.ModuleList()
        channels, sides = self.channels, [self.height, self.width]
        for width in (16, 32, 32):
            convolutions = [nn.Conv2d(channels if i == 0 else width, width, 3, padding=1) for i in range(5)]
            self.sections.append(nn.ModuleList(convolutions))
            channels, sides = width, [(side + 1) // 2 for side in sides]
        self.linear = nn.Linear(channels * sides[0] * sides[1], self.out)
        self.draw_weights()

    def features(self, x: Tensor) -> Tensor:
        """The sections, and a layer of 256."""
        for section in self.sections:
            layers: list[nn.Module] = list(section.children())
            x = functional.max_pool2d(layers[0](x), 3, stride=2, padding=1)
            for first, second in (layers[1:3], layers[3:5]):
                x = x + second(torch.relu(first(torch.relu(x))))
        return torch.relu(self.linear(torch.relu(x).flatten(1)))


class DrQv2CNN(CNN):
    """The convolutions of DrQ-v2 (Yarats et al., 2022, arXiv:2107.09645): four of 32 channels, the first with stride 2.

    Its features are the last of them, flattened. Pixels are shifted to [−1/2, 1/2].
    """

    name = "DrQ-v2's CNN"
    min_side = 15
    dense = False

    def __init__(self, name: str, leaf: Leaf, init: Init = "torch") -> None:
        super().__init__(name, leaf, init)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(32 if i else self.channels, 32, 3, stride=1 if i else 2) for i in range(4)
        )
        left_height, left_width = ((side - 3) // 2 + 1 - 6 for side in (self.height, self.width))
        self.out = 32 * left_height * left_width
        self.draw_weights()

    def scaled(self, x: Tensor) -> Tensor:
        """Bytes as numbers in [−1/2, 1/2], rounded only after the shift."""
        return x / self.scale - 0.5

    def features(self, x: Tensor) -> Tensor:
        """Four convolutions."""
        for convolution in self.convolutions:
            x = torch.relu(convolution(x))
        return x.flatten(1)
