"""Networks: what turns observations into the numbers an algorithm needs. No environments, files or loggers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import nn

from rlexp.models.distributions import (
    Bernoulli,
    Categorical,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    PolicyHead,
    SquashedGaussian,
    policy_distribution,
)
from rlexp.models.encoders import Encoder, EncoderKind
from rlexp.models.layers import MLP, Activation, Norm, linear
from rlexp.models.network import Net, NetDefaults, Network
from rlexp.models.recurrent import Recurrence, Recurrent

if TYPE_CHECKING:
    from rlexp.envs.spec import EnvSpec


class Model(Protocol):
    """What an algorithm needs of a model: this one method. :class:`Network` is ours; a user's own is any class with it.

    The result is called as ``net(obs)``, or ``net(obs, action)`` if ``action_dim > 0``, and gives ``[B, out]``, or
    ``[n, B, out]`` with ``ensemble=n``. With ``out=None`` it gives features and says their number as ``net.out``.
    An algorithm with noisy weights says ``noisy=σ₀`` too and calls ``net(obs, noise=…)`` with ``net.noise_size`` random
    numbers; without them the weights are their means. A model that is not used so needs no such argument.
    Its forward must not read values back from the device, so that an update can be compiled as one graph.
    """

    def build(
        self,
        spec: EnvSpec,
        out: int | None,
        *,
        defaults: NetDefaults,
        action_dim: int = 0,
        ensemble: int | None = None,
        out_gain: float | None = None,
    ) -> nn.Module:
        """A fresh network with its own parameters; ``defaults`` holds for whatever the model does not set itself."""
        ...


__all__ = [
    "MLP",
    "Activation",
    "Bernoulli",
    "Categorical",
    "DiagGaussian",
    "Distribution",
    "Encoder",
    "EncoderKind",
    "Model",
    "MultiCategorical",
    "Net",
    "NetDefaults",
    "Network",
    "Norm",
    "PolicyHead",
    "Recurrence",
    "Recurrent",
    "SquashedGaussian",
    "linear",
    "policy_distribution",
]
