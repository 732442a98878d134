"""Statistics over few seeds: interquartile mean, bootstrap intervals, performance profiles. NumPy only.

Everything is deterministic. Where there are few enough resamples they are enumerated, so an interval is exact; where
they are drawn, it is with a fixed seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

LEVEL = 0.95
ENUMERATED = 6  # up to so many values all resamples are taken: 6⁶ = 46,656
DRAWS = 10_000
SEED = 0

Statistic = Callable[[np.ndarray], np.ndarray]  # [..., n] → [...]
Interval = tuple[float, float]


def mean(values: np.ndarray) -> np.ndarray:
    """The mean over the last axis."""
    return np.mean(values, axis=-1)  # type: ignore[no-any-return]


def iqm(values: np.ndarray) -> np.ndarray:
    """The mean of the middle half of the last axis: a quarter is cut off at both ends.

    A value that lies across a quartile counts in part, so that three values are weighted ¼ : 1 : ¼.
    """
    ordered = np.sort(values, axis=-1)
    count = ordered.shape[-1]
    edges = np.arange(count + 1)
    inside = np.clip(edges, 0.25 * count, 0.75 * count)
    return ordered @ (np.diff(inside) / (0.5 * count))  # type: ignore[no-any-return]


def interval(values: Sequence[float], statistic: Statistic = mean, level: float = LEVEL) -> Interval | None:
    """Percentile bootstrap interval of a statistic; None of a single value, about whose spread nothing is known."""
    if len(values) < 2:
        return None
    return _percentiles(statistic(np.asarray(values, float)[_resamples(len(values))]), level)


def stratified_interval(
    groups: Sequence[Sequence[float]], statistic: Statistic, level: float = LEVEL, draws: int = DRAWS
) -> Interval | None:
    """The same of a statistic over the values of all groups; every group is resampled on its own."""
    if all(len(group) < 2 for group in groups):
        return None
    return _percentiles(statistic(np.concatenate(resampled(groups, draws), axis=-1)), level)


def resampled(groups: Sequence[Sequence[float]], draws: int = DRAWS) -> list[np.ndarray]:
    """Of each group ``draws`` resamples [draws, n]."""
    rng = np.random.default_rng(SEED)
    return [np.asarray(group, float)[rng.integers(0, len(group), (draws, len(group)))] for group in groups]


def profile(groups: Sequence[Sequence[float]], thresholds: np.ndarray, draws: int = 2_000) -> np.ndarray:
    """Share of runs that score at least each threshold, and its interval: [3, thresholds]. Groups weigh the same."""
    at_least = [np.asarray(group, float)[:, None] >= thresholds for group in groups]  # [n, T] each
    share = np.mean([reached.mean(0) for reached in at_least], axis=0)
    rng = np.random.default_rng(SEED)
    redrawn = np.zeros((draws, len(thresholds)))
    for reached in at_least:
        counts = rng.multinomial(len(reached), [1 / len(reached)] * len(reached), draws)  # how often each run is drawn
        redrawn += counts @ reached / (len(reached) * len(groups))
    low, high = np.quantile(redrawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return np.stack([share, low, high])


@cache
def _resamples(count: int) -> np.ndarray:
    """Positions of resamples of ``count`` values: [resamples, count]."""
    if count <= ENUMERATED:
        return np.array(list(itertools.product(range(count), repeat=count)))
    return np.random.default_rng(SEED).integers(0, count, (DRAWS, count))


def _percentiles(values: np.ndarray, level: float) -> Interval:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return float(low), float(high)
