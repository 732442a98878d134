"""Hooks into a run: Hydra targets listed in ``trainer.callbacks``, with their state in the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlexp.evaluation import Evaluation
    from rlexp.evaluators.base import Estimate
    from rlexp.trainers.base import Trainer


class Callback:
    """Derive from this and override what is needed; ``trainer`` gives access to everything.

    What :meth:`state_dict` returns (arrays, numbers, strings, in dicts and lists) is saved with every checkpoint and
    handed to :meth:`load_state_dict` on resume. Call ``trainer.stop(reason)`` to end the run early.
    """

    def on_start(self, trainer: Trainer) -> None:
        """Before the first step of this process, after a checkpoint was loaded if there is one."""

    def on_step(self, trainer: Trainer) -> None:
        """After every iteration of the loop (on-policy: a rollout and its update)."""

    def on_eval(self, trainer: Trainer, evaluation: Evaluation | Estimate) -> None:
        """After every evaluation; ``evaluation.score`` is what the best checkpoint is chosen by."""

    def on_checkpoint(self, trainer: Trainer, path: Path) -> None:
        """After a checkpoint was written; state changed here is in the next one."""

    def on_end(self, trainer: Trainer) -> None:
        """When the run is complete, before its summary is written."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a resume."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave."""
