"""A user's own model, whose networks are tried on two observations before anything is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlexp.errors import ConfigError

if TYPE_CHECKING:
    from rlexp.envs.spec import EnvSpec
    from rlexp.models import Model
    from rlexp.types import Obs

ROWS = 2  # observations a network is tried on


class CheckedModel:
    """Builds what ``model`` builds; a network of another form than was asked for is a ConfigError."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def build(self, spec: EnvSpec, out: int | None, **settings: Any) -> nn.Module:
        """The network of ``model``, after a try; arguments as in :class:`rlexp.models.Model`."""
        net = self.model.build(spec, out, **settings)
        who = f"model: what {type(self.model).__qualname__}.build() returned for out={out}"
        if not isinstance(net, nn.Module):
            raise ConfigError(f"{who} is of type {type(net).__qualname__}, not a torch.nn.Module.")
        width = net.out if out is None and hasattr(net, "out") else out
        if not isinstance(width, int):
            raise ConfigError(f"{who} must say the number of its features as an attribute out.")
        ensemble, action_dim = settings.get("ensemble"), settings.get("action_dim", 0)
        wanted = [ROWS, width] if ensemble is None else [ensemble, ROWS, width]
        inputs = [_zeros(spec), *([torch.zeros(ROWS, action_dim)] if action_dim else [])]
        form = f"{ROWS} observations{f' and actions of width {action_dim}' if action_dim else ''}"
        try:
            with torch.no_grad():
                given = net.eval()(*inputs)
        except Exception as error:
            raise ConfigError(f"{who} fails on {form}: {type(error).__name__}: {error}") from error
        finally:
            net.train()
        if not isinstance(given, Tensor) or list(given.shape) != wanted:
            found = list(given.shape) if isinstance(given, Tensor) else type(given).__qualname__
            raise ConfigError(f"{who} gives {found} for {form} instead of a tensor {wanted}.")
        return net


def _zeros(spec: EnvSpec) -> Obs:
    leaves = {
        name: torch.zeros(ROWS, *leaf.shape, dtype=getattr(torch, leaf.dtype)) for name, leaf in spec.obs.leaves.items()
    }
    return leaves[""] if spec.obs.single else leaves
