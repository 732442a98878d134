"""From observations to features: what lies between any observation space and a feed-forward network.

| leaf of the observation          | features                                              |
|----------------------------------|-------------------------------------------------------|
| float box                        | its values, flattened                                 |
| discrete, multi-discrete         | one-hot, one block per variable                       |
| multi-binary                     | 0.0 or 1.0                                            |
| uint8 box that is not an image   | flattened, scaled to [0, 1]                           |
| image: uint8 box, 3 or 4 axes    | those of a CNN (``flat``: as above)                   |

A dict observation is the concatenation of its leaves in the order of the spec, but for an action mask.
The channel axis of an image is the shorter of its first and last axis (channels first if they are equal), which holds
for grey, RGB and stacks of grey frames alike; a fourth, leading axis is a stack of frames and joins the channels.
Images stay bytes until their CNN scales them. The CNNs themselves are in `cnn.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rlexp.envs.spec import EnvSpec, Leaf, ObsSpec
from rlexp.errors import ConfigError
from rlexp.models.cnn import CNN, DrQv2CNN, ImpalaCNN, NatureCNN, NipsCNN, byte_scale
from rlexp.models.layers import Init

if TYPE_CHECKING:
    from rlexp.types import Obs


class EncoderKind(Enum):
    """How observations become features."""

    auto = "auto"
    flat = "flat"
    nature_cnn = "nature_cnn"
    nips_cnn = "nips_cnn"
    impala = "impala"
    drq_v2 = "drq_v2"


CNNS: dict[EncoderKind, type[CNN]] = {
    EncoderKind.nature_cnn: NatureCNN,
    EncoderKind.nips_cnn: NipsCNN,
    EncoderKind.impala: ImpalaCNN,
    EncoderKind.drq_v2: DrQv2CNN,
}


def is_image(leaf: Leaf) -> bool:
    """Whether a leaf is an image: a uint8 box with three axes, or four for a stack of frames."""
    return leaf.kind == "box" and leaf.dtype == "uint8" and len(leaf.shape) in (3, 4)


def feature_spec(spec: EnvSpec, size: int) -> EnvSpec:
    """The spec of an environment whose observations are ``size`` features."""
    return replace(spec, obs=ObsSpec({"": Leaf("box", (size,), "float32")}, single=True))


class Encoder(nn.Module):
    """Observations ``[..., *leaf shape]`` to features ``[..., out]``.

    ``identity`` says that the observation (one float vector) already is its features, so that the call can be skipped.
    ``cnn`` is what ``auto`` means for images.
    """

    def __init__(
        self,
        obs: ObsSpec,
        kind: EncoderKind = EncoderKind.auto,
        init: Init = "torch",
        cnn: EncoderKind = EncoderKind.nature_cnn,
    ) -> None:
        super().__init__()
        leaves = obs.seen
        images = [name for name, leaf in leaves.items() if is_image(leaf)]
        if kind in CNNS and not images:
            shapes = ", ".join(f"{name or 'obs'}: {leaf.dtype} {leaf.shape}" for name, leaf in leaves.items())
            raise ConfigError(
                f"model.encoder={kind.value} needs an image, a uint8 box with 3 axes, but the observation has none "
                f"({shapes}). Use model=auto or model=mlp."
            )
        if kind is EncoderKind.flat:
            images = []
        make = CNNS[cnn if kind is EncoderKind.auto else kind] if images else NatureCNN
        encoders = [
            make(name, leaf, init) if name in images else _vector_encoder(leaf) for name, leaf in leaves.items()
        ]
        self.single = obs.single
        self.identity = obs.single and encoders[0] is None
        self.image_only = len(images) == len(encoders)
        self.dense = make.dense  # the CNN ends with a layer of units, so that a head may follow
        self.learned = bool(images)
        widths = [
            leaf_width(leaf) if not isinstance(encoder, CNN) else encoder.out
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
        self.scale = byte_scale(leaf)

    def forward(self, x: Tensor) -> Tensor:
        """The flattened, scaled floats."""
        x = x.unsqueeze(-1) if self.axes == 0 else x.flatten(-self.axes)
        return x.to(torch.float32) if self.scale is None else x / self.scale
