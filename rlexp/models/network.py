"""The model component: from the spaces of an environment to the networks an algorithm asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlexp.config.component import component
from rlexp.errors import ConfigError
from rlexp.machine import check_fits
from rlexp.models.encoders import Encoder, EncoderKind
from rlexp.models.layers import MLP, Activation, Init, Norm

if TYPE_CHECKING:
    from rlexp.envs.spec import EnvSpec
    from rlexp.types import Obs


@dataclass(frozen=True)
class NetDefaults:
    """What an algorithm's paper uses for one of its networks, wherever the model's settings are null."""

    hidden: tuple[int, ...] = (256, 256)
    activation: Activation = Activation.relu
    norm: Norm = Norm.none
    init: Init = "torch"
    hidden_gain: float = math.sqrt(2)  # of the orthogonal initialisation of hidden layers


class Net(MLP):
    """An encoder and an MLP behind it: ``net(obs)`` or ``net(obs, action)``.

    ``[..., out]`` for observations with any leading axes; with ``ensemble=n``, observations ``[B, ...]`` and actions
    ``[B, A]`` or ``[n, B, A]`` give ``[n, B, out]``. The members of an ensemble share the encoder (which has parameters
    only for images) and nothing else.
    """

    def __init__(self, encoder: Encoder, out: int | None, *, action_dim: int = 0, **settings: object) -> None:
        super().__init__(encoder.out + action_dim, out, **settings)  # type: ignore[arg-type]
        self.encoder = None if encoder.identity else encoder
        self.action_dim = action_dim

    def forward(self, obs: Obs, action: Tensor | None = None, noise: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Outputs for observations, and for actions where the network was built with ``action_dim``."""
        x: Tensor = obs if self.encoder is None else self.encoder(obs)  # type: ignore[assignment]
        if action is not None:
            if action.dim() > x.dim():
                x = x.expand(*action.shape[:-1], x.shape[-1])
            x = torch.cat((x, action), -1)
        out = super().forward(x, noise)
        return out.float() if out.dtype is torch.bfloat16 else out  # losses stay in full precision under autocast


@component("model", "network")
@dataclass(eq=False, kw_only=True)
class Network:
    """Feed-forward networks for every observation space; null settings are the algorithm's own."""

    encoder: EncoderKind = (
        EncoderKind.auto
    )  # how observations become features; auto: a CNN for images, flat for the rest
    hidden: tuple[int, ...] | None = (
        None  # widths of the hidden layers; null: the algorithm's own (none behind a lone CNN)
    )
    activation: Activation | None = None  # relu, tanh, elu, gelu or silu; null: the algorithm's own
    norm: Norm | None = None  # LayerNorm before (layer) or after (layer_after) activations; null: the algorithm's own

    def __post_init__(self) -> None:
        if not all(type(width) is int and 1 <= width < 2**31 for width in self.hidden or ()):
            raise ConfigError(f"model.hidden must be a list of widths of at least 1, not {list(self.hidden or ())}.")

    def build(
        self,
        spec: EnvSpec,
        out: int | None,
        *,
        defaults: NetDefaults,
        action_dim: int = 0,
        ensemble: int | None = None,
        out_gain: float | None = None,
        noisy: float | None = None,
    ) -> Net:
        """A network with ``out`` outputs; None: the features of its last hidden layer, ``net.out`` of them.

        ``action_dim`` is the width of the action that ``net(obs, action)`` gets; ``out_gain`` scales the initial
        weights of the output layer; ``noisy`` is the initial scale of noise on the weights (not those of a CNN), see
        :class:`MLP`. Weights are drawn from torch's global generator.
        """
        encoder = Encoder(spec.obs, self.encoder, defaults.init)
        hidden = self.hidden
        if hidden is None:
            # The CNN ends with a layer of 512 of its own (Mnih et al., 2015); an action still has to be mixed in.
            hidden = () if encoder.image_only and not action_dim else defaults.hidden
        widths = [encoder.out + action_dim, *hidden, out or 0]
        numbers = (ensemble or 1) * sum(a * b for a, b in pairwise(widths))
        numbers *= 1 if noisy is None else 2
        check_fits(16 * numbers, f"A network with model.hidden={list(hidden)}")  # weights, gradients, two moments
        return Net(
            encoder,
            out,
            action_dim=action_dim,
            hidden=tuple(hidden),
            activation=self.activation or defaults.activation,
            norm=self.norm or defaults.norm,
            init=defaults.init,
            hidden_gain=defaults.hidden_gain,
            out_gain=out_gain,
            ensemble=ensemble,
            noisy=noisy,
        )
