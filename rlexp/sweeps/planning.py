"""From what was typed to a plan: every job composed with Hydra and checked before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from rlexp.config.check import build, check_name, to_plain
from rlexp.config.component import schema_of, target_of
from rlexp.config.compose import (
    COMPOSITION_ERRORS,
    CONFIG_MODULE,
    SWEEP_GROUPS,
    choices,
    explain,
    for_hydra,
    plain_config,
)
from rlexp.config.overrides import parse_override
from rlexp.config.trust import EVERYTHING, Trust
from rlexp.errors import ConfigError, RlexpError, RunError
from rlexp.loggers.format import short_path
from rlexp.run_dir import RunDir
from rlexp.sweeps.job import Job
from rlexp.sweeps.kinds import Grid, OptunaSearch, Sweep
from rlexp.sweeps.launchers import Launcher, LocalLauncher
from rlexp.sweeps.sweep_dir import SweepDir, taken


class Plan:
    """A sweep that was asked for: its kind, its launcher and, of a grid, every job."""

    def __init__(self, overrides: Sequence[str]) -> None:
        overrides = folder_by_name(overrides)
        with hydra.initialize_config_module(CONFIG_MODULE, version_base="1.3", job_name="rlexp"):
            loader = GlobalHydra.instance().hydra
            assert loader is not None
            self._loader = loader
            try:
                self._config = self._compose(loader, overrides)
                self.folder = Path(self._config.hydra.sweep.dir).absolute()
                self._refuse_plugins()
                typed: list[str] = OmegaConf.to_container(self._config.hydra.overrides.task)  # type: ignore[assignment]
                self.launcher_node, self.sweep_node = self._node("launcher", LocalLauncher), self._node("sweep", Grid)
                self.launcher: Launcher = build("launcher", self.launcher_node)
                self.sweep: Sweep = build("sweep", self.sweep_node)
                preset = {**(self._config.hydra.sweeper.params or {}), **self.sweep.params}
                own = [each for each in typed if not is_of_sweep(each)]
                self.arguments = [*for_hydra([f"{key}={value}" for key, value in preset.items()]), *own]
                parser = OverridesParser.create(config_loader=loader.config_loader)
                self.overrides = latest(parser.parse_overrides(self.arguments))
                self.jobs = [] if isinstance(self.sweep, OptunaSearch) else self._grid()
            except COMPOSITION_ERRORS as error:
                raise explain(error, overrides) from error

    def _compose(self, loader: Hydra, overrides: Sequence[str]) -> DictConfig:
        """The config of all jobs; a search looks where the algorithm's file in conf/search says, unless told."""
        config = loader.compose_config("config", list(overrides), RunMode.MULTIRUN, True)
        chosen = config.hydra.runtime.choices
        given = chosen.get("search")
        if given is not None and not _is_search(config):
            raise ConfigError(f"search={given} is a space to search: add sweep=optuna.")
        declined = "~search" in overrides  # search=null: nothing beyond what is typed
        if given is None and not declined and _is_search(config) and chosen.algo in choices("search"):
            config = loader.compose_config("config", [*overrides, f"search={chosen.algo}"], RunMode.MULTIRUN, True)
        HydraConfig.instance().set_config(config)
        return config

    def _node(self, group: str, default: type) -> dict[str, Any]:
        node = self._config[group]
        return to_plain(OmegaConf.structured(schema_of(default)) if node is None else node)  # type: ignore[no-any-return]

    def _refuse_plugins(self) -> None:
        """Hydra's own sweepers and launchers know neither rlexp's checks nor how to go on."""
        plugins = {"launcher": (BasicLauncher, "launcher"), "sweeper": (BasicSweeper, "sweep")}
        for name, (basic, group) in plugins.items():
            if self._config.hydra[name]._target_ != target_of(basic):  # plugins are imported anew, as other classes
                raise ConfigError(
                    f"hydra/{name}={self._config.hydra.runtime.choices[f'hydra/{name}']} is not used by rlexp. "
                    f"It has its own: {group}={'|'.join(choices(group))}."
                )
        if self._config.hydra.callbacks:
            raise ConfigError("hydra.callbacks are not called in a sweep; trainer.callbacks are, in every run.")

    # ---- a grid

    def _grid(self) -> list[Job]:
        """Every job; refused if any of them would be refused as a single run."""
        if SweepDir.is_sweep(self.folder):
            raise RunError(taken(self.folder))
        for each in self.overrides:
            if each.is_interval_sweep():
                raise ConfigError(
                    f"{each.input_line}: a grid takes values, choice(…) or range(…). sweep=optuna searches an interval."
                )
        (combinations,) = BasicSweeper.split_arguments(list(self.overrides), None)
        jobs: list[Job] = []
        problems = []
        for number, (overrides, label) in enumerate(zip(combinations, labels(combinations))):
            try:
                path, config = self._compose_job(number, overrides)
                if any(job.path == path for job in jobs):
                    raise RunError(f"{short_path(path)} is the folder of another job, too. Change hydra.sweep.subdir.")
                if any(job.overrides == tuple(overrides) for job in jobs):
                    raise ConfigError("another job of the sweep is the same. Give each value once.")
                jobs.append(Job(number, label, path, config, tuple(overrides), self.folder.name))
            except RlexpError as error:
                problems.append(f"{label}: {error}")
        if problems:
            others = len(problems) - 1
            more = f" {others} other job{'s are' if others > 1 else ' is'} refused, too." if others else ""
            raise ConfigError(f"{problems[0]}{more} No job of the sweep was started.")
        return jobs

    def _compose_job(self, number: int, overrides: list[str]) -> tuple[Path, dict[str, Any]]:
        """Directory and config of a job that can run."""
        try:
            config = self._loader.config_loader.load_sweep_config(self._config, overrides)
            with open_dict(config):
                config.hydra.job.id = config.hydra.job.num = number
            HydraConfig.instance().set_config(config)
            path = self.folder / str(config.hydra.sweep.subdir)
            with open_dict(config):
                del config["hydra"]
        except COMPOSITION_ERRORS as error:
            raise explain(error, [*self._config.hydra.overrides.hydra, *overrides]) from error
        if not path.is_relative_to(self.folder) or ".." in path.parts or path == self.folder:
            raise ConfigError(f"hydra.sweep.subdir leads to {path}, which is no folder inside of the sweep.")
        if RunDir.is_run(path):
            raise RunError(f"{short_path(path)} already holds a run. Choose another name=… or hydra.sweep.dir=…")
        return path, check_job(plain_config(config))

    def refuse_own_folders(self) -> None:
        """A search numbers its trials, and its runs find it in the folder above."""
        if any(each.lstrip("+").startswith("hydra.sweep.subdir") for each in self._config.hydra.overrides.hydra):
            raise ConfigError("hydra.sweep.subdir: the runs of a search lie in folders 0, 1, … Leave it out.")

    def refuse_interpolations(self) -> None:
        """A search composes its trials from sweep.json, of which only plain values are taken."""
        for each in self.arguments:
            if "${" in each:
                raise ConfigError(f"{each}: a search takes plain values, no interpolations.")


