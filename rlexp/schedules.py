"""How a hyperparameter changes over a run: a pure function of progress, so that it has no state to save."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class Shape(Enum):
    """The curve from the start value to the end value."""

    linear = "linear"
    cosine = "cosine"
    exponential = "exponential"
    step = "step"


@dataclass
class Schedule:
    """From ``start`` (the field's own value if null) to ``end`` between two fractions of the budget.

    Without an ``end`` the field keeps its value, so ``algo.schedules.gamma.end=0.999`` is all it takes to begin one.
    ``step`` keeps the start value until ``until`` and has the end value from there on.
    """

    shape: Shape = Shape.linear  # linear, cosine, exponential or step
    end: float | None = None  # value reached at `until`; null: nothing is scheduled
    start: float | None = None  # value before `begin`; null: the field's own value
    begin: float = 0.0  # fraction of the budget at which the change begins
    until: float = 1.0  # fraction of the budget at which it is complete

    def value(self, initial: float, progress: float) -> float:
        """The value at ``progress`` (0 at the beginning of the budget, 1 at its end)."""
        start = initial if self.start is None else self.start
        if progress < self.begin or self.end is None:
            return start
        if progress >= self.until:
            return self.end
        done = (progress - self.begin) / (self.until - self.begin)
        if self.shape is Shape.linear:
            return start + (self.end - start) * done
        if self.shape is Shape.cosine:
            return self.end + (start - self.end) * 0.5 * (1 + math.cos(math.pi * done))
        if self.shape is Shape.exponential:
            return start * (self.end / start) ** done
        return start

    def problem(self, initial: float) -> str | None:
        """What is wrong with this schedule for a field whose value is ``initial``, or None."""
        start = initial if self.start is None else self.start
        if self.end is None:
            return "needs the value to end at, e.g. {end: 0}"
        if not 0 <= self.begin < self.until <= 1:
            given = f"begin={self.begin:g} and until={self.until:g}"
            return f"needs 0 <= begin < until <= 1, fractions of the budget, not {given}"
        if self.shape is Shape.exponential and not (start > 0 and self.end > 0):
            return f"is exponential, which needs a positive start and end, not {start:g} and {self.end:g}"
        return None
