"""The offline loop: learn from a dataset alone, counted in updates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from rlexp.algos.base import OFFLINE
from rlexp.buffers import ReplayBuffer
from rlexp.buffers.derived import LAMBDA_RETURN
from rlexp.config.component import component
from rlexp.config.fields import Count, Natural, Range, Share, Size
from rlexp.datasets.describing import describe
from rlexp.errors import CheckpointError, ConfigError, DataError
from rlexp.seeding import derive_seed
from rlexp.trainers.from_memory import FromMemory, derive_columns, sample_batches
from rlexp.types import Batch

BATCHES_AT_ONCE = 16  # gathered together; never across an interval's end, so that a checkpoint falls between gathers
Epochs = Annotated[float, Range(0, 1e9, open_low=True)]


@component("trainer")
@dataclass(eq=False, kw_only=True)
class Offline(FromMemory):
    """Updates on batches of a dataset; the environment serves only for evaluation."""

    loop: ClassVar[str] = OFFLINE
    unit: ClassVar[str] = "updates"

    total_steps: int = field(init=False, default=0)
    total_updates: Count | None = 100_000  # budget in gradient updates
    total_epochs: Epochs | None = None  # budget in passes over the data; then total_updates must be null
    batch_size: Size = 256  # transitions in an update
    best_episodes: Share = 1.0  # part of the dataset's episodes that is learned from, those of the highest return
    log_interval: Count = 1_000  # updates between rows of metrics
    eval_interval: Natural = 10_000  # updates between evaluations; 0: only at the end
    video_interval: Natural = 0  # updates between videos of an episode, for the folder videos and the loggers; 0: none
    checkpoint_interval: Natural = 10_000  # updates between checkpoints; 0: only at a new best and at the end

    def __post_init__(self) -> None:
        if self.total_epochs is None and self.total_updates is None:
            raise ConfigError("trainer.total_updates and trainer.total_epochs are both null: give one of them.")
        if self.total_epochs is not None and self.total_updates is not None:
            raise ConfigError(
                f"trainer.total_epochs={self.total_epochs:g} and trainer.total_updates={self.total_updates} are two "
                "budgets: set trainer.total_updates=null to count in epochs."
            )

    def prepare(self) -> None:
        """Load the dataset into memory."""
        assert isinstance(self.work.buffer, ReplayBuffer)
        self.buffer = self.work.buffer
        if self.best_episodes < 1:
            assert self.work.dataset is not None
            self.work.dataset = best = self.work.dataset.best_episodes(self.best_episodes)
            self.work.recorder.console.note(f"trainer.best_episodes={self.best_episodes:g} of these: {describe(best)}.")
        load_dataset(self.buffer, self.work, float(self.algo.gamma))
        self.plan(len(self.buffer))

    def plan(self, rows: int) -> None:
        """An epoch is as many updates as it takes to draw as many transitions as there are."""
        self.rows = rows

    def iterate(self) -> None:
        """A few updates whose batches are gathered together; one by one where each has its own schedules or priorities.

        How many are gathered depends on the intervals, which must not change what is learned.
        """
        k = self.until_next_event(1 if self.algo.scheduled or self.buffer.adaptive else BATCHES_AT_ONCE)
        if self.buffer.lambda_returns is not None:
            algo: Any = self.algo  # what `buffers/derived.py` asks of one that learns from these
            if self.updates % algo.return_interval == 0:
                self.buffer.value_dataset(self.values, float(algo.td_lambda))
            k = min(k, algo.return_interval - self.updates % algo.return_interval)
        self.learn_from(sample_batches(self.buffer, self.batch_size, k, self.progress), k)

    def values(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """V of the states and next states of a batch, by the networks of now."""
        algo: Any = self.algo
        batch = self.policy.prepare(batch)
        with torch.no_grad():
            value, next_value = (algo.value(obs).numpy(force=True) for obs in (batch.obs, batch.next_obs))
        return value, next_value

    @property
    def clock(self) -> int:
        """Updates so far."""
        return self.updates

    @property
    def budget(self) -> int:
        """Updates in all."""
        if self.total_epochs is None:
            assert self.total_updates is not None
            return self.total_updates
        return math.ceil(self.total_epochs * self.rows / self.batch_size)

    def planned_updates(self, algo: Any, num_envs: int) -> int:
        """The budget itself."""
        return self.budget

    def loop_state(self) -> dict[str, Any]:
        """The sampler's random state, and which data it samples from; returns that earlier networks gave them."""
        state = {"buffer": self.buffer.state_dict(rows=False)} | dataset_state(self.work)
        returns = self.buffer.lambda_returns
        return state if returns is None else state | {LAMBDA_RETURN: returns.copy()}

    def load_loop_state(self, state: dict[str, Any], segments: dict[str, Any]) -> None:
        """Continue sampling where it stopped, if the data are the same."""
        check_dataset(state["dataset"], self.work.dataset_hash)
        self.buffer.load_state_dict(state["buffer"])
        if self.buffer.lambda_returns is not None:
            saved = state.get(LAMBDA_RETURN)
            if not isinstance(saved, np.ndarray) or saved.shape != self.buffer.lambda_returns.shape:
                raise CheckpointError(
                    "The checkpoint lacks the returns of its dataset, or is damaged. Use an older one."
                )
            self.buffer.lambda_returns[:] = saved


def load_dataset(buffer: ReplayBuffer, work: Any, gamma: float) -> None:
    """Move the run's dataset into a buffer of just the right size, in agent units; fit the normalisers to it."""
    data, work.dataset = work.dataset, None  # from here on the buffer alone holds it
    policy = work.policy
    if work.origin is None:  # otherwise values are learned already, from rewards on their own scale
        work.reward_map = data.reward_scale, data.reward_shift
    buffer.build(policy.spec, 1, gamma, derive_seed(work.seed, "dataset"), capacity=len(data))
    buffer.map_rewards(*work.reward_map)
    derive_columns(buffer, policy.algo)
    buffer.extend(replace(data, action=policy.agent_action(data.action)))
    if policy.obs_normalizer is not None:
        policy.obs_normalizer.update(policy.tensor(data.obs))
    work.evaluator.take(buffer, data.starts())


def dataset_state(work: Any) -> dict[str, Any]:
    """Which data the run learns from, and what their rewards are mapped by."""
    scale, shift = work.reward_map
    return {"dataset": work.dataset_hash, "reward_map": {"scale": scale, "shift": shift}}


def check_dataset(saved: str, found: str | None) -> None:
    """Refuse to continue on other data than the run began with."""
    assert found is not None
    if saved != found:
        raise DataError(
            f"The dataset is not the one this run began with (sha256 {found[:12]}…, was {saved[:12]}…). "
            "Restore the file, or start a new run on the new data."
        )
