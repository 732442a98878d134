"""Policies as distributions over actions: plain tensor code, with every bit of randomness passed in as ``noise``.

``policy_distribution(action_spec)`` gives the :class:`PolicyHead` of an action space, which knows how many outputs the
network needs, draws the noise, and makes the distribution from the outputs. Drawing noise outside keeps updates
traceable, compiled and eager runs equal, and generators in the hands of whoever saves them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from rlexp.envs.spec import ActionSpec

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
IMPOSSIBLE = -1e9  # logit of what cannot happen; finite, so that p·log p stays 0 instead of 0·∞


class Distribution:
    """A batch of distributions over actions. ``B`` stands for any leading axes."""

    def sample(self, noise: Tensor) -> Tensor:
        """The actions that ``noise`` (from ``PolicyHead.draw_noise``) leads to."""
        raise NotImplementedError

    def mode(self) -> Tensor:
        """The greedy actions."""
        raise NotImplementedError

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probability or log-density of whole actions, ``[B]``."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """Entropy, ``[B]``."""
        raise NotImplementedError

    def kl(self, other: Any) -> Tensor:
        """KL(self ‖ other) to a distribution of the same class, ``[B]``."""
        raise NotImplementedError


class Categorical(Distribution):
    """One of A actions from logits ``[B, A]``; noise is standard Gumbel ``[B, A]``.

    The largest of logit + Gumbel noise is an exact sample of the softmax, which need not be computed to act.
    """

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self._log_probs: Tensor | None = None  # functools.cached_property takes a lock, which dynamo cannot trace

    @property
    def log_probs(self) -> Tensor:
        """Log-probability of every action, ``[B, A]``, computed when first asked for."""
        if self._log_probs is None:
            self._log_probs = functional.log_softmax(self.logits, -1)
        return self._log_probs

    @property
    def probs(self) -> Tensor:
        """Probability of every action, ``[B, A]``."""
        return self.log_probs.exp()

    def sample(self, noise: Tensor) -> Tensor:
        """argmax of logit + Gumbel noise, ``[B]``."""
        return (self.logits + noise).argmax(-1)

    def mode(self) -> Tensor:
        """The most probable actions, ``[B]``."""
        return self.logits.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """log p of actions ``[B]``."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """−Σ p log p."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        """Σ p (log p − log q)."""
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(-1)


class MultiCategorical(Categorical):
    """k independent choices from logits ``[B, k, max size]``, where sizes differ filled up by impossible ones.

    Actions are ``[B, k]``, noise is Gumbel ``[B, k, max size]``. Log-probabilities, entropies and divergences add up.
    """

    def log_prob(self, action: Tensor) -> Tensor:
        """log p of actions ``[B, k]``."""
        return super().log_prob(action).sum(-1)

    def entropy(self) -> Tensor:
        """The sum over the choices."""
        return super().entropy().sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        """The sum over the choices."""
        return super().kl(other).sum(-1)


class Bernoulli(Distribution):
    """k independent bits from logits ``[B, k]``; noise is uniform in [0, 1) ``[B, k]``."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def sample(self, noise: Tensor) -> Tensor:
        """Bits ``[B, k]``, 1 where the noise is below the probability."""
        return (noise < self.logits.sigmoid()).long()

    def mode(self) -> Tensor:
        """The more probable bits."""
        return (self.logits > 0).long()

    def log_prob(self, action: Tensor) -> Tensor:
        """Σ a·logit − softplus(logit), the log of σ(logit)ᵃ (1 − σ(logit))¹⁻ᵃ."""
        return (action * self.logits - functional.softplus(self.logits)).sum(-1)

    def entropy(self) -> Tensor:
        """Σ softplus(logit) − logit·σ(logit)."""
        return (functional.softplus(self.logits) - self.logits * self.logits.sigmoid()).sum(-1)

    def kl(self, other: Bernoulli) -> Tensor:
        """Σ p (logit_p − logit_q) − softplus(logit_p) + softplus(logit_q)."""
        log_odds = self.logits.sigmoid() * (self.logits - other.logits)
        return (log_odds - functional.softplus(self.logits) + functional.softplus(other.logits)).sum(-1)


class DiagGaussian(Distribution):
    """Independent normals, mean ``[B, D]`` and log_std ``[B, D]`` or ``[D]``; noise is standard normal ``[B, D]``."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean, self.log_std = mean, log_std

    def sample(self, noise: Tensor) -> Tensor:
        """mean + std · noise."""
        return torch.addcmul(self.mean, self.log_std.exp(), noise)

    def mode(self) -> Tensor:
        """The mean."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-density of actions ``[B, D]``."""
        return self._log_prob_of_noise((action - self.mean) * torch.exp(-self.log_std))

    def _log_prob_of_noise(self, noise: Tensor) -> Tensor:
        return (-0.5 * noise.square() - self.log_std - _HALF_LOG_2PI).sum(-1)

    def entropy(self) -> Tensor:
        """Σ log std + ½ log 2πe."""
        return (self.log_std + (0.5 + _HALF_LOG_2PI)).sum(-1).expand(self.mean.shape[:-1])

    def kl(self, other: DiagGaussian) -> Tensor:
        """Σ ½ (σ²/σ′² + (μ − μ′)²/σ′² − 1) − log(σ/σ′)."""
        log_ratio = self.log_std - other.log_std
        scaled = (self.mean - other.mean) * torch.exp(-other.log_std)
        return (0.5 * (torch.exp(2 * log_ratio) + scaled.square() - 1) - log_ratio).sum(-1)


