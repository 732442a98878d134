"""Networks in words, for the line that a run begins with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from rlexp.models.cnn import CNN
from rlexp.models.encoders import Encoder
from rlexp.models.layers import MLP, Norm
from rlexp.models.recurrent import Recurrent
from rlexp.models.regularization import Dropout
from rlexp.models.target import TargetNetwork

OURS = (CNN, MLP, Recurrent)  # whose form can be told


def described(parts: Mapping[str, nn.Module]) -> str:
    """``actor 256-256 relu, 2 critics 256-256 relu, 141,058 parameters``: what learns, so no targets."""
    learning = {name: part for name, part in parts.items() if not isinstance(part, TargetNetwork)}
    learned = {id(p): p.numel() for part in learning.values() for p in part.parameters() if p.requires_grad}
    texts = [_named(name, part) for name, part in learning.items() if list(part.parameters())]
    return ", ".join([*texts, f"{sum(learned.values()):,} parameters"])


def _named(name: str, part: nn.Module) -> str:
    words = name.replace("_", " ")
    members = [module.ensemble for module in part.modules() if isinstance(module, MLP) and module.ensemble]
    return f"{max(members)} {words}s {_form(part)}" if members else f"{words} {_form(part)}"


def _form(part: nn.Module) -> str:
    """``Nature CNN + 512 relu``: what stands between inputs and outputs, in its order."""
    forms: list[str] = []
    if isinstance(part, CNN):
        return part.name.removeprefix("the ")
    if isinstance(part, MLP):
        encoder: Any = getattr(part, "encoder", None)
        forms = [*([_form(encoder)] if _has_form(encoder) else []), *_layers(part)]
        return " + ".join(forms) or "linear"
    if isinstance(part, Recurrent):
        forms = [*([_form(part.encoder)] if _has_form(part.encoder) else []), f"{part.kind.value} {part.size}"]
    else:
        forms = [_form(child) for child in part.children() if _has_form(child)]
    return " + ".join(forms) or type(part).__name__


def _layers(net: MLP) -> list[str]:
    """The hidden layers of an MLP, if it has some."""
    if not net.hidden:
        return []
    norm = {Norm.none: "", Norm.layer: " LayerNorm", Norm.layer_after: " LayerNorm", Norm.batch_renorm: " BatchRenorm"}
    kind = " residual" if net.blocks is not None else norm[net.norm]
    drops = next((f" dropout {module.rate:g}" for module in net.modules() if isinstance(module, Dropout)), "")
    return [f"{'-'.join(map(str, net.hidden))} {net.activation.value}{kind}{drops}"]


def _has_form(part: nn.Module | None) -> bool:
    if isinstance(part, Encoder):
        return part.learned
    return part is not None and any(isinstance(module, OURS) for module in part.modules())
