"""The model component: from the spaces of an environment to the networks an algorithm asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlexp.config.component import component
from rlexp.config.fields import Fraction, Natural, NonNegative
from rlexp.errors import ConfigError
from rlexp.machine import check_fits
from rlexp.models.encoders import Encoder, EncoderKind
from rlexp.models.layers import EXPANSION, MLP, Activation, Init, Layer, Norm
from rlexp.optim import set_weight_decay

if TYPE_CHECKING:
    from rlexp.envs.spec import EnvSpec
    from rlexp.types import Obs

DECAYING = (Layer, nn.Linear, nn.Conv2d)  # whose weights decay; biases and normalisations never do


@dataclass(frozen=True)
class NetDefaults:
    """What an algorithm's paper uses for one of its networks, wherever the model's settings are null."""

    hidden: tuple[int, ...] = (256, 256)
    activation: Activation = Activation.relu
    norm: Norm = Norm.none
    init: Init = "torch"
    hidden_gain: float = math.sqrt(2)  # of the orthogonal initialisation of hidden layers
    critic: bool = False  # it judges states or actions: the model's settings for critics hold
    cnn: EncoderKind = EncoderKind.nature_cnn  # what sees images, unless the model says
    features: bool = False  # its observations are features already: the model's encoder is not meant for them
    renorm_warmup: int = 0  # training passes in which BatchRenorm is plain BatchNorm

    def of_critic(self) -> NetDefaults:
        """The same for a network that judges states or actions."""
        return replace(self, critic=True)


class Net(MLP):
    """An encoder and an MLP behind it: ``net(obs)`` or ``net(obs, action)``.

    ``[..., out]`` for observations with any leading axes; with ``ensemble=n``, observations ``[B, ...]`` and actions
    ``[B, A]`` or ``[n, B, A]`` give ``[n, B, out]``. The members of an ensemble share the encoder (which has parameters
    only for images) and nothing else.

    A ``critic`` whose actions have a gradient is being asked in which direction they get better, as where a policy
    improves by it: such a pass does not train its BatchRenorm.
    """

    def __init__(
        self, encoder: Encoder, out: int | None, *, action_dim: int = 0, critic: bool = False, **settings: object
    ) -> None:
        super().__init__(encoder.out + action_dim, out, **settings)  # type: ignore[arg-type]
        self.critic = critic
        self.encoder = None if encoder.identity else encoder
        self.action_dim = action_dim
        self._lender: tuple[
            Net, ...
        ] = ()  # whose encoder this network uses; a tuple, so that it is no part of this one

    def borrow_encoder(self, lender: Net) -> None:
        """See through the encoder of another network, which keeps it as its own, from now on."""
        self.encoder, self._lender = None, (lender,)

    def encode(self, obs: Obs) -> Tensor:
        """The features of observations."""
        if self._lender:
            return self._lender[0].encode(obs)
        return obs if self.encoder is None else self.encoder(obs)  # type: ignore[return-value]

    def forward(  # type: ignore[override]
        self,
        obs: Obs,
        action: Tensor | None = None,
        noise: Tensor | None = None,
        dropped: Tensor | None = None,
        counted: Tensor | None = None,
    ) -> Tensor:
        """Outputs for observations, and for actions where the network was built with ``action_dim``.

        ``dropped`` [B] numbers the rows for Dropout; ``counted`` [B], 1 or 0, says which ones BatchRenorm learns from.
        """
        return self.decode(self.encode(obs), action, noise, dropped, counted)

    def decode(
        self,
        x: Tensor,
        action: Tensor | None = None,
        noise: Tensor | None = None,
        dropped: Tensor | None = None,
        counted: Tensor | None = None,
    ) -> Tensor:
        """The same for features."""
        frozen = self.critic and action is not None and action.requires_grad
        out = super().forward(self._inputs(x, action), noise, dropped, counted, frozen)
        return out.float() if out.dtype is torch.bfloat16 else out  # without a head, under autocast

    def _inputs(self, x: Tensor, action: Tensor | None) -> Tensor:
        """Features and actions side by side."""
        if action is None:
            return x
        if action.dim() > x.dim():
            x = x.expand(*action.shape[:-1], x.shape[-1])
        return torch.cat((x, action), -1)

    def first_of(self, obs: Obs, action: Tensor) -> Tensor:
        """What the first member of an ensemble says, ``[B, out]``."""
        if not self._plain:
            return self(obs, action)[0]  # type: ignore[no-any-return]
        return self.first(self._inputs(self.encode(obs), action))


@component("model", "network")
@dataclass(eq=False, kw_only=True)
class Network:
    """Feed-forward networks for every observation space; null settings are the algorithm's own."""

    encoder: EncoderKind = (
        EncoderKind.auto
    )  # how observations become features; auto: a CNN for images, flat for the rest
    shared_encoder: bool = False  # PPO, A2C: actor and critic see images through one CNN, trained by both
    hidden: tuple[int, ...] | None = (
        None  # widths of the hidden layers; null: the algorithm's own (none behind a lone CNN)
    )
    activation: Activation | None = None  # relu, tanh, elu, gelu or silu; null: the algorithm's own
    norm: Norm | None = None  # none, layer (before activations), layer_after or batch_renorm; null: the algorithm's own
    residual: bool = False  # hidden layers as residual blocks with LayerNorm, one for each of `hidden` (SimBa)
    dropout: Fraction = 0.0  # share of hidden units dropped in updates, and by PPO, A2C and TRPO where they explore
    weight_decay: NonNegative = 0.0  # share of the weights, times the learning rate, taken off at each optimizer step
    critic_hidden: tuple[int, ...] | None = None  # hidden, of critics alone; null: as the other networks
    critic_norm: Norm | None = None  # norm, of critics alone; null: as the other networks
    critic_dropout: Fraction | None = None  # dropout, of critics alone; null: as the other networks
    critic_weight_decay: NonNegative | None = None  # weight_decay, of critics alone; null: as the other networks
    renorm_momentum: Fraction | None = None  # how slowly BatchRenorm's averages follow; null: 0.99
    renorm_warmup: Natural | None = (
        None  # passes in which BatchRenorm is plain BatchNorm; null: the algorithm's own (CrossQ 100_000)
    )

    def __post_init__(self) -> None:
        self._used: set[str] = set()  # kinds of settings that some network was built with: "critic_", "renorm_"
        for name in ("hidden", "critic_hidden"):
            widths = getattr(self, name) or ()
            if not all(type(width) is int and 1 <= width < 2**31 for width in widths):
                raise ConfigError(f"model.{name} must be a list of widths of at least 1, not {list(widths)}.")
        for name in ("dropout", "critic_dropout"):
            if getattr(self, name) == 1:
                raise ConfigError(f"model.{name}=1 would drop everything. It must be less than 1.")

    def _of(self, name: str, critic: bool) -> Any:
        """A setting as it holds for critics, or for the other networks."""
        own = getattr(self, f"critic_{name}") if critic else None
        return getattr(self, name) if own is None else own

    def check_used(self, algo: str) -> None:
        """Refuse settings of critics and of BatchRenorm if the networks of an algorithm have none."""
        given = [name for name in self.__dataclass_fields__ if getattr(self, name) is not None]
        for name in given:
            if name.startswith("critic_") and "critic_" not in self._used:
                raise ConfigError(
                    f"model.{name} has no effect: {algo} has no critics apart from its other networks. "
                    f"Use model.{name.removeprefix('critic_')}, which holds for all."
                )
        if self.shared_encoder and "shared_encoder" not in self._used:
            raise ConfigError(
                f"model.shared_encoder has no effect: {algo} has no actor and critic that could share a CNN, or there "
                "are no images to see. It is for PPO and A2C on images."
            )
        for name in given:
            if name.startswith("renorm_") and "renorm_" not in self._used:
                raise ConfigError(f"model.{name} has no effect: no network of {algo} has BatchRenorm.")

    def build_encoder(self, spec: EnvSpec, defaults: NetDefaults) -> Encoder:
        """What turns observations into features, alone; of several networks, so that settings of critics spare it."""
        encoder = Encoder(spec.obs, self.encoder, defaults.init, defaults.cnn)
        _let_decay(encoder, self.weight_decay)
        return encoder

    def share_encoder(self, owner: Any, *others: Any) -> bool:
        """Let networks see through one encoder, if that is wanted and there is a CNN; whether they do."""
        if not self.shared_encoder or owner.encoder is None or not owner.encoder.learned:
            return False
        self._used.add("shared_encoder")
        for other in others:
            other.borrow_encoder(owner)
        return True

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
        critic = defaults.critic
        if critic:
            self._used.add("critic_")
        kind = EncoderKind.flat if defaults.features else self.encoder
        encoder = Encoder(spec.obs, kind, defaults.init, defaults.cnn)
        hidden = self._of("hidden", critic)
        if hidden is None:
            # The CNN ends with a layer of 512 of its own (Mnih et al., 2015); an action still has to be mixed in.
            enough = encoder.image_only and encoder.dense and not action_dim and not self.residual
            hidden = () if enough else defaults.hidden
        if not hidden and (self._of("dropout", critic) or self._of("norm", critic) not in (None, Norm.none)):
            raise ConfigError(
                "model.dropout and model.norm have no effect on a network without hidden layers, as it is behind a "
                "lone CNN. Set model.hidden=[512] for one."
            )
        norm = self._norm(defaults, hidden, noisy)
        if norm is Norm.batch_renorm:
            self._used.add("renorm_")
        widths = [encoder.out + action_dim, *hidden, out or 0]
        numbers = (ensemble or 1) * sum(a * b for a, b in pairwise(widths))
        numbers *= 2 * EXPANSION if self.residual else 1 if noisy is None else 2
        check_fits(16 * numbers, f"A network with model.hidden={list(hidden)}")  # weights, gradients, two moments
        net = Net(
            encoder,
            out,
            action_dim=action_dim,
            critic=critic,
            hidden=tuple(hidden),
            activation=self.activation or defaults.activation,
            norm=norm,
            init=defaults.init,
            hidden_gain=defaults.hidden_gain,
            out_gain=out_gain,
            ensemble=ensemble,
            noisy=noisy,
            dropout=self._of("dropout", critic),
            residual=self.residual,
            renorm_momentum=0.99 if self.renorm_momentum is None else self.renorm_momentum,
            renorm_warmup=defaults.renorm_warmup if self.renorm_warmup is None else self.renorm_warmup,
        )
        _let_decay(net, self._of("weight_decay", critic))
        return net

    def _norm(self, defaults: NetDefaults, hidden: Sequence[int], noisy: float | None) -> Norm:
        """The normalisation of a network; refuses what does not go together."""
        given: Norm | None = self._of("norm", defaults.critic)
        if self.residual:
            if len(set(hidden)) != 1:
                raise ConfigError(f"model.residual needs blocks of one width, but model.hidden={list(hidden)}.")
            if given not in (None, Norm.layer):
                raise ConfigError(f"model.residual has LayerNorm in its blocks: drop model.norm={given.value}.")
            if noisy is not None:
                raise ConfigError("model.residual has no noisy weights. Use algo.noisy=false.")
            return Norm.layer
        return given or defaults.norm


def _let_decay(net: nn.Module, rate: float) -> None:
    """Mark the weights of a network, unless nothing is to be taken off them."""
    if rate:
        set_weight_decay((module.weight for module in net.modules() if isinstance(module, DECAYING)), rate)
