"""Target networks: frozen copies that follow their source."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from rlexp.optim import polyak


class TargetNetwork(nn.Module):
    """A copy of ``source`` without gradients; call it like the source."""

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.net = copy.deepcopy(source).requires_grad_(False)
        self._own: list[Tensor] = list(self.net.parameters())
        self._source: list[Tensor] = list(source.parameters())

    def forward(self, *args: Any, **keywords: Any) -> Tensor:
        """What the copy answers."""
        return self.net(*args, **keywords)

    def follow(self, tau: float | Tensor) -> None:
        """θ̄ ← θ̄ + τ (θ − θ̄); τ = 1 copies."""
        polyak(self._own, self._source, tau)