class SquashedGaussian(DiagGaussian):
    """tanh of a :class:`DiagGaussian`: actions in (−1, 1), log-densities corrected for the squashing.

    log |da/du| = log(1 − tanh²u) = 2 (log 2 − u − softplus(−2u)), which does not cancel for large u.
    """

    _LIMIT = 1 - 1e-6  # beyond it, float32 holds too little of u = atanh(a)

    def sample(self, noise: Tensor) -> Tensor:
        """tanh(mean + std · noise)."""
        return super().sample(noise).tanh()

    def sample_with_log_prob(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparametrised actions ``[B, D]`` and their log-densities ``[B]``, without the detour over atanh."""
        unsquashed = super().sample(noise)
        log_prob = self._log_prob_of_noise(noise) - self._log_det(unsquashed)
        return unsquashed.tanh(), log_prob

    def mode(self) -> Tensor:
        """tanh of the mean, which is the median."""
        return self.mean.tanh()

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-density of given actions, by way of atanh; at the bounds, of actions 1e-6 inside."""
        unsquashed = action.clamp(-self._LIMIT, self._LIMIT).atanh()
        return super().log_prob(unsquashed) - self._log_det(unsquashed)

    @staticmethod
    def _log_det(unsquashed: Tensor) -> Tensor:
        return 2 * (math.log(2) - unsquashed - functional.softplus(-2 * unsquashed)).sum(-1)

    def entropy(self) -> Tensor:
        """Not known in closed form."""
        raise NotImplementedError("It has no closed form; −log_prob of sample_with_log_prob(noise) estimates it.")

    # kl is the Gaussians' own: a bijection of the actions does not change it


class BoundedGaussian(DiagGaussian):
    """Independent normals with means in (−1, 1), whose samples are clipped to [−1, 1].

    Unlike a squashed one it gives actions on the bounds, of which replay data hold many, a finite density: that of the
    normal before it is clipped.
    """

    def sample(self, noise: Tensor) -> Tensor:
        """mean + std · noise within the bounds; noise ``[..., B, D]`` may bring several samples of each row."""
        return super().sample(noise).clamp(-1, 1)


class Deterministic(Distribution):
    """All mass on one action ``[B, D]``: for policies that only clone. It has no density."""

    def __init__(self, action: Tensor) -> None:
        self.action = action

    def sample(self, noise: Tensor) -> Tensor:
        """The action, whatever the noise."""
        return self.action

    def mode(self) -> Tensor:
        """The action."""
        return self.action


# ---- from network outputs to distributions


class PolicyHead:
    """How a network's outputs become a distribution over the actions of one space.

    ``out`` is the number of outputs the network needs. ``needs_log_std`` says that ``dist`` also wants a log_std
    ``[D]``, a parameter of the algorithm that does not depend on the state.
    """

    out: int
    needs_log_std = False

    def dist(self, outputs: Tensor, log_std: Tensor | None = None) -> Any:
        """The distribution for outputs ``[B, out]``."""
        raise NotImplementedError

    def draw_noise(
        self, *batch: int, generator: torch.Generator | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """What ``sample`` needs for a batch of this shape."""
        return torch.randn(*batch, self.out, generator=generator, device=device)


class CategoricalHead(PolicyHead):
    """Logits of the actions of a discrete space."""

    def __init__(self, n: int) -> None:
        self.out = n

    def dist(self, outputs: Tensor, log_std: Tensor | None = None) -> Categorical:
        """Outputs are logits."""
        return Categorical(outputs)

    def draw_noise(
        self, *batch: int, generator: torch.Generator | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Gumbel noise ``[*batch, n]``."""
        return _gumbel((*batch, self.out), generator, device)


class MultiCategoricalHead(PolicyHead):
    """Logits of several discrete choices side by side, ``[B, sum(nvec)]``."""

    def __init__(self, nvec: tuple[int, ...]) -> None:
        self.out = sum(nvec)
        self.grid = (len(nvec), max(nvec))
        self.even = min(nvec) == max(nvec)
        # Uneven sizes: where in the outputs each cell of the grid is found, and which cells have no output.
        starts = torch.tensor([0, *nvec[:-1]]).cumsum(0)
        column = torch.arange(max(nvec))
        self._missing = column >= torch.tensor(nvec)[:, None]  # [k, max size]
        self._source = (starts[:, None] + column).masked_fill(self._missing, 0).flatten()

    def dist(self, outputs: Tensor, log_std: Tensor | None = None) -> MultiCategorical:
        """Outputs are the logits of all choices, one after the other."""
        if self.even:
            return MultiCategorical(outputs.unflatten(-1, self.grid))
        if self._source.device != outputs.device:
            self._source, self._missing = self._source.to(outputs.device), self._missing.to(outputs.device)
        padded = outputs.index_select(-1, self._source).unflatten(-1, self.grid)
        return MultiCategorical(padded.masked_fill(self._missing, IMPOSSIBLE))

    def draw_noise(
        self, *batch: int, generator: torch.Generator | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Gumbel noise ``[*batch, k, max size]``."""
        return _gumbel((*batch, *self.grid), generator, device)


class BernoulliHead(PolicyHead):
    """Logits of the bits of a multi-binary space."""

    def __init__(self, k: int) -> None:
        self.out = k

    def dist(self, outputs: Tensor, log_std: Tensor | None = None) -> Bernoulli:
        """Outputs are logits."""
        return Bernoulli(outputs)

    def draw_noise(
        self, *batch: int, generator: torch.Generator | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Uniform noise ``[*batch, k]``."""
        return torch.rand(*batch, self.out, generator=generator, device=device)


class GaussianHead(PolicyHead):
    """Means of a normal in the environment's units; the log_std is a parameter of its own."""

    needs_log_std = True

    def __init__(self, dim: int) -> None:
        self.out = dim

    def dist(self, outputs: Tensor, log_std: Tensor | None = None) -> DiagGaussian:
        """Outputs are means."""
        assert log_std is not None, "GaussianHead.dist needs a log_std"
        return DiagGaussian(outputs, log_std)


class SquashedGaussianHead(PolicyHead):
    """Mean and log_std per state (or the mean alone, with a log_std of its own), squashed into (−1, 1)."""

    def __init__(
        self, dim: int, *, log_std_min: float = -20.0, log_std_max: float = 2.0, state_dependent_std: bool = True
    ) -> None:
        self.dim = dim
        self.out = 2 * dim if state_dependent_std else dim
        self.needs_log_std = not state_dependent_std
        self.log_std_min, self.log_std_max = log_std_min, log_std_max

    def dist(self, outputs: Tensor, log_std: Tensor | None = None) -> SquashedGaussian:
        """Outputs are means, then log_stds, which are clamped."""
        mean = outputs
        if not self.needs_log_std:
            mean, log_std = outputs.chunk(2, -1)
        assert log_std is not None, "SquashedGaussianHead without state_dependent_std needs a log_std"
        return SquashedGaussian(mean, log_std.clamp(self.log_std_min, self.log_std_max))

    def draw_noise(
        self, *batch: int, generator: torch.Generator | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Normal noise ``[*batch, D]``."""
        return torch.randn(*batch, self.dim, generator=generator, device=device)


class BoundedGaussianHead(PolicyHead):
    """tanh means, with log_stds per state or in a parameter of their own, clamped."""

    def __init__(self, dim: int, *, log_std_min: float, log_std_max: float, state_dependent_std: bool = True) -> None:
        self.dim = dim
        self.out = 2 * dim if state_dependent_std else dim
        self.needs_log_std = not state_dependent_std
        self.log_std_min, self.log_std_max = log_std_min, log_std_max

    def dist(self, outputs: Tensor, log_std: Tensor | None = None) -> BoundedGaussian:
        """Outputs are means before their tanh, then log_stds."""
        mean = outputs
        if not self.needs_log_std:
            mean, log_std = outputs.chunk(2, -1)
        assert log_std is not None, "BoundedGaussianHead without state_dependent_std needs a log_std"
        return BoundedGaussian(mean.tanh(), log_std.clamp(self.log_std_min, self.log_std_max))

    def draw_noise(
        self, *batch: int, generator: torch.Generator | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Normal noise ``[*batch, D]``."""
        return torch.randn(*batch, self.dim, generator=generator, device=device)


class DeterministicHead(PolicyHead):
    """One action in (−1, 1) for each state."""

    def __init__(self, dim: int) -> None:
        self.out = dim

    def dist(self, outputs: Tensor, log_std: Tensor | None = None) -> Deterministic:
        """Outputs are actions before their tanh."""
        return Deterministic(outputs.tanh())


_HEADS: dict[str, Callable[[ActionSpec], PolicyHead]] = {
    "discrete": lambda action: CategoricalHead(action.n),
    "multi_discrete": lambda action: MultiCategoricalHead(tuple(action.nvec)),
    "multi_binary": lambda action: BernoulliHead(len(action.nvec)),
    "continuous": lambda action: GaussianHead(action.dim),
}


def policy_distribution(action: ActionSpec) -> PolicyHead:
    """The head of a stochastic policy for an action space, continuous actions in the environment's units.

    Algorithms that act in [−1, 1] take a :class:`SquashedGaussianHead` instead.
    """
    return _HEADS[action.kind](action)


def _gumbel(shape: tuple[int, ...], generator: torch.Generator | None, device: torch.device | str | None) -> Tensor:
    """Standard Gumbel noise, −log E with E exponential; E is kept off 0, which would lift even impossible actions."""
    noise = torch.empty(shape, device=device).exponential_(generator=generator)
    return noise.clamp_(min=torch.finfo(noise.dtype).tiny).log_().neg_()
