"""What the critics expect of the first states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from rlexp.algos.base import Algorithm
from rlexp.config.component import component
from rlexp.config.fields import Count
from rlexp.evaluators.base import Estimate, EvaluationMethod
from rlexp.policy import Policy


@component("evaluator", "initial_value")
@dataclass(eq=False, kw_only=True)
class InitialValue(EvaluationMethod):
    """The mean of Q(s₀, π(s₀)) over the first states s₀ of the dataset's episodes, by the algorithm's own critics.

    It costs nothing, and it is the agent's own opinion: critics that overrate what is not in the data overrate this,
    too. Discounted, and in the units that the agent learns in (``dataset.reward``).
    """

    key: ClassVar[str] = "initial_value"

    max_states: Count = 10_000  # first states that are asked about, at random where the dataset has more

    def problem(self, algo: Algorithm) -> str | None:
        """Only what has a Q can be asked."""
        if type(algo).action_value is Algorithm.action_value:
            return f"asks for Q(s, a), which {type(algo).__name__} does not learn. Use evaluator=fqe"
        return None

    def __call__(self, policy: Policy, episodes: int, *, seed: int) -> Estimate:
        """Ask the critics."""
        with torch.no_grad():
            values = torch.cat(
                [
                    policy.algo.action_value(obs, policy.act(obs, None, explore=False).action)
                    for obs in self.start_states(policy, self.max_states, seed)
                ]
            ).double()
        spread = float(values.std(correction=0))
        return Estimate(self.key, float(values.mean()), {"initial_value_std": spread, "states": len(values)})
