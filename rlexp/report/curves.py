"""Learning curves of a run, thinned while they are read: however long the run, so many points come out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

AXES = ("env_steps", "updates", "time_s")
MAX_METRICS = 200  # names in one run; a stranger's rows may all have other ones


class Curve:
    """One metric. Where there are too many points, neighbours are joined: their mean, at the place of the last."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.joined = 1  # logged points in one of the curve
        self.points: list[tuple[float, ...]] = []  # steps, updates, time
        self.values: list[float | None] = []  # None: nothing finite
        self._sum, self._finite, self._count = 0.0, 0, 0
        self._last: tuple[float, ...] = ()

    def add(self, point: tuple[float, ...], value: float) -> None:
        """Take in the next logged point."""
        if math.isfinite(value):
            self._sum, self._finite = self._sum + value, self._finite + 1
        self._count, self._last = self._count + 1, point
        if self._count == self.joined:
            self._flush()
            if len(self.values) == 2 * self.limit:
                self._join()

    def _flush(self) -> None:
        self.points.append(self._last)
        self.values.append(self._sum / self._finite if self._finite else None)
        self._sum, self._finite, self._count = 0.0, 0, 0

    def _join(self) -> None:
        """Every two neighbours become one."""
        self.points = self.points[1::2]
        self.values = [_mean(pair) for pair in zip(self.values[::2], self.values[1::2])]
        self.joined *= 2

    def finish(self) -> None:
        """No more points come."""
        if self._count:
            self._flush()
        while len(self.values) > self.limit:
            if len(self.values) % 2:  # the last point is what a reader looks for: it stays by itself
                self.points.append(self.points[-1])
                self.values.append(self.values[-1])
            self._join()


def _mean(pair: Iterable[float | None]) -> float | None:
    finite = [value for value in pair if value is not None]
    return sum(finite) / len(finite) if finite else None


def read_curves(rows: Iterable[Mapping[str, Any]], limit: int) -> tuple[dict[str, Any], int]:
    """The curves of a run as the page reads them, and how many logged points are at most joined in one of theirs.

    ``{"grids": [[steps, updates, time], …], "curves": {metric: [number of its grid, values]}, "last": {metric: …}}``:
    metrics that are logged together share their places.
    """
    curves: dict[str, Curve] = {}
    last: dict[str, float] = {}
    for row in rows:
        point = tuple(_place(row.get(axis)) for axis in AXES)
        for name, value in row.items():
            if name in AXES or not _is_number(value):
                continue
            curve = curves.get(name)
            if curve is None:
                if len(curves) == MAX_METRICS:
                    continue
                curve = curves[name] = Curve(limit)
            curve.add(point, value)
            if math.isfinite(value):
                last[name] = short(value)
    grids: dict[tuple[tuple[float, ...], ...], int] = {}
    found: dict[str, Any] = {}
    for name in sorted(curves):
        curve = curves[name]
        curve.finish()
        grid = grids.setdefault(tuple(curve.points), len(grids))
        found[name] = [grid, [None if value is None else short(value) for value in curve.values]]
    columns = [[[short(each) for each in column] for column in zip(*grid)] for grid in grids]
    joined = max((curve.joined for curve in curves.values()), default=1)
    return {"grids": columns, "curves": found, "last": last}, joined


def _place(value: Any) -> float:
    return float(value) if _is_number(value) and abs(value) < 1e15 else 0.0  # NaN is not less


def short(value: float) -> float | int:
    """Six digits, which no screen shows more of."""
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
