"""What a way to judge policies is. It sees policies and data, changes neither, and keeps nothing between two uses."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rlexp.algos.base import Algorithm
from rlexp.buffers import ReplayBuffer
from rlexp.envs import GymEnv
from rlexp.evaluation import Evaluation
from rlexp.models import Model
from rlexp.policy import Policy
from rlexp.seeding import numpy_generator
from rlexp.types import Batch

ROWS_AT_ONCE = 4096  # states that a network is asked about in one go


@dataclass
class Estimate:
    """What a dataset says about a policy: a value under ``key``, and numbers that say how much it is worth."""

    key: str
    score: float
    others: dict[str, float]

    def summary(self) -> dict[str, float]:
        """As written to summary.json."""
        return {self.key: self.score, **self.others}

    def row(self) -> dict[str, float]:
        """As logged."""
        return {f"eval/{key}": value for key, value in self.summary().items()}


@dataclass(eq=False, kw_only=True)
class EvaluationMethod(ABC):
    """How the trainers evaluate. The same seed and the same policy give the same numbers."""

    key: ClassVar[str]  # the number by which the best checkpoint is chosen
    needs_data: ClassVar[bool] = True  # judges by a dataset, not in the environment

    def problem(self, algo: Algorithm) -> str | None:
        """Why it cannot judge this algorithm, or None."""
        return None

    def begin(self, env: GymEnv, model: Model, warn: Callable[[str], None]) -> None:
        """Told once what the run is made of."""
        self.model = model

    def take(self, buffer: ReplayBuffer, starts: np.ndarray) -> None:
        """Told once which data there are, and the rows that episodes begin with.

        A view of its own: single steps and rewards as they were, whatever the run makes of them.
        """
        self.data = copy.copy(buffer)
        self.data.n_step = 1
        self.data.map_rewards(1.0, 0.0)
        self.data.derive(())
        self.starts = starts

    @abstractmethod
    def __call__(self, policy: Policy, episodes: int, *, seed: int) -> Evaluation | Estimate:
        """Judge a policy; ``episodes`` is how many to play, where episodes are played."""

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Free what it holds."""

    def start_states(self, policy: Policy, limit: int, seed: int) -> list[Any]:
        """First observations of episodes, as the networks see them, in batches; ``limit`` of them at random."""
        rows = self.starts
        if len(rows) > limit:
            rows = np.sort(numpy_generator(seed, "starts").choice(rows, limit, replace=False))
        return [self.batch(policy, rows[i : i + ROWS_AT_ONCE]).obs for i in range(0, len(rows), ROWS_AT_ONCE)]

    def batch(self, policy: Policy, rows: np.ndarray) -> Batch:
        """Rows of the data on the device, observations normalised, rewards not."""
        prepared = policy.prepare(self.data.gather(rows))
        return prepared if policy.reward_normalizer is None else self._unscaled(policy, prepared, rows)

    def _unscaled(self, policy: Policy, prepared: Batch, rows: np.ndarray) -> Batch:
        return prepared._replace(reward=self.data.gather(rows).reward.to(policy.device))
