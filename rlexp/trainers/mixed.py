"""The mixed loop: the replay loop with prior data in every batch, after optional updates on the data alone."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rlexp.algos.base import MIXED
from rlexp.config.component import component
from rlexp.config.fields import Fraction, Natural
from rlexp.trainers.from_memory import sample_batches, source_shares
from rlexp.trainers.offline import BATCHES_AT_ONCE, check_dataset, dataset_state, load_dataset
from rlexp.trainers.replay import Replay
from rlexp.tree import tree_map
from rlexp.types import Batch


@component("trainer")
@dataclass(eq=False, kw_only=True)
class Mixed(Replay):
    """Environment steps as in the replay loop; each batch holds ``offline_batch_ratio`` of prior data."""

    loop: ClassVar[str] = MIXED

    offline_pretrain_updates: Natural = 0  # updates on the prior data before the first environment step
    offline_batch_ratio: Fraction = 0.5  # share of each batch that comes from the prior data

    def prepare(self) -> None:
        """Create environments and memory, and load the prior data beside it."""
        self.prior = copy.copy(self.work.buffer)  # the same settings, its own storage
        super().prepare()
        load_dataset(self.prior, self.work, float(self.algo.gamma))
        self.buffer.map_rewards(*self.work.reward_map)

    @property
    def pretraining(self) -> bool:
        """Whether the run is still learning from the prior data alone."""
        return self.updates < self.offline_pretrain_updates

    def iterate(self) -> None:
        """Updates on the prior data while pretraining, then steps of the replay loop."""
        alone = self.pretraining
        self.offline_rows = self.batch_size if alone else round(self.batch_size * self.offline_batch_ratio)
        if not alone:
            return super().iterate()
        at_once = 1 if self.prior.adaptive else BATCHES_AT_ONCE
        k = min(self.until_next_event(at_once), self.offline_pretrain_updates - self.updates)
        self.learn_from(sample_batches(self.prior, self.batch_size, k, self.progress), k)
        return None

    def sample(self, k: int) -> Batch:
        """``k`` batches, each with its share of prior data first."""
        offline, parts = self.offline_rows, []
        if offline:
            parts.append(sample_batches(self.prior, offline, k, self.progress))
        if offline < self.batch_size:
            parts.append(sample_batches(self.buffer, self.batch_size - offline, k, self.progress))
        return parts[0] if len(parts) == 1 else join(parts[0], parts[1], k)

    def update_priorities(self, index: np.ndarray, error: np.ndarray) -> None:
        """TD errors of the prior data and of the memory, each to its own."""
        offline = self.offline_rows
        for buffer, part in ((self.prior, np.s_[:, :offline]), (self.buffer, np.s_[:, offline:])):
            if index[part].size:
                buffer.update_priorities(index[part].reshape(-1), error[part].reshape(-1))

    def shares(self, index: np.ndarray) -> dict[str, float]:
        """The part of a batch [B] that is prior data, and of each of its sources."""
        offline, size = self.offline_rows, len(index)
        sources = self.prior.source_counts(index[:offline])
        return {"batch/offline_share": offline / size} | source_shares(sources, size)

    @property
    def knows_nothing(self) -> bool:
        """Pretraining is learning, too."""
        return super().knows_nothing and not self.offline_pretrain_updates

    @property
    def step_key(self) -> str:
        """Updates before the first environment step would all lie on one point of environment steps."""
        return "step" if self.offline_pretrain_updates else super().step_key

    def set_gamma(self, gamma: float) -> None:
        """Sample with another discount from now on."""
        self.buffer.set_gamma(gamma)
        self.prior.set_gamma(gamma)

    @property
    def clock(self) -> int:
        """Updates while pretraining, environment steps afterwards."""
        return self.updates if self.pretraining else self.env_steps

    def _crossed(self, interval: int, before: int) -> bool:
        if self.pretraining or self.env_steps:
            return super()._crossed(interval, before)
        return interval > 0 and self.updates // interval > before // interval  # the last updates of the pretraining

    @property
    def budget(self) -> int:
        """The larger of the two while pretraining, so that it cannot end the run."""
        return self.total_steps + self.offline_pretrain_updates if self.pretraining else self.total_steps

    @property
    def progress(self) -> float:
        """Schedules follow the online phase."""
        return 0.0 if self.pretraining else super().progress

    @property
    def checkpoint_number(self) -> int:
        """Pretraining updates and environment steps together: it only grows."""
        return min(self.updates, self.offline_pretrain_updates) + self.env_steps

    def check_budget(self, num_envs: int) -> None:
        """Pretraining is learning, too."""
        if not self.offline_pretrain_updates:
            super().check_budget(num_envs)

    def planned_updates(self, algo: Any, num_envs: int) -> int:
        """Pretraining and online updates."""
        return self.offline_pretrain_updates + super().planned_updates(algo, num_envs)

    def loop_state(self) -> dict[str, Any]:
        """As in the replay loop, with the sampler of the prior data."""
        return super().loop_state() | {"prior": self.prior.state_dict(rows=False)} | dataset_state(self.work)

    def load_loop_state(self, state: dict[str, Any], segments: dict[str, Any]) -> None:
        """Put everything back, if the prior data are the same."""
        check_dataset(state["dataset"], self.work.dataset_hash)
        self.prior.load_state_dict(state["prior"])
        super().load_loop_state(state, segments)


def join(first: Batch, second: Batch, k: int) -> Batch:
    """``k`` batches [k·B₁, …] and ``k`` others [k·B₂, …] as [k·(B₁ + B₂), …], each made of one of both."""

    def cat(a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([part.view(k, -1, *part.shape[1:]) for part in (a, b)], 1).flatten(0, 1)

    parts: list[Any] = [
        None if left is None or right is None else tree_map(cat, left, right) for left, right in zip(first, second)
    ]
    return Batch(*parts)