def check_job(config: dict[str, Any], trust: Trust = EVERYTHING) -> dict[str, Any]:
    """The config of a job as a run would check it before it begins."""
    from rlexp.runner import Runner

    runner = Runner(config, trust=trust)
    runner.trainer.check_budget(runner.env.num_envs)
    runner.algo.check_new(runner.spec)
    runner.check_memory()
    return runner.config


def is_of_sweep(override: str) -> bool:
    """Whether an override says how to sweep, not what."""
    return override.lstrip("+~").partition("=")[0].partition(".")[0].partition("@")[0] in SWEEP_GROUPS


def latest(overrides: Sequence[Override]) -> list[Override]:
    """Of several overrides of one setting the last: what is typed comes after what a preset says."""
    return list({each.get_key_element(): each for each in overrides}.values())


def labels(jobs: Sequence[Sequence[str]]) -> list[str]:
    """For each job the overrides in which it differs from others."""
    jobs = [[each.removeprefix("++") for each in job] for job in jobs]  # as typed: see below_parts
    varying = [index for index, column in enumerate(zip(*jobs)) if len(set(column)) > 1]
    return [" ".join(job[index] for index in varying) or " ".join(job) or "the only job" for job in jobs]


def folder_by_name(overrides: Sequence[str]) -> list[str]:
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


def _is_search(config: DictConfig) -> bool:
    return config.sweep is not None and config.sweep.get("_target_") == target_of(OptunaSearch)
