"""What the loops that learn from a replay memory share: batches sampled together, and TD errors told to the memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from rlexp.algos.base import Algorithm
from rlexp.buffers import ReplayBuffer
from rlexp.errors import ConfigError
from rlexp.policy import batch_map
from rlexp.trainers.base import Trainer
from rlexp.types import Batch


class FromMemory(Trainer):
    """A loop whose updates learn from batches of ``self.buffer``."""

    buffer: ReplayBuffer

    def learn_from(self, batches: Batch, k: int) -> None:
        """One update on each of ``k`` batches that were sampled together, [k·B, …].

        An adaptive memory learns of the TD errors after the last of them, in one copy from the device: all k were
        sampled by the priorities of before.
        """
        index = batches.index
        if index is not None:
            self.metrics |= self.shares(index.view(k, -1)[-1].numpy())
        errors = [self.learn(batch).priority for batch in each(self.policy.prepare(batches), k)]
        if self.buffer.adaptive:
            given = [error for error in errors if error is not None]
            if len(given) < len(errors):
                raise ConfigError(
                    f"{type(self.algo).__name__} reports no TD errors to set priorities by (Update.priority). "
                    "Use buffer=replay."
                )
            assert index is not None
            self.update_priorities(index.view(k, -1).numpy(), torch.stack(given).numpy(force=True))

    def shares(self, index: np.ndarray) -> dict[str, float]:
        """Which part of a batch [B] came from each source of the data, where there are several."""
        return source_shares(self.buffer.source_counts(index), len(index))

    def update_priorities(self, index: np.ndarray, error: np.ndarray) -> None:
        """Hand TD errors [k, B] to the memory that the transitions came from."""
        self.buffer.update_priorities(index.reshape(-1), error.reshape(-1))

    def set_gamma(self, gamma: float) -> None:
        """Sample with another discount from now on."""
        self.buffer.set_gamma(gamma)


def source_shares(counts: np.ndarray, size: int) -> dict[str, float]:
    """Rows of each source in a batch of ``size``, as metrics."""
    return {f"batch/source_{number}_share": float(count) / size for number, count in enumerate(counts)}


def derive_columns(buffer: ReplayBuffer, algo: Algorithm) -> None:
    """Let a buffer that was built give batches the columns that an algorithm asks for."""
    buffer.derive(algo.derived, float(algo.gamma), algo.failing_reward())


def sample_batches(buffer: ReplayBuffer, size: int, k: int, progress: float) -> Batch:
    """``k`` batches at once, one after the other in [k·size, …]."""
    buffer.set_progress(progress)
    return buffer.sample(size, k)


def each(batches: Batch, k: int) -> Iterator[Batch]:
    """The ``k`` batches that lie one after the other in [k·B, …]."""
    if k == 1:
        yield batches
        return
    rows = batch_map(lambda t: t.view(k, -1, *t.shape[1:]).unbind(0), batches)
    for i in range(k):
        yield batch_map(lambda parts, i=i: parts[i], rows)
