"""Feed-forward layers: one network, or an ensemble of networks computed as one batched product per layer.

All forward code here traces as one graph and does as little as possible per call: acting on a handful of rows is
bound by the number of operations, not by arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlexp.models.regularization import BatchRenorm, Dropout, LayerNorm


class Activation(Enum):
    """The nonlinearity behind each hidden layer."""

    relu = "relu"
    tanh = "tanh"
    elu = "elu"
    gelu = "gelu"
    silu = "silu"


class Norm(Enum):
    """Normalisation of each hidden layer: before the activation (``layer``) or after it (``layer_after``).

    ``batch_renorm`` stands after it too, and before the first layer: every linear layer gets normalised inputs.
    """

    none = "none"
    layer = "layer"
    layer_after = "layer_after"
    batch_renorm = "batch_renorm"


LAYER_NORMS = (Norm.layer, Norm.layer_after)
EXPANSION = 4  # how much wider than a residual network its blocks are inside


Init = Literal["orthogonal", "torch"]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.relu: torch.relu,
    Activation.tanh: torch.tanh,
    Activation.elu: functional.elu,
    Activation.gelu: functional.gelu,
    Activation.silu: functional.silu,
}


@torch.no_grad()
def init_weights(weight: Tensor, bias: Tensor, init: Init, gain: float | None = None) -> None:
    """Initialise the weights of a linear layer ``[out, in]`` or convolution ``[out, in, h, w]`` in place.

    ``orthogonal``: rows (or columns) orthogonal with norm ``gain`` (1 if None), bias zero.
    ``torch``: what ``nn.Linear`` and ``nn.Conv2d`` do, U(−1/√in, 1/√in) for both, times ``gain`` (1 if None).
    """
    gain = 1.0 if gain is None else gain
    if init == "orthogonal":
        nn.init.orthogonal_(weight, gain)
        nn.init.zeros_(bias)
    else:
        bound = 1 / math.sqrt(weight[0].numel())
        weight.uniform_(-bound, bound).mul_(gain)
        bias.uniform_(-bound, bound).mul_(gain)


def linear(inputs: int, outputs: int, init: Init = "torch", gain: float | None = None) -> nn.Linear:
    """An ``nn.Linear`` with the initialisation of :func:`init_weights`: a head of one's own."""
    layer = nn.Linear(inputs, outputs)
    init_weights(layer.weight, layer.bias, init, gain)
    return layer


class Layer(nn.Module):
    """The parameters of one linear layer of an :class:`MLP`, and of the normalisation that follows it."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        ensemble: int | None,
        init: Init,
        gain: float | None,
        *,
        norm: bool = False,
        head: bool = False,
        noisy: float | None = None,
    ) -> None:
        super().__init__()
        members = []
        for _ in range(ensemble or 1):
            weight, bias = torch.empty(outputs, inputs), torch.empty(outputs)
            init_weights(weight, bias, init, gain)
            members.append((weight, bias))
        if ensemble is None:
            self.weight, self.bias = (nn.Parameter(tensor) for tensor in members[0])  # [out, in], [out]
            shape: tuple[int, ...] = (outputs,)
        else:
            # [n, out, in] for a head, [n, in, out] for a hidden layer: what each one's product reads fastest
            self.weight = nn.Parameter(torch.stack([weight if head else weight.T for weight, _ in members]))
            self.bias = nn.Parameter(torch.stack([bias[None] for _, bias in members]))  # [n, 1, out]
            shape = (ensemble, 1, outputs)
        self.norm_weight = nn.Parameter(torch.ones(shape)) if norm else None
        self.norm_bias = nn.Parameter(torch.zeros(shape)) if norm else None
        if noisy is not None:
            scale = noisy / math.sqrt(inputs)
            self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), scale))
            self.bias_sigma = nn.Parameter(torch.full((outputs,), scale))

    def perturbed(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Weight and bias with factorised noise: ``noise`` holds one number for each input and output."""
        outputs, inputs = self.weight.shape
        into, out_of = noise.split((inputs, outputs))
        weight = torch.addcmul(self.weight, self.weight_sigma, torch.outer(out_of, into))
        return weight, torch.addcmul(self.bias, self.bias_sigma, out_of)


class ResidualBlock(nn.Module):
    """x + W₂ act(W₁ LayerNorm(x)), four times as wide between W₁ and W₂; dropout stands behind W₁."""

    def __init__(
        self, width: int, ensemble: int | None, init: Init, gain: float | None, dropout: float, place: int = 0
    ) -> None:
        super().__init__()
        self.norm = LayerNorm(width, ensemble)
        self.expand = Layer(width, EXPANSION * width, ensemble, init, gain)
        self.contract = Layer(EXPANSION * width, width, ensemble, init, gain)
        self.dropout = Dropout(dropout, place) if dropout else None

    def forward(
        self,
        x: Tensor,
        linear: Callable[..., Tensor],
        activation: Callable[[Tensor], Tensor],
        dropped: Tensor | None = None,
    ) -> Tensor:
        """``[..., width] -> [..., width]``, with the layers computed by ``linear``."""
        inner = linear(self.norm(x), self.expand.weight, self.expand.bias)
        inner = activation(inner if self.dropout is None else self.dropout(inner, dropped))
        return x + linear(inner, self.contract.weight, self.contract.bias)


