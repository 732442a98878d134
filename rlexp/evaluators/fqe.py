"""Fitted Q evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from rlexp.algos.base import DISCRETE
from rlexp.algos.losses import mse
from rlexp.config.component import component
from rlexp.config.fields import Count, Fraction, Positive, Size
from rlexp.evaluators.base import Estimate, EvaluationMethod
from rlexp.models import NetDefaults
from rlexp.models.target import TargetNetwork
from rlexp.optim import Adam
from rlexp.policy import Policy
from rlexp.seeding import derive_seed, numpy_generator
from rlexp.types import Batch, Obs

ERROR_ROWS = 4096  # transitions whose Bellman error is reported


def fqe_target(reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """r + γ (1 − terminated) Q̄(s′, π(s′)), all [B]."""
    return reward + discount * next_q


@component("evaluator", "fqe")
@dataclass(eq=False, kw_only=True)
class FQE(EvaluationMethod):
    """Fitted Q evaluation (Le et al., 2019, arXiv:1903.08738): what the greedy policy π is worth, from data alone.

    A network Q of its own is fitted by  Q(s, a) → r + γ Q̄(s′, π(s′))  over the data, and the value is the mean of
    Q(s₀, π(s₀)) over the first states of its episodes: discounted, in the units of the environment. Each evaluation
    begins anew. It shares no network with the agent, so it does not share its errors; where π does what the data never
    did, it is a guess like any other.
    """

    key: ClassVar[str] = "fqe_value"

    updates: Count = 5_000  # gradient updates of one evaluation
    batch_size: Size = 256  # transitions in an update
    learning_rate: Positive = 1e-3  # step size
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers, where model.hidden is null
    tau: Fraction = 0.01  # share of Q that flows into its target at each update
    gamma: Fraction | None = None  # discount of the value; null: the algorithm's
    max_states: Count = 10_000  # first states that are asked about, at random where the dataset has more

    def __call__(self, policy: Policy, episodes: int, *, seed: int) -> Estimate:
        """Fit Q to the policy and ask it about the first states."""
        gamma = float(policy.algo.gamma) if self.gamma is None else self.gamma
        self.data.set_gamma(gamma)
        rng = numpy_generator(seed, "fqe")
        scale = self._scale(gamma, rng)
        q = self._network(policy, seed)
        target = TargetNetwork(q)
        optimizer = Adam(q.named_parameters(), self.learning_rate)
        for _ in range(self.updates):
            batch = self.batch(policy, rng.integers(0, len(self.data), self.batch_size))
            optimizer.step(self._loss(policy, q, target, batch, scale))
            target.follow(self.tau)
        with torch.no_grad():
            rows = rng.integers(0, len(self.data), ERROR_ROWS)
            error = float(self._loss(policy, q, target, self.batch(policy, rows), scale)) ** 0.5
            starts = self.start_states(policy, self.max_states, seed)
            values = scale * torch.cat([self._q(policy, q, obs, self._greedy(policy, obs)) for obs in starts]).double()
        others = {"fqe_value_std": float(values.std(correction=0)), "fqe_error": scale * error, "states": len(values)}
        return Estimate(self.key, float(values.mean()), others)

    def _loss(self, policy: Policy, q: nn.Module, target: nn.Module, batch: Batch, scale: float) -> Tensor:
        with torch.no_grad():
            next_q = self._q(policy, target, batch.next_obs, self._greedy(policy, batch.next_obs))
            wanted = fqe_target(batch.reward / scale, batch.discount, next_q)
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
