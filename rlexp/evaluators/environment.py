"""Episodes in the environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rlexp.buffers import ReplayBuffer
from rlexp.config.component import component
from rlexp.envs import GymEnv
from rlexp.evaluation import Evaluation, Evaluator
from rlexp.evaluators.base import EvaluationMethod
from rlexp.models import Model
from rlexp.policy import Policy


@component("evaluator", "environment")
@dataclass(eq=False, kw_only=True)
class InEnvironment(EvaluationMethod):
    """Whole episodes, ``trainer.eval_episodes`` of them; the only way to know a return."""

    key: ClassVar[str] = "return_mean"
    needs_data: ClassVar[bool] = False

    deterministic: bool = (
        True  # greedy actions; false: as the policy explores, which frees some Atari agents from corners
    )

    def begin(self, env: GymEnv, model: Model, warn: Callable[[str], None]) -> None:
        """Environments of its own are made when they are first needed."""
        self.play = Evaluator(env, warn=warn)

    def take(self, buffer: ReplayBuffer, starts: np.ndarray) -> None:
        """It has no use for data."""

    def __call__(self, policy: Policy, episodes: int, *, seed: int) -> Evaluation:
        """The returns of some episodes."""
        return self.play(policy, episodes, seed=seed, deterministic=self.deterministic)

    def close(self) -> None:
        """Free the environments."""
        self.play.close()
