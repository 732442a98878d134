"""Prioritized replay: the ring, sampled in proportion to how wrong the last prediction of a transition was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rlexp.buffers.ring import Columns, ReplayBuffer
from rlexp.buffers.sum_tree import SumTree
from rlexp.config.component import component
from rlexp.config.fields import Fraction, Positive
from rlexp.envs.spec import EnvSpec
from rlexp.errors import CheckpointError, RunError
from rlexp.types import Batch


@component("buffer", "prioritized")
@dataclass(eq=False, kw_only=True)
class PrioritizedBuffer(ReplayBuffer):
    """Sampling by TD error (Schaul et al., 2016, arXiv:1511.05952): P(i) ∝ pᵢ^α with pᵢ = |δᵢ| + ε.

    The bias of that is corrected by the weights (N·P(i))^−β, divided by the largest of the batch, with β growing over
    the run. New transitions get the largest priority seen so far, so that each is expected to be sampled soon.
    """

    adaptive: ClassVar[bool] = True

    alpha: Fraction = 0.6  # how much priorities count: 0 samples uniformly, 1 in proportion to the TD error
    beta: Fraction = 0.4  # correction by importance weights at the start of the run: 0 none, 1 all of it
    final_beta: Fraction = 1.0  # the same at the end of the run; linear in between
    epsilon: Positive = 1e-6  # added to every TD error, so that no transition is lost for good

    def build(
        self,
        spec: EnvSpec,
        num_envs: int,
        gamma: float,
        seed: int,
        *,
        extras: Columns | None = None,
        capacity: int | None = None,
    ) -> None:
        """Allocate the ring, and a tree over its places."""
        super().build(spec, num_envs, gamma, seed, extras=extras, capacity=capacity)
        self._priorities = SumTree(self._flat)
        self._ranked = 0  # rows (absolute) that have priorities; later ones get theirs when they are needed
        self._largest = 1.0  # largest priority seen, before the exponent
        self._beta = self.beta

    def bytes_per_transition(self, spec: EnvSpec, extras: Columns | None = None) -> int:
        """Memory that one transition takes, its priority included."""
        return super().bytes_per_transition(spec, extras) + 8

    def set_progress(self, progress: float) -> None:
        """β follows the share of the budget that is spent, so it needs no state."""
        self._beta = self.beta + (self.final_beta - self.beta) * progress

    def sample(self, n: int, batches: int = 1) -> Batch:
        """``batches`` groups of ``n`` transitions, all by the priorities of now.

        Each group takes one transition from each of ``n`` equal shares of the total priority.
        """
        if not len(self):
            raise ValueError("nothing to sample: the buffer is empty")
        self._rank_new_rows()
        share = (np.arange(n) + self._generator.random((batches, n))) / n  # [batches, n]
        index = self._priorities.find((share * self._priorities.total).reshape(-1))
        priority = self._priorities[index].reshape(batches, n)
        # (N·P(i))^−β over its largest in the batch: N and the total cancel
        weight = (priority / priority.min(1, keepdims=True)) ** -self._beta
        return self.gather(index, weight.astype(np.float32).reshape(-1))

    def update_priorities(self, index: np.ndarray, error: np.ndarray) -> None:
        """TD errors [n] of the transitions sampled at ``index``; where one occurs twice, the later one counts."""
        priority = np.abs(error.astype(np.float64)) + self.epsilon
        largest = float(priority.max())
        if not np.isfinite(largest):
            raise RunError(
                "The TD errors are no longer finite: the networks have diverged. Try a smaller learning rate."
            )
        self._largest = max(self._largest, largest)
        self._priorities.update(index, priority**self.alpha)

    def _rank_new_rows(self) -> None:
        """Give the rows added since the last call the largest priority; those that are no longer sampled get none."""
        first = max(self._ranked, self.oldest_sampled)
        if first == self._rows:
            return
        envs = np.arange(self._num_envs)
        rows = np.arange(first, self._rows) % self._ring
        self._priorities.update((rows[:, None] * self._num_envs + envs).reshape(-1), self._largest**self.alpha)
        past = (self._cursor + np.arange(self._ring - self._max_rows)) % self._ring  # the place written next first
        self._priorities.update((past[:, None] * self._num_envs + envs).reshape(-1), 0.0)
        self._ranked = self._rows

    # --- saving -----------------------------------------------------------------------------------------------------

    def state_dict(self, rows: bool = True) -> dict[str, Any]:
        """The ring's state and the priorities, which change and so cannot lie in segments."""
        self._rank_new_rows()
        return super().state_dict(rows) | {
            "priority": self._priorities[self._stored_places()],
            "largest_priority": self._largest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back ring and tree."""
        super().load_state_dict(state)
        priority, largest = state.get("priority"), state.get("largest_priority")
        place = self._stored_places()
        fits = isinstance(priority, np.ndarray) and priority.shape == place.shape and priority.dtype == np.float64
        if not fits or not bool(np.all(np.isfinite(priority) & (priority > 0))):  # type: ignore[operator, arg-type]
            raise CheckpointError("The replay buffer's priorities are missing or damaged.")
        if not isinstance(largest, float) or not 0 < largest < np.inf:
            raise CheckpointError("The replay buffer's largest priority is missing or damaged.")
        self._priorities = SumTree(self._flat)
        self._priorities.update(place, priority)  # type: ignore[arg-type]
        self._ranked, self._largest = self._rows, largest

    def _stored_places(self) -> np.ndarray:
        """Where the stored transitions lie, in the order of time."""
        rows = np.arange(self.oldest_sampled, self._rows) % self._ring
        return (rows[:, None] * self._num_envs + np.arange(self._num_envs)).reshape(-1)
