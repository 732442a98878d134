"""Types for component fields: the base type for the schema, the range for the check.

``gamma: Fraction = 0.99`` is an ordinary float to Python and to mypy; the config layer reads the annotation and
refuses a value outside the range before anything runs. ``Size`` marks a number that fixes the shape of a network or
buffer, so it cannot be scheduled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Range:
    """Bounds of a numeric field; ``open_low`` excludes the lower bound itself."""

    low: float = float("-inf")
    high: float = float("inf")
    open_low: bool = False

    def problem(self, value: Any, *, closed: bool = False) -> str | None:
        """What is wrong with ``value``, or None; ``closed``: the lower bound itself is allowed."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None  # the type is checked elsewhere
        if value != value:
            return "must be a number"
        if self.open_low and not closed and not value > self.low:
            return f"must be greater than {self.low:.12g}"
        if not value >= self.low:
            return f"must be at least {self.low:.12g}"
        if not value <= self.high:
            return f"must be at most {self.high:.12g}"
        return None


@dataclass(frozen=True)
class Static:
    """The field is fixed once the component is built."""


@dataclass(frozen=True)
class Part:
    """The field chooses a part of the component: by its name in ``group``, or with settings, ``{_target_: …}``."""

    group: str


Positive = Annotated[float, Range(0, open_low=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
Share = Annotated[float, Range(0, 1, open_low=True)]
Count = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
Structure = Annotated[bool, Static()]  # a switch that decides which networks there are
Size = Annotated[int, Range(1, 2**31 - 1), Static()]  # no array has a longer axis
