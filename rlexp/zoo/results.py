"""What a manifest comes to: the numbers that pages, pictures and listings show. Free of torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlexp.zoo import manifest as manifests
from rlexp.zoo.statistics import Interval, interval, iqm
from rlexp.zoo.targets import TARGETS, Target

Reached = tuple[int, float] | None  # steps or updates, and seconds, until the target was first reached


@dataclass(frozen=True)
class Result:
    """A manifest with its figures."""

    manifest: dict[str, Any]

    @property
    def preset(self) -> str:
        """Its name."""
        return str(self.manifest["preset"])

    @property
    def runs(self) -> list[dict[str, Any]]:
        """One for each seed."""
        return list(self.manifest["runs"])

    @property
    def env(self) -> str:
        """Of Gymnasium's registry."""
        return str(self.manifest["env"])

    @property
    def unit(self) -> str:
        """What the budget counts: steps or updates."""
        return str(self.manifest["unit"])

    @property
    def success(self) -> bool:
        """Whether the share of successful episodes was measured, not their return."""
        return bool(self.manifest["figure"] == "success_rate")

    @property
    def target(self) -> Target | None:
        """What the preset is held to, if anything."""
        return TARGETS.get(self.preset)

    @cached_property
    def finals(self) -> list[float]:
        """The last evaluation of each seed."""
        return [float(run["eval"][self.manifest["figure"]]) for run in self.runs]

    @property
    def n(self) -> int:
        """Seeds."""
        return len(self.finals)

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.fmean(self.finals)

    @property
    def median(self) -> float:
        """Over seeds."""
        return statistics.median(self.finals)

    @property
    def iqm(self) -> float:
        """The mean of the middle half of the seeds."""
        return float(iqm(np.array(self.finals)))

    @cached_property
    def interval(self) -> Interval | None:
        """95 % bootstrap interval of the mean; None of one seed."""
        return interval(self.finals)

    @property
    def changes(self) -> list[str]:
        """Settings in which the runs differ from the preset."""
        return list(dict.fromkeys(word for run in self.runs for word in run["changes"]))

    @property
    def spent(self) -> int:
        """Steps or updates, of the seed that took most."""
        return max(int(run["spent"]) for run in self.runs)

    @property
    def wall_time_s(self) -> float:
        """Seconds, the median over seeds."""
        return statistics.median(run["wall_time_s"] for run in self.runs)

    @property
    def data_mean(self) -> float | None:
        """The mean return of the episodes that were learned from."""
        data = self.manifest["data"]
        return None if data is None else float(data["return_mean"])

    @property
    def met(self) -> bool | None:
        """Whether the target was met; None where there is none, or the runs are not those of the preset."""
        if self.target is None or self.changes:
            return None
        return self.target.met(self.finals, self.spent, self.data_mean)

    @property
    def at_target(self) -> int | None:
        """How many seeds are as the target wants them; None where there is none to meet."""
        if self.target is None or self.changes:
            return None
        target = self.target
        return sum((value < target.least) if target.fails else (value >= target.least) for value in self.finals)

    @property
    def scores(self) -> list[float]:
        """Each seed on a scale from 0, what uniform actions reach, to 1, the target; empty without such a scale."""
        target, random = self.target, self.manifest["random"]
        if target is None or target.fails or self.changes or random is None:
            return []
        floor = float(random[self.manifest["figure"]])
        return [(value - floor) / (target.least - floor) for value in self.finals]

    @property
    def to_target(self) -> list[Reached]:
        """For each seed when its evaluation first reached the target; empty where there is none to reach.

        Runs with other settings than the preset's have none: the target belongs to its budget.
        """
        if self.target is None or self.target.fails or self.changes:
            return []
        least = self.target.least
        return [next(((x, s) for x, value, s in run["curve"] if value >= least), None) for run in self.runs]

    def shown(self, value: float) -> str:
        """A return, or a rate of success, as it is written."""
        return f"{value:.2f}" if self.success else f"{value:.1f}"


def load(folder: Path) -> list[Result]:
    """The results of all manifests in a folder that have runs."""
    return [Result(each) for each in manifests.load(folder) if each["runs"]]


def median_to_target(reached: Sequence[Reached]) -> Reached:
    """The median over seeds, of which those that never reached it count as infinitely late; None if it is that late."""
    if not reached:
        return None
    each = [(float("inf"), float("inf")) if one is None else (float(one[0]), one[1]) for one in reached]
    amount, seconds = (statistics.median(column) for column in zip(*each))
    return None if amount == float("inf") else (round(amount), seconds)


def digest(results: Sequence[Result]) -> dict[str, Any]:
    """The last result of each preset in short, for ``rlexp list zoo``."""
    return {
        result.preset: {
            "env": result.env,
            "n": result.n,
            "success": result.success,
            "mean": round(result.mean, 3),
            "median": round(result.median, 3),
            "iqm": round(result.iqm, 3),
            "interval": None if result.interval is None else [round(each, 3) for each in result.interval],
            "met": result.met,
            "at_target": result.at_target,
            "spent": result.spent,
            "unit": result.unit,
            "wall_time_s": round(result.wall_time_s, 1),
            "measured": max(run["created"] for run in result.runs)[:10],
        }
        for result in sorted(results, key=lambda each: each.preset)
    }
