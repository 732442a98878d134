"""How the jobs of a sweep are made: a grid of everything that was named, or a search. Settings only; free of torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from rlexp.config.component import component
from rlexp.config.fields import Count, Fraction, Natural


@dataclass(eq=False, kw_only=True)
class Sweep:
    """What both kinds have."""

    params: dict[str, str] = field(default_factory=dict)  # setting: values in Hydra's syntax; the command line wins


@component("sweep")
@dataclass(eq=False, kw_only=True)
class Grid(Sweep):
    """One run for every combination of values."""


class Direction(Enum):
    """Which results are the better ones."""

    maximize = "maximize"
    minimize = "minimize"


class Objective(Enum):
    """The number of a run that is compared."""

    last = "last"  # mean return of the last evaluation
    best = "best"  # that of the best one
    area = "area"  # mean over the whole evaluation curve: prefers what learns early


class Sampler(Enum):
    """How the next trial is chosen."""

    tpe = "tpe"  # where results so far were good (tree-structured Parzen estimator)
    random = "random"


class Pruner(Enum):
    """Which trials are ended before their budget is spent."""

    median = "median"  # those whose best evaluation so far is below the median of the earlier trials at that step
    halving = "halving"  # successive halving: only the better third goes on, at ever larger budgets
    none = "none"


@component("sweep", "optuna")
@dataclass(eq=False, kw_only=True)
class OptunaSearch(Sweep):
    """A search by Optuna: each trial is chosen by the results of the earlier ones."""

    trials: Count = 50  # in total, over all resumes
    direction: Direction = Direction.maximize  # maximize or minimize
    objective: Objective = Objective.last  # last, best or area: the number of a run's evaluations that is compared
    sampler: Sampler = Sampler.tpe  # tpe or random
    pruner: Pruner = Pruner.median  # median, halving or none
    startup_trials: Natural = 10  # trials that are drawn at random and run to their end, before anything is concluded
    prune_after: Fraction = 0.2  # share of its budget that every trial is given
    seed: int = 0  # of the choices; the runs have their own

    def __post_init__(self) -> None:
        self.direction, self.objective = Direction(self.direction), Objective(self.objective)
        self.sampler, self.pruner = Sampler(self.sampler), Pruner(self.pruner)
