"""Sweeps: ``--multirun`` in Hydra's syntax, with every job checked before the first one starts and a table at the end.

Hydra's own multirun composes the jobs in advance but knows nothing of rlexp's checks, and forgets how the jobs ended.
The sweeper and the launcher are Hydra's, or the plugins that the user chooses.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from rlexp.config.check import check_name
from rlexp.config.component import target_of
from rlexp.config.compose import COMPOSITION_ERRORS, CONFIG_MODULE, explain, plain_config, register
from rlexp.config.overrides import parse_override
from rlexp.errors import ConfigError, RlexpError, RunError
from rlexp.loggers.format import outcome, printable, short_path
from rlexp.loggers.tables import print_sweep
from rlexp.run_dir import RunDir
from rlexp.runs import find_runs

Train = Callable[[dict[str, Any], Path, list[str], str], dict[str, Any]]  # config, directory, command, group -> summary


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    label: str  # the overrides that tell it from the others
    path: Path  # its run directory


def run_sweep(overrides: Sequence[str], train: Train) -> int:
    """Check every job, run them with ``train``, and say how each ended; the exit code."""
    with hydra.initialize_config_module(CONFIG_MODULE, version_base="1.3", job_name="rlexp"):
        loader = GlobalHydra.instance().hydra
        assert loader is not None
        sweep = _Sweep(loader, _folder_by_name(overrides), train)
        sweep.check()
        return sweep.run()


def _folder_by_name(overrides: Sequence[str]) -> list[str]:
    """``name=`` is the folder of a run below outputs/: in a sweep, that of the sweep."""
    keys = [each.lstrip("+").partition("=")[0] for each in overrides]
    if "name" not in keys:
        return list(overrides)
    given = overrides[len(keys) - 1 - keys[::-1].index("name")]
    try:
        name = parse_override(given)[1]
    except ConfigError:
        raise ConfigError(f"{given}: a sweep has one name, that of its folder below outputs/.") from None
    if "hydra.sweep.dir" in keys:
        raise ConfigError(f"{given} and hydra.sweep.dir=… both name the folder of the sweep. Leave out one.")
    check_name(str(name))
    rest = [each for key, each in zip(keys, overrides) if key != "name"]
    return [*rest, "hydra.sweep.dir='outputs/" + str(name).replace("'", r"\'") + "'"]


@dataclass
class Task:
    """What a launcher runs for every job. Plain data and a function, so that it can be sent to another process."""

    train: Train
    jobs: list[Job] = field(default_factory=list)
    planned: bool = False  # all jobs are known; otherwise the sweeper makes them up as it goes
    shown: bool = True  # progress=none asks for silence

    def __call__(self, config: DictConfig) -> float | None:
        """One run. Errors are told, not raised: the other jobs go on, and Hydra adds no noise."""
        register()  # this may be another process
        job = HydraConfig.get()
        path, overrides = Path(job.runtime.output_dir), list(job.overrides.task)
        if not self.planned:
            self.jobs.append(Job(" ".join(overrides), path))
        number = job.job.num if self.planned else len(self.jobs) - 1
        label = self.jobs[number].label
        if self.shown:
            total = f" of {len(self.jobs)}" if self.planned else ""
            print(f"\njob {number + 1}{total}: {label}", flush=True)
        try:
            summary = self.train(plain_config(config), path, ["rlexp", *overrides], path.parent.name)
        except RlexpError as error:
            print(f"error: {label}: {printable(str(error))}", file=sys.stderr)
            return None
        except Exception:  # of the user's own code: the other jobs may do without it
            print(f"error: {label}:", file=sys.stderr)
            traceback.print_exc()
            return None
        found = outcome(summary["eval"]) if summary["eval"] else None
        return None if found is None else found[1]


class _Sweep:
    def __init__(self, loader: Hydra, overrides: Sequence[str], train: Train) -> None:
        self.loader, self.task = loader, Task(train)
        try:
            self.config = loader.compose_config("config", list(overrides), RunMode.MULTIRUN, True)
            self.arguments: list[str] = OmegaConf.to_container(self.config.hydra.overrides.task)  # type: ignore[assignment]
            HydraConfig.instance().set_config(self.config)
            self.folder = Path(self.config.hydra.sweep.dir)
            self.callbacks = Callbacks(self.config)
            self.sweeper: Sweeper = Plugins.instance().instantiate_sweeper(
                config=self.config,
                hydra_context=HydraContext(config_loader=loader.config_loader, callbacks=self.callbacks),
                task_function=self.task,
            )
            self.planned = self._plan()  # overrides of every job; empty if the sweeper makes them up as it goes
        except COMPOSITION_ERRORS as error:
            raise explain(error, overrides) from error
        self.task.planned = bool(self.planned)

    def _plan(self) -> list[list[str]]:
        if self.config.hydra.sweeper._target_ != target_of(BasicSweeper):  # plugins are imported anew, as other classes
            return []
        parser = OverridesParser.create(config_loader=self.loader.config_loader)
        given = [
            *(f"{key}={value}" for key, value in (self.config.hydra.sweeper.params or {}).items()),
            *self.arguments,
        ]
        return [job for batch in BasicSweeper.split_arguments(parser.parse_overrides(given), None) for job in batch]

    # ---- before

    def check(self) -> None:
        """Refuse the sweep if any of its jobs would be refused as a single run."""
        labels = _labels(self.planned)
        problems = []
        for number, (overrides, label) in enumerate(zip(self.planned, labels)):
            try:
                path = self._check_job(number, overrides)
                if any(job.path == path for job in self.task.jobs):
                    raise RunError(f"{short_path(path)} is the folder of another job, too. Change hydra.sweep.subdir.")
                self.task.jobs.append(Job(label, path))
            except RlexpError as error:
                problems.append(f"{label}: {error}")
        if problems:
            others = len(problems) - 1
            more = f" {others} other job{'s are' if others > 1 else ' is'} refused, too." if others else ""
            raise ConfigError(f"{problems[0]}{more} No job of the sweep was started.")

    def _check_job(self, number: int, overrides: list[str]) -> Path:
        """The directory of a job that can run."""
        from rlexp.runner import Runner

        try:
            config = self.loader.config_loader.load_sweep_config(self.config, overrides)
            with open_dict(config):
                config.hydra.job.id = config.hydra.job.num = number
            HydraConfig.instance().set_config(config)
            path = (Path(config.hydra.sweep.dir) / config.hydra.sweep.subdir).absolute()
            with open_dict(config):
                del config["hydra"]
        except COMPOSITION_ERRORS as error:
            raise explain(error, [*self.config.hydra.overrides.hydra, *overrides]) from error
        if RunDir.is_run(path):
            raise RunError(f"{short_path(path)} already holds a run. Choose another name=… or hydra.sweep.dir=…")
        plain = plain_config(config)
        Runner(plain).check_memory()
        self.task.shown = plain["progress"] != "none"
        return path

    # ---- the jobs

    def run(self) -> int:
        """Run every job; 0 if all of them completed."""
        self.callbacks.on_multirun_start(config=self.config, config_name="config")
        ended = False
        try:
            self.sweeper.sweep(arguments=self.arguments)
            ended = True
        except OSError as error:
            if error.filename is None:
                raise
            raise RunError(f"{error.filename} cannot be made: {error.strerror}. Choose another name=…") from error
        except HydraException as error:  # of a sweeper that makes up its jobs
            raise explain(error, self.arguments) from error
        finally:
            failures = self._close("failed" if ended else "not begun")
        self.callbacks.on_multirun_end(config=self.config, config_name="config")
        return 1 if failures else 0

    def _close(self, without_run: str) -> int:
        """Show how every job ended, read from their directories, since a launcher may run them anywhere."""
        if not self.task.planned and not self.task.jobs:  # a launcher ran them in other processes
            self.task.jobs = [Job(Path(run["name"]).name, Path(run["name"])) for run in find_runs([self.folder])]
            if not self.task.jobs:
                return 1
        rows = []
        for job in self.task.jobs:
            (run,) = find_runs([job.path]) or [{"status": without_run}]
            rows.append({**run, "label": job.label})
        if self.task.shown:
            print_sweep(rows, self.folder)
        return sum(row["status"] != "completed" for row in rows)


def _labels(jobs: Sequence[Sequence[str]]) -> list[str]:
    """For each job the overrides in which it differs from others."""
    varying = [index for index, column in enumerate(zip(*jobs)) if len(set(column)) > 1]
    return [" ".join(job[index] for index in varying) or " ".join(job) or "the only job" for job in jobs]