Linear = Callable[..., Tensor]  # of input, weight and bias

NARROW = 32  # fewer inputs are multiplied in full precision also under autocast, as outputs always are


def in_full_precision(linear: Linear, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A product in float32, whatever autocast says: of what a network sees and says, which 8 bits would blur."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return linear(x, weight, bias)
    with torch.autocast(kind, enabled=False):
        return linear(x.float(), weight, bias)


def _batched_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias, x, weight)


def _first_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The product of the first member of an ensemble."""
    return torch.addmm(bias[0, 0], x, weight[0])


def _first_head(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.linear(x, weight[0], bias[0, 0])


def _batched_head(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[n, B, in] -> [n, B, out] for few outputs, where ``baddbmm(bias, x, weight)`` and its gradient are slow on a CPU.

    Measured with gradients for two members, 256 units, 256 rows: four times faster with one output, twice with six.
    """
    if weight.shape[1] == 1:
        return (x * weight).sum(-1, keepdim=True) + bias
    return torch.baddbmm(bias.transpose(1, 2), weight, x.transpose(1, 2)).transpose(1, 2)


def _batched_layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addcmul(bias, functional.layer_norm(x, shape), weight)


class MLP(nn.Module):
    """Hidden layers and a linear head: ``[..., inputs] -> [..., out]``.

    With ``ensemble=n``, ``[B, inputs]`` (the same for all members) or ``[n, B, inputs]`` (one each) ``-> [n, B, out]``.
    With ``out=None`` there is no head and the result is the last hidden layer; ``self.out`` is its width.

    With ``noisy=σ₀`` every weight has a learned deviation, at first σ₀/√inputs (Fortunato et al., 2018, with factorised
    Gaussian noise). ``net(x, noise=…)`` perturbs the weights by ``net.noise_size`` standard normal numbers, drawn by
    the caller; ``net(x)`` uses their means.

    ``dropout`` stands behind every hidden linear layer, before normalisation and activation (as in DroQ); given
    ``dropped``, a number for each row, by these. BatchRenorm is told of ``frozen`` and ``counted``.

    With ``residual`` (SimBa: Lee et al., 2025, arXiv:2410.09754) a linear layer is followed by a block for every entry
    of ``hidden``, which must be equal, and a last LayerNorm.
    """

    def __init__(
        self,
        inputs: int,
        out: int | None,
        *,
        hidden: Sequence[int] = (256, 256),
        activation: Activation = Activation.relu,
        norm: Norm = Norm.none,
        init: Init = "torch",
        hidden_gain: float = math.sqrt(2),
        out_gain: float | None = None,
        ensemble: int | None = None,
        noisy: float | None = None,
        dropout: float = 0.0,
        residual: bool = False,
        renorm_momentum: float = 0.99,
        renorm_warmup: int = 0,
    ) -> None:
        super().__init__()
        if noisy is not None and (ensemble is not None or residual):
            raise ValueError("A noisy network is neither an ensemble nor residual.")
        if residual and (len(set(hidden)) != 1 or norm is not Norm.layer):
            raise ValueError("A residual network has blocks of one width, with LayerNorm.")
        gain = hidden_gain if init == "orthogonal" else None
        widths = [inputs, *(hidden[:1] if residual else hidden)]
        normed = norm in LAYER_NORMS and not residual
        layers = [Layer(a, b, ensemble, init, gain, norm=normed, noisy=noisy) for a, b in pairwise(widths)]
        self.blocks = self.last_norm = self.renorms = self.dropouts = None
        if residual:
            self.blocks = nn.ModuleList(
                ResidualBlock(width, ensemble, init, gain, dropout, i) for i, width in enumerate(hidden)
            )
            self.last_norm = LayerNorm(widths[-1], ensemble)
        elif dropout:
            self.dropouts = nn.ModuleList(Dropout(dropout, i) for i in range(len(hidden)))
        if norm is Norm.batch_renorm:
            self.renorms = nn.ModuleList(
                BatchRenorm(width, ensemble, momentum=renorm_momentum, warmup=renorm_warmup) for width in widths
            )
        if out is not None:
            layers.append(Layer(widths[-1], out, ensemble, init, out_gain, head=True, noisy=noisy))
        self.inputs = inputs
        self.out = widths[-1] if out is None else out
        self.ensemble = ensemble
        self.norm = norm
        self.hidden, self.activation = tuple(hidden), activation
        self.layers = nn.ModuleList(layers)
        self._noise_sizes = [] if noisy is None else [sum(layer.weight.shape) for layer in layers]
        self.noise_size = sum(self._noise_sizes)
        self._activation = ACTIVATIONS[activation]
        self._linear: Linear = functional.linear if ensemble is None else _batched_linear
        self._output: Linear = functional.linear if ensemble is None else _batched_head
        self._layer_norm: Callable[..., Tensor] = functional.layer_norm if ensemble is None else _batched_layer_norm
        # The same parameters as plain tuples: calling nn.Linear modules and looking up their attributes takes a third
        # of the time of a small network. Modules move to another device and copy deeply with these intact.
        rows = [(layer.weight, layer.bias, layer.norm_weight, layer.norm_bias) for layer in layers]
        self._hidden = rows[: len(widths) - 1]
        self._head = None if out is None else rows[-1][:2]
        self._plain = self.blocks is self.renorms is self.dropouts is None

    def forward(
        self,
        x: Tensor,
        noise: Tensor | None = None,
        dropped: Tensor | None = None,
        counted: Tensor | None = None,
        frozen: bool = False,
    ) -> Tensor:
        """Outputs for the inputs ``x``; see the class for the shapes."""
        if self.ensemble is not None and x.dim() == 2:
            x = x.expand(self.ensemble, *x.shape)
        if not self._plain:
            return self._regularized(x, noise, dropped, counted, frozen)
        hidden, head = (self._hidden, self._head) if noise is None else self._perturbed(noise)
        linear, output = self._ends(x, self._linear, self._output)
        for weight, bias, norm_weight, norm_bias in hidden:
            x = linear(x, weight, bias)
            linear = self._linear
            if norm_weight is None:
                x = self._activation(x)
            elif self.norm is Norm.layer:
                x = self._activation(self._layer_norm(x, x.shape[-1:], norm_weight, norm_bias))
            else:
                x = self._layer_norm(self._activation(x), x.shape[-1:], norm_weight, norm_bias)
        return x if head is None else output(x, *head)

    def _ends(self, x: Tensor, linear: Linear, output: Linear) -> tuple[Linear, Linear]:
        """The products of the first hidden layer and of the head, if ``linear`` and ``output`` are the plain ones."""
        if not torch.is_autocast_enabled(x.device.type):
            return linear, output
        first = partial(in_full_precision, linear) if self.inputs < NARROW else linear
        return first, partial(in_full_precision, output)

    def first(self, x: Tensor) -> Tensor:
        """Outputs ``[B, out]`` of the first member of an ensemble, for inputs ``[B, inputs]``.

        The others are not computed, which needs a plain network: dropout and the like number their members together.
        """
        assert self.ensemble is not None
        assert self._head is not None
        assert self._plain
        linear, output = self._ends(x, _first_linear, _first_head)
        for weight, bias, norm_weight, norm_bias in self._hidden:
            x = linear(x, weight, bias)
            linear = _first_linear
            if norm_weight is None:
                x = self._activation(x)
                continue
            assert norm_bias is not None
            norm = (x.shape[-1:], norm_weight[0, 0], norm_bias[0, 0])
            if self.norm is Norm.layer:
                x = self._activation(functional.layer_norm(x, *norm))
            else:
                x = functional.layer_norm(self._activation(x), *norm)
        return output(x, *self._head)

    def _regularized(
        self, x: Tensor, noise: Tensor | None, dropped: Tensor | None, counted: Tensor | None, frozen: bool
    ) -> Tensor:
        """The same with what only some networks have: residual blocks, BatchRenorm, dropout."""
        hidden, head = (self._hidden, self._head) if noise is None else self._perturbed(noise)
        linear, output = self._ends(x, self._linear, self._output)
        if self.blocks is not None:
            x = linear(x, *hidden[0][:2])
            for block in self.blocks:
                x = block(x, self._linear, self._activation, dropped)
            x = self.last_norm(x)  # type: ignore[misc]
            return x if head is None else output(x, *head)
        for i, (weight, bias, norm_weight, norm_bias) in enumerate(hidden):
            if self.renorms is not None:
                x = self.renorms[i](x, frozen, counted)
            x = linear(x, weight, bias)
            linear = self._linear
            if self.dropouts is not None:
                x = self.dropouts[i](x, dropped)
            if self.norm is Norm.layer:
                x = self._layer_norm(x, x.shape[-1:], norm_weight, norm_bias)
            x = self._activation(x)
            if self.norm is Norm.layer_after:
                x = self._layer_norm(x, x.shape[-1:], norm_weight, norm_bias)
        if self.renorms is not None:
            x = self.renorms[-1](x, frozen, counted)
        return x if head is None else output(x, *head)

    def _perturbed(self, noise: Tensor) -> tuple[list[tuple[Tensor, ...]], tuple[Tensor, ...] | None]:
        """The parameters of hidden layers and head, with noise f(x) = sgn(x) √|x| on their weights."""
        parts = (noise.sign() * noise.abs().sqrt()).split(self._noise_sizes)
        weights = [layer.perturbed(part) for layer, part in zip(self.layers, parts)]  # type: ignore[operator]
        hidden = [(*pair, *row[2:]) for pair, row in zip(weights, self._hidden)]
        return hidden, None if self._head is None else weights[-1]
