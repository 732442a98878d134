"""Fitted Q evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from rlexp.algos.base import DISCRETE
from rlexp.algos.losses import mse
from rlexp.config.component import component
from rlexp.config.fields import Count, Fraction, Positive, Share, Size
from rlexp.envs import GymEnv
from rlexp.evaluators.base import Estimate, EvaluationMethod
from rlexp.models import Model, NetDefaults
from rlexp.models.regularization import BatchRenorm, learning
from rlexp.models.target import TargetNetwork
from rlexp.optim import Adam
from rlexp.policy import Policy
from rlexp.seeding import derive_seed, numpy_generator
from rlexp.types import Batch, Obs

ERROR_ROWS = 4096  # transitions whose Bellman error is reported
FEWEST, MOST = (
    5_000,
    50_000,
)  # updates, where they are chosen: a network needs some to fit anything, and a person the rest
FOLDS = 5.0  # 1 − e⁻⁵ = 99.3 % of the way to the value
ENOUGH = 3.0  # 95 %
LAST = 0.2  # part of the updates over which the drift is measured
MUCH = 0.05  # drift in proportion to the value (or to its spread over the states, if that is larger)


def fqe_target(reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """r + γ (1 − terminated) Q̄(s′, π(s′)), all [B]."""
    return reward + discount * next_q


def value_range(least: float, most: float, gamma: float) -> tuple[float, float]:
    """The smallest and largest value that rewards from ``least`` to ``most`` can have, in episodes of any length."""
    if gamma >= 1:
        return -math.inf, math.inf
    return min(least, least / (1 - gamma)), max(most, most / (1 - gamma))


def folds(updates: int, tau: float, horizon: float) -> float:
    """How often what is missing of the value shrinks e-fold in so many updates, horizon = 1 / (1 − γ).

    Bootstrapping passes values on at the pace of the target: what is missing shrinks by 1 − τ (1 − γ) an update.
    """
    return updates * tau / horizon


@component("evaluator", "fqe")
@dataclass(eq=False, kw_only=True)
class FQE(EvaluationMethod):
    """Fitted Q evaluation (Le et al., 2019, arXiv:1903.08738): what the greedy policy π is worth, from data alone.

    A network Q of its own is fitted by  Q(s, a) → r + γ Q̄(s′, π(s′))  over the data, and the value is the mean of
    Q(s₀, π(s₀)) over the first states of its episodes: discounted, in the units of the environment. Each evaluation
    begins anew. It shares no network with the agent, so it does not share its errors; where π does what the data never
    did, it is a guess like any other, but never one that no rewards like those of the data could add up to: targets are
    clipped to that range. Q is built by the run's model, without its dropout. A fit of n updates comes
    1 − exp(−n τ (1 − γ)) of the way to the value.
    """

    key: ClassVar[str] = "fqe_value"

    updates: Count | None = None  # of one evaluation; null: 5 / (tau · (1 − gamma)), from 5 000 to 50 000
    batch_size: Size = 256  # transitions in an update
    learning_rate: Positive = 1e-3  # step size
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers, where model.hidden is null
    tau: Share = 0.1  # share of Q that flows into its target at each update
    gamma: Fraction | None = None  # discount of the value; null: the algorithm's
    max_states: Count = 10_000  # first states that are asked about, at random where the dataset has more

    def begin(self, env: GymEnv, model: Model, warn: Callable[[str], None]) -> None:
        """Each warning is said once in a run."""
        super().begin(env, model, warn)
        self.warn, self.warned = warn, set[str]()

    def __call__(self, policy: Policy, episodes: int, *, seed: int) -> Estimate:
        """Fit Q to the policy and ask it about the first states."""
        gamma = float(policy.algo.gamma) if self.gamma is None else self.gamma
        self.data.set_gamma(gamma)
        updates = self._planned(gamma)
        rng = numpy_generator(seed, "fqe")
        scale = self._scale(gamma, rng)
        self._range = [bound / scale for bound in value_range(*self.data.reward_range(), gamma)]
        q = self._network(policy, seed)
        target = TargetNetwork(q)
        norms = [module for module in q.modules() if isinstance(module, BatchRenorm)]
        optimizer = Adam(q.named_parameters(), self.learning_rate)
        starts = self.start_states(policy, self.max_states, seed)
        mark, before = updates - math.ceil(LAST * updates), 0.0
        for done in range(updates):
            if done == mark:
                before = float(self._values(policy, q, starts, scale).mean())
            batch = self.batch(policy, rng.integers(0, len(self.data), self.batch_size))
            with learning(norms):
                optimizer.step(self._loss(policy, q, target, batch, scale))
            target.follow(self.tau)
        with torch.no_grad():
            rows = rng.integers(0, len(self.data), ERROR_ROWS)
            error = float(self._loss(policy, q, target, self.batch(policy, rows), scale)) ** 0.5
        values = self._values(policy, q, starts, scale)
        value, std = float(values.mean()), float(values.std(correction=0))
        drift = value - before
        self._judge(value, std, drift, updates)
        others = {"fqe_value_std": std, "fqe_error": scale * error, "fqe_drift": drift, "states": len(values)}
        return Estimate(self.key, value, others)

    def _planned(self, gamma: float) -> int:
        """The updates of an evaluation; warns if they cannot suffice."""
        # Without a discount a value reaches as far as episodes do.
        horizon = 1 / (1 - gamma) if gamma < 1 else len(self.data) / len(self.starts)
        wanted = math.ceil(round(FOLDS * horizon / self.tau, 3))
        updates = min(max(wanted, FEWEST), MOST) if self.updates is None else self.updates
        if (reached := folds(updates, self.tau, horizon)) < ENOUGH:
            other = f", or evaluator.tau={FQE.tau:g}" if self.tau < FQE.tau else ""
            self._warn_once(
                "settings",
                f"evaluator=fqe: {updates:,} updates with evaluator.tau={self.tau:g} come "
                f"{1 - math.exp(-reached):.0%} of the way to a value discounted by {gamma:g}. "
                f"Set evaluator.updates={wanted}{other}.",
            )
        return updates

    def _judge(self, value: float, std: float, drift: float, updates: int) -> None:
        """Warn of a value that was still on its way."""
        if abs(drift) > MUCH * max(abs(value), std):
            self._warn_once(
                "drift",
                f"evaluator=fqe: the value still moved by {drift:+.4g} to {value:.4g} in the last {LAST:.0%} of "
                f"{updates:,} updates, so it has not settled. Give it more: evaluator.updates={2 * updates}.",
            )

    def _warn_once(self, what: str, text: str) -> None:
        if what not in self.warned:
            self.warned.add(what)
            self.warn(text)

    def _values(self, policy: Policy, q: nn.Module, starts: list[Any], scale: float) -> Tensor:
        """Q(s₀, π(s₀)) of the first states, in the environment's units."""
        with torch.no_grad():
            return scale * torch.cat([self._q(policy, q, obs, self._greedy(policy, obs)) for obs in starts]).double()

    def _loss(self, policy: Policy, q: nn.Module, target: nn.Module, batch: Batch, scale: float) -> Tensor:
        with torch.no_grad():
            next_q = self._q(policy, target, batch.next_obs, self._greedy(policy, batch.next_obs))
            wanted = fqe_target(batch.reward / scale, batch.discount, next_q).clamp(*self._range)
        return mse(self._q(policy, q, batch.obs, batch.action), wanted)

    def _network(self, policy: Policy, seed: int) -> nn.Module:
        """One output for each discrete action, or one for a state with an action; weights by the seed alone."""
        spec, device = policy.spec, policy.device
        discrete = spec.action.kind == DISCRETE
        out, dim = (spec.action.n, 0) if discrete else (1, spec.action.dim)
        defaults = NetDefaults(hidden=tuple(self.hidden))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
            torch.manual_seed(derive_seed(seed, "fqe-init"))
            return self.model.build(spec, out, defaults=defaults, action_dim=dim)

    def _q(self, policy: Policy, net: nn.Module, obs: Obs, action: Tensor) -> Tensor:
        """Q(s, a), [B]."""
        if policy.spec.action.kind == DISCRETE:
            return net(obs).gather(-1, action.long().unsqueeze(-1))[..., 0]  # type: ignore[no-any-return]
        return net(obs, action)[..., 0]  # type: ignore[no-any-return]

    def _greedy(self, policy: Policy, obs: Obs) -> Tensor:
        return policy.act(obs, None, explore=False).action

    def _scale(self, gamma: float, rng: np.random.Generator) -> float:
        """What values are about as large as, so that the network learns numbers near 1."""
        reward = self.data.gather(rng.integers(0, len(self.data), ERROR_ROWS)).reward.double()
        horizon = min(1 / max(1 - gamma, 1e-6), len(self.data) / len(self.starts))
        return max(float(reward.square().mean().sqrt()) * horizon, 1e-8)
