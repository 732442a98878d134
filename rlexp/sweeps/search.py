"""Searching with Optuna, on its ask/tell interface: a trial is a job, its number the job's, its result the run's.

What was tried is kept in optuna.log (JSON lines) in the folder of the sweep. A trial is told its result only when its
run has one: a trial that was cut short or failed stays open, and a resume goes on with its run instead of asking for
another, so that there are never more trials than were asked for. The choice of each trial depends on its number, the
seed and the results so far, so a search that was interrupted makes the choices it would have made.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from rlexp.config.component import target_of
from rlexp.config.compose import compose
from rlexp.config.trust import EVERYTHING, Trust
from rlexp.errors import ConfigError, RlexpError, RunError, UntrustedError
from rlexp.loggers.format import number as shown_number
from rlexp.loggers.format import outcome, short_path
from rlexp.runs import find_runs
from rlexp.seeding import derive_seed
from rlexp.sweeps.job import Job, state_of
from rlexp.sweeps.kinds import Direction, Objective, OptunaSearch, Pruner, Sampler
from rlexp.sweeps.launchers import Launcher, require
from rlexp.sweeps.planning import check_job, latest
from rlexp.sweeps.pruning import PruneTrial
from rlexp.sweeps.sweep_dir import PLAN, STUDY, SweepDir

NAME = "rlexp"  # of the study in optuna.log
MAX_CHECKED = 200  # of the values of a choice


def import_optuna() -> Any:
    """The package, with warnings only."""
    require("optuna", "optuna", "sweep=optuna")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Space:
    """What a search may change, in Hydra's syntax, and what stays as it was typed."""

    def __init__(self, overrides: Sequence[Override]) -> None:
        self.optuna = import_optuna()
        searched = [each for each in overrides if each.is_sweep_override()]
        self.fixed = [_text(each) for each in overrides if not each.is_sweep_override()]
        self.distributions = {each.get_key_element(): self._distribution(each) for each in searched}

    @classmethod
    def saved(cls, directory: SweepDir) -> Space:
        """As a sweep was begun with it; what somebody else has written reads nothing of this machine."""
        given = directory.info["arguments"]
        if any("${" in each for each in given):
            raise UntrustedError(f"{directory.path / PLAN} holds an interpolation; a saved sweep has plain values.")
        if any(each.lstrip("+~").startswith("hydra") for each in given):
            raise UntrustedError(
                f"{directory.path / PLAN} changes how configs are found; that is not for a saved sweep."
            )
        try:
            return cls(latest(OverridesParser.create().parse_overrides(given)))
        except HydraException as error:
            raise RunError(f"{directory.path / PLAN} is damaged: {str(error).splitlines()[0]}.") from error

    def _distribution(self, override: Override) -> Any:
        """Optuna's form of choice(…), range(…) and interval(…); tag(log, …) is logarithmic."""
        kinds = self.optuna.distributions
        value = override.value()
        log = "log" in getattr(value, "tags", ())
        try:
            if isinstance(value, IntervalSweep):
                whole = isinstance(value.start, int) and isinstance(value.end, int)
                kind = kinds.IntDistribution if whole else kinds.FloatDistribution
                return kind(value.start, value.end, log=log)
            if isinstance(value, RangeSweep):
                start, stop, step = value.start, value.stop, value.step
                assert start is not None  # Hydra's grammar has both
                assert stop is not None
                count = math.ceil((stop - start) / step)
                whole = all(isinstance(each, int) for each in (start, stop, step))
                kind = kinds.IntDistribution if whole else kinds.FloatDistribution
                return kind(start, start + (count - 1) * step, step=step)
            assert isinstance(value, ChoiceSweep)
            return kinds.CategoricalDistribution(list(override.sweep_string_iterator()))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{override.input_line} is nothing to search in: {str(error).rstrip('.')}.") from error

    # ---- before anything runs

    def extremes(self) -> Iterator[list[str]]:
        """Every end of every range and every choice, in few combinations, as overrides."""
        ends = {name: _ends(each) for name, each in self.distributions.items()}
        for index in range(max((len(values) for values in ends.values()), default=0)):
            yield [f"{name}={values[min(index, len(values) - 1)]}" for name, values in ends.items()]

    def check(self, launcher: Launcher, config_folders: Sequence[str] = ()) -> None:
        """Refuse a search that could come upon a job that cannot run."""
        if not self.distributions:
            raise ConfigError(
                "There is nothing to search: give values or intervals, e.g. "
                "'algo.learning_rate=tag(log,interval(1e-4,1e-2))', or a file of conf/search with search=…"
            )
        if launcher.at_once() is None:
            raise ConfigError(
                "A search learns from earlier trials, so not all can run at once: say how many, e.g. launcher.jobs=4."
            )
        for overrides in self.extremes():
            try:
                config = check_job(compose([*self.fixed, *overrides], config_folders))
            except RlexpError as error:
                raise ConfigError(f"{' '.join(overrides)}: {error} No job of the sweep was started.") from error
            if not config["trainer"]["eval_episodes"]:
                raise ConfigError("A search compares evaluations, and trainer.eval_episodes=0 makes none.")


