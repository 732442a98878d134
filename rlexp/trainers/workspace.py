"""What the Runner hands to a trainer, and how a signal reaches it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlexp.callbacks import Callback
from rlexp.datasets import Transitions
from rlexp.envs import GymEnv
from rlexp.evaluation import Evaluator
from rlexp.evaluators.base import EvaluationMethod
from rlexp.policy import Policy
from rlexp.recorder import Recorder
from rlexp.run_dir import RunDir
from rlexp.starting import Origin


class Interrupted(BaseException):
    """A signal asked the run to stop; a checkpoint has been saved. Not an Exception: nobody recovers from it."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number


class EvaluationBroken(BaseException):
    """A signal came during an evaluation. It is made again, from its beginning, when the run is resumed."""


@dataclass(eq=False)
class Workspace:
    """What the Runner hands to a trainer: everything that was built for this run."""

    env: GymEnv
    policy: Policy
    buffer: Any
    evaluator: EvaluationMethod
    recorder: Recorder
    run_dir: RunDir
    seed: int
    dataset: Transitions | None = None  # until the trainer has taken it into its memory
    camera: Evaluator | None = None  # plays the episodes that are filmed
    reward_map: tuple[float, float] = (1.0, 0.0)  # factor and summand of rewards, as the dataset says
    dataset_hash: str | None = None
    origin: Origin | None = None  # where the agent comes from, if it has learned in an earlier run
    callbacks: list[Callback] = field(default_factory=list)
    signal_number: int | None = None  # set by a signal handler
    evaluating: bool = False  # then a signal need not wait: what an evaluation has done so far is nobody's state

    def asked_to_stop(self, signal_number: int) -> None:
        """What a signal handler calls: the run ends after this iteration; an evaluation is broken off at once."""
        self.signal_number = signal_number
        if self.evaluating:
            raise EvaluationBroken
