"""Noticing that training has come to nothing: a loss or an action that is no number any more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlexp.algos.base import Algorithm
from rlexp.errors import DivergedError

RATES = ("learning_rate", "actor_learning_rate", "critic_learning_rate")  # of what losses are computed with


def refuse_lost_losses(algo: Algorithm, metrics: Mapping[str, Any]) -> None:
    """A loss that is NaN or infinite is of weights that are, or makes them so: nothing that follows is worth a wait."""
    for name, value in metrics.items():
        if name.startswith("loss/") and name != "loss/grad_norm" and not math.isfinite(value):
            raise _diverged(algo, f"{name} is {float(value):g} after {algo.updates:,} updates")


def refuse_lost_actions(algo: Algorithm, action: np.ndarray) -> None:
    """Asked before the environment is, which would be blamed for what it makes of them."""
    if action.dtype.kind == "f":
        least = np.minimum.reduce(action.ravel(), initial=0.0)  # NaN if one of them is
        if least != least:
            raise _diverged(algo, f"the policy's action is NaN after {algo.updates:,} updates")


def _diverged(algo: Algorithm, what: str) -> DivergedError:
    rates = [(name, getattr(algo, name, None)) for name in RATES]
    given = ", ".join(f"algo.{name}={float(rate):g}" for name, rate in rates if rate is not None)
    clip = " Or limit the gradients: algo.max_grad_norm=1." if getattr(algo, "max_grad_norm", 0) is None else ""
    return DivergedError(
        f"{type(algo).__name__} has diverged: {what}. Take smaller steps{f' than {given}' if given else ''}.{clip}"
    )