def _ends(distribution: Any) -> list[str]:
    if hasattr(distribution, "choices"):
        return [str(each) for each in distribution.choices[:MAX_CHECKED]]
    return [repr(distribution.low), repr(distribution.high)]


def _text(override: Override) -> str:
    if override.is_delete():
        return str(override.input_line)
    return f"{override.get_key_element()}={override.get_value_element_as_str()}"


def open_study(folder: Path, search: OptunaSearch, budget: int | None = None) -> Any:
    """The study in a sweep's folder, made if it is new; ``budget``: of a run that asks whether to be pruned."""
    optuna = import_optuna()
    path = folder / STUDY
    if os.path.islink(path):
        raise UntrustedError(f"{path} is a symbolic link: the search would be written over something of yours.")
    pruners = optuna.pruners
    warmup = int(search.prune_after * (budget or 0))
    pruner = {
        Pruner.median: lambda: pruners.MedianPruner(search.startup_trials, n_warmup_steps=warmup),
        Pruner.halving: lambda: pruners.SuccessiveHalvingPruner(min_resource=max(1, warmup), reduction_factor=3),
        Pruner.none: pruners.NopPruner,
    }[search.pruner]()
    journal = optuna.storages.journal
    try:
        storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(path)))
        return optuna.create_study(
            storage=storage, study_name=NAME, direction=search.direction.value, pruner=pruner, load_if_exists=True
        )
    except (OSError, LookupError, ValueError, TypeError, AssertionError) as error:
        raise RunError(f"{path} cannot be read: {error}. Restore it from a copy of the sweep.") from error


