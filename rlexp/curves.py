"""What a run's evaluations come to as a whole: the numbers by which runs are compared. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from rlexp.loggers.format import outcome


def curve_summary(rows: Iterable[Mapping[str, Any]], axis: str, threshold: float | None = None) -> dict[str, Any]:
    """Of the rows of metrics.jsonl: the area under the curve of evaluations, and when it first reached ``threshold``.

    The area is that of straight lines between evaluations, divided by its width: the mean return over the part of the
    run that was evaluated. ``axis`` is env_steps or updates.
    """
    points = [
        (row, found[1])
        for row in rows
        if (found := outcome(row, "eval/")) and isinstance(found[1], int | float) and isinstance(row.get(axis), int)
    ]
    reached = next((row for row, value in points if threshold is not None and value >= threshold), None)
    return {
        "evaluations": len(points),
        "area": _area([(row[axis], value) for row, value in points]),
        "threshold": threshold,
        f"{axis}_to_threshold": None if reached is None else reached[axis],
        "seconds_to_threshold": None if reached is None else reached.get("time_s"),
    }


def _area(points: list[tuple[int, float]]) -> float | None:
    """The mean height of the line through ``points``; None where it has no finite one."""
    if not points:
        return None
    width = points[-1][0] - points[0][0]
    if not width:
        return points[-1][1] if math.isfinite(points[-1][1]) else None
    trapezoids = ((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(points))
    area = sum(trapezoids) / width
    return area if math.isfinite(area) else None
