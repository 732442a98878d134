"""What the loops that learn from a replay memory share: batches sampled together, and TD errors told to the memory."""

from __future__ import annotations

import numpy as np
import torch

from rlexp.buffers import ReplayBuffer
from rlexp.errors import ConfigError
from rlexp.policy import batch_map
from rlexp.trainers.base import Trainer
from rlexp.types import Batch


class FromMemory(Trainer):
    """A loop whose updates learn from batches of ``self.buffer``."""

    buffer: ReplayBuffer

    def learn_from(self, batches: Batch) -> None:
        """One update on each of several batches [k, B, …] that were sampled together.

        An adaptive memory learns of the TD errors after the last of them, in one copy from the device: all k were
        sampled by the priorities of before.
        """
        index, batches = batches.index, self.policy.prepare(batches)
        errors = [self.learn(pick(batches, i)).priority for i in range(len(batches.reward))]
        if self.buffer.adaptive:
            given = [error for error in errors if error is not None]
            if len(given) < len(errors):
                raise ConfigError(
                    f"{type(self.algo).__name__} reports no TD errors to set priorities by (Update.priority). "
                    "Use buffer=replay."
                )
            assert index is not None
            self.update_priorities(index.numpy(), torch.stack(given).numpy(force=True))

    def update_priorities(self, index: np.ndarray, error: np.ndarray) -> None:
        """Hand TD errors [k, B] to the memory that the transitions came from."""
        self.buffer.update_priorities(index.reshape(-1), error.reshape(-1))

    def set_gamma(self, gamma: float) -> None:
        """Sample with another discount from now on."""
        self.buffer.set_gamma(gamma)


def sample_batches(buffer: ReplayBuffer, size: int, k: int, progress: float) -> Batch:
    """``k`` batches at once, [k, size, …]."""
    buffer.set_progress(progress)
    return split(buffer.sample(size, k), k)


def split(batch: Batch, k: int) -> Batch:
    """[k·B, …] -> [k, B, …]."""
    return batch_map(lambda t: t.view(k, -1, *t.shape[1:]), batch)


def pick(batches: Batch, i: int) -> Batch:
    """The i-th of several batches."""
    return batch_map(lambda t: t[i], batches)