class Search:
    """The jobs of a search: those that were begun and have no result yet, then new ones up to the number of trials."""

    def __init__(
        self, search: OptunaSearch, directory: SweepDir, trust: Trust = EVERYTHING, config_folders: Sequence[str] = ()
    ) -> None:
        self._search, self._directory, self._trust, self._folders = search, directory, trust, config_folders
        self.total = search.trials
        self._space = Space.saved(directory)
        _cut_torn_line(directory.path / STUDY)
        self._study = open_study(directory.path, search)
        if len(self._trials()) < len(directory.info["jobs"]):
            raise RunError(f"{directory.path / STUDY} has lost trials. Restore it from a copy of the sweep.")

    def due(self) -> Iterator[Job]:
        """Open trials first, then new ones, each chosen when there is room for it."""
        for trial in [each for each in self._trials() if not each.state.is_finished()]:
            job = self._job(trial.number)
            state = state_of(job.path)
            if state == "completed":
                self.ended(job)  # the process ended between the run and the telling
            elif state != "running":
                yield job
        while len(self._trials()) < self._search.trials:
            yield self._job(self._ask())

    def ended(self, job: Job) -> None:
        """Tell Optuna the result, if there is one."""
        (entry,) = find_runs([job.path]) or [{"status": "not begun"}]
        states = self._space.optuna.trial.TrialState
        if entry["status"] == "pruned":
            self._study.tell(job.number, state=states.PRUNED, skip_if_finished=True)
        elif entry["status"] == "completed":
            value = _value(entry, self._search.objective)
            if value is None or not math.isfinite(value):  # it was run, and is no result: nothing to run again
                self._study.tell(job.number, state=states.FAIL, skip_if_finished=True)
            else:
                self._study.tell(job.number, value, skip_if_finished=True)

    def close(self) -> list[tuple[str, str]]:
        """The best trial, ready to be run."""
        states = self._space.optuna.trial.TrialState
        complete = [each for each in self._trials() if each.state == states.COMPLETE]
        if not complete:
            return []
        sign = 1 if self._search.direction is Direction.maximize else -1
        best = max(complete, key=lambda trial: sign * trial.value)
        flags = [part for folder in self._folders for part in ("--config-dir", folder)]
        command = shlex.join(["rlexp", *flags, *self._space.fixed, *self._overrides(best)])
        place = short_path(self._directory.path / str(best.number))
        return [("best", f"{shown_number(best.value)} in {place} (job {best.number + 1})"), ("command", command)]

    # ---- inside

    def _trials(self) -> list[Any]:
        return self._study.get_trials(deepcopy=False)  # type: ignore[no-any-return]

    def _ask(self) -> int:
        """A new trial's number."""
        samplers, number = self._space.optuna.samplers, len(self._trials())
        seed = derive_seed(self._search.seed, "trial", number) % 2**32
        if self._search.sampler is Sampler.random:
            self._study.sampler = samplers.RandomSampler(seed=seed)
        else:
            self._study.sampler = samplers.TPESampler(seed=seed, n_startup_trials=self._search.startup_trials)
        try:
            return self._study.ask(self._space.distributions).number  # type: ignore[no-any-return]
        except ValueError as error:  # earlier trials had other values to choose from
            raise RunError(f"{self._directory.path / STUDY} does not fit {PLAN}: {str(error).rstrip('.')}.") from error

    def _job(self, number: int) -> Job:
        """The job of a trial, planned and written down if it was not yet."""
        planned = self._directory.jobs(self._trust)
        while len(planned) <= number:
            job = self._plan(len(planned))
            self._directory.add(job)
            self._directory.save()
            planned.append(job)
        return planned[number]

    def _plan(self, number: int) -> Job:
        trial = self._trials()[number]
        if set(trial.params) != set(self._space.distributions):  # the process ended while it was being chosen
            reopened = self._space.optuna.trial.Trial(self._study, trial._trial_id)
            for name, distribution in self._space.distributions.items():
                reopened._suggest(name, distribution)
            trial = self._trials()[number]
        chosen = self._overrides(trial)
        if any("${" in each for each in chosen):  # the log may be a stranger's, too
            raise UntrustedError(f"{self._directory.path / STUDY} holds an interpolation; a trial has plain values.")
        overrides = [*self._space.fixed, *chosen]
        config = compose(overrides, self._folders, self._trust)
        if self._search.pruner is not Pruner.none:
            callback = {"_target_": target_of(PruneTrial), "trial": number}
            config["trainer"]["callbacks"] = [*(config["trainer"].get("callbacks") or []), callback]
        path = self._directory.path / str(number)
        label = " ".join(map(_short, chosen))
        return Job(number, label, path, config, tuple(overrides), self._directory.path.name, self._trust)

    def _overrides(self, trial: Any) -> list[str]:
        """What was chosen, as it is typed."""
        chosen = {name: trial.params[name] for name in self._space.distributions}
        return [f"{name}={value if isinstance(value, str) else repr(value)}" for name, value in chosen.items()]


def _value(entry: dict[str, Any], objective: Objective) -> float | None:
    if objective is Objective.area:
        value = (entry.get("curve") or {}).get("area")
    else:
        found = outcome(entry.get("eval" if objective is Objective.last else "best_eval") or {})
        value = None if found is None else found[1]
    return float(value) if isinstance(value, int | float) else None


def _short(override: str) -> str:
    """``learning_rate=0.000123`` for a table; name and number are whole in the config of the run."""
    key, _, value = override.partition("=")
    key = key.rpartition(".")[2]
    try:
        return f"{key}={float(value):.3g}" if "." in value or "e-" in value else f"{key}={value}"
    except ValueError:
        return f"{key}={value}"


def _cut_torn_line(path: Path) -> None:
    """A kill may have left half a line, which the next one would be glued to."""
    if not os.path.lexists(path) or os.path.islink(path):
        return
    with path.open("rb+") as file:
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)
