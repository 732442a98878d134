"""Running statistics that observations and rewards are normalised with. They are part of the agent's state.

Statistics are updated while collecting, outside of compiled graphs; applying them is plain tensor code on tensors that
are only ever changed in place, so it may be traced.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from rlexp.errors import CheckpointError, counted

if TYPE_CHECKING:
    from rlexp.envs.spec import ObsSpec
    from rlexp.types import Obs

Array = TypeVar("Array", np.ndarray, Tensor)

_EPS = 1e-8


class RunningNorm:
    """Mean and variance of a stream of arrays of one shape, and normalisation by them.

    Batches are merged exactly (Chan et al., 1983) in float64. An element that has not varied yet is only centred;
    before the first update it is only clipped.
    """

    def __init__(
        self,
        shape: tuple[int, ...] = (),
        *,
        device: torch.device | str | None = None,
        clip: float = 10.0,
        margin: float = 0.0,
    ) -> None:
        self.shape, self.clip, self.margin = tuple(shape), clip, margin  # margin: added to the deviation
        self.count = 0
        self.mean = torch.zeros(self.shape, dtype=torch.float64, device=device)
        self.m2 = torch.zeros_like(self.mean)  # sum of squared distances from the mean
        self._shift = torch.zeros(self.shape, device=device)
        self._scale = torch.ones(self.shape, device=device)

    @property
    def var(self) -> Tensor:
        """The (population) variance so far."""
        return self.m2 / max(self.count, 1)

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Take in a batch ``[..., *shape]``."""
        rows = x.reshape(-1, *self.shape).double()
        n = rows.shape[0]
        if n == 0:
            return
        var, mean = torch.var_mean(rows, 0, correction=0)
        total = self.count + n
        delta = mean - self.mean
        self.mean.add_(delta, alpha=n / total)
        self.m2.add_(var, alpha=n).addcmul_(delta, delta, value=self.count * n / total)
        self.count = total
        self._refresh()

    def _refresh(self) -> None:
        self._shift.copy_(self.mean)
        scale = 1 / (self.var.sqrt() + self.margin) if self.margin else (self.var + _EPS).rsqrt()
        self._scale.copy_(torch.where(self.m2 > 0, scale, 1.0))

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` with mean 0 and variance 1, clipped."""
        return ((x - self._shift) * self._scale).clamp(-self.clip, self.clip)

    def state_dict(self) -> dict[str, Any]:
        """Count, mean and sum of squares."""
        return {"count": self.count, "mean": self.mean, "m2": self.m2}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave, in place."""
        if tuple(state["mean"].shape) != self.shape:
            given = tuple(state["mean"].shape)
            raise CheckpointError(f"The saved statistics are of shape {given}, the observations here of {self.shape}.")
        self.count = int(state["count"])
        self.mean.copy_(torch.as_tensor(state["mean"]))
        self.m2.copy_(torch.as_tensor(state["m2"]))
        if self.count:
            self._refresh()
        else:
            self._shift.zero_()
            self._scale.fill_(1.0)


class ObsNormalizer:
    """Normalises the float boxes of an observation; bytes, integers and bits pass untouched.

    ``fixed``: by the statistics of a dataset alone and without clipping, (s − mean) / (deviation + 1e-3), as in TD3+BC
    (Fujimoto & Gu, 2021).
    """

    def __init__(
        self, obs: ObsSpec, *, device: torch.device | str | None = None, clip: float = 10.0, fixed: bool = False
    ) -> None:
        self.fixed = fixed
        kind = {"clip": math.inf, "margin": 1e-3} if fixed else {"clip": clip}
        self.norms = {
            name: RunningNorm(leaf.shape, device=device, **kind)
            for name, leaf in obs.seen.items()
            if leaf.kind == "box" and leaf.dtype == "float32"
        }

    def update(self, obs: Obs) -> None:
        """Take in a batch of raw observations with any leading axes."""
        if isinstance(obs, Tensor):
            obs = {"": obs}
        for name, norm in self.norms.items():
            norm.update(obs[name])

    def __call__(self, obs: Obs) -> Obs:
        """The normalised observations; the given ones are not changed."""
        if isinstance(obs, Tensor):
            return self.norms[""](obs) if self.norms else obs
        return {name: self.norms[name](leaf) if name in self.norms else leaf for name, leaf in obs.items()}

    def state_dict(self) -> dict[str, Any]:
        """The statistics of each normalised leaf, in the order of the spec (names may hold a slash)."""
        return {"leaves": [norm.state_dict() for norm in self.norms.values()], "fixed": self.fixed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave."""
        if len(state["leaves"]) != len(self.norms):
            given = len(state["leaves"])
            raise CheckpointError(f"The saved statistics are of {given} arrays, the observation has {len(self.norms)}.")
        for norm, leaf in zip(self.norms.values(), state["leaves"]):
            norm.load_state_dict(leaf)


class RewardNormalizer:
    """Divides rewards by the standard deviation of the discounted return, running sums over each environment.

    Rewards keep their sign and their zero: only the scale changes. Until the returns vary, it is 1.
    Kept in NumPy because rewards come from environments one small array at a time.
    """

    def __init__(self, num_envs: int, gamma: float, *, clip: float = 10.0) -> None:
        self.gamma, self.clip = gamma, clip
        self.returns = np.zeros(num_envs)  # discounted sum of each running episode
        self.count, self.mean, self.m2 = 0, 0.0, 0.0
        self.factor = 1.0  # what rewards are multiplied by

    @property
    def var(self) -> float:
        """The (population) variance of the returns so far."""
        return self.m2 / max(self.count, 1)

    def update(self, reward: np.ndarray | Tensor, done: np.ndarray | Tensor) -> None:
        """Take in the rewards ``[N]`` of one step; where ``done``, the next one starts a new episode."""
        self.returns = self.returns * self.gamma + np.asarray(reward)
        n = len(self.returns)
        total = self.count + n
        mean = float(self.returns.sum()) / n
        distance = self.returns - mean
        delta = mean - self.mean
        self.mean += delta * n / total
        self.m2 += float(distance @ distance) + delta * delta * self.count * n / total
        self.count = total
        self.returns[np.asarray(done, dtype=bool)] = 0.0
        self._refresh()

    def _refresh(self) -> None:
        self.factor = 1 / math.sqrt(self.var + _EPS) if self.m2 > 0 else 1.0

    def scale(self, reward: Array) -> Array:
        """Scaled and clipped rewards, of any shape, NumPy or torch."""
        return (reward * self.factor).clip(-self.clip, self.clip)

    __call__ = scale

    def state_dict(self) -> dict[str, Any]:
        """Running returns and their statistics."""
        return {"returns": self.returns.copy(), "count": self.count, "mean": self.mean, "m2": self.m2}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave."""
        returns = np.array(state["returns"], dtype=np.float64)
        if returns.shape != self.returns.shape:
            raise CheckpointError(
                f"The saved returns are of {counted(len(returns), 'environment')}, here are {len(self.returns)}: "
                "resume with the same env.num_envs."
            )
        self.returns = returns
        self.count, self.mean, self.m2 = int(state["count"]), float(state["mean"]), float(state["m2"])
        self._refresh()
