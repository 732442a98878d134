"""``rlexp bench zoo``: presets over seeds as one sweep, then manifests, a page and pictures.

The folder is that of a sweep, so whatever ended it, the same command goes on: completed runs are kept, interrupted ones
resumed, failed ones tried again. More seeds or presets can be asked for later and are added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rlexp.bench.report import say
from rlexp.comparing import differing, flat_config
from rlexp.config.check import build
from rlexp.config.compose import choices, compose, compose_group, config_folders, register
from rlexp.config.messages import suggest
from rlexp.config.overrides import parse_override
from rlexp.config.trust import EVERYTHING
from rlexp.errors import ConfigError, RlexpError
from rlexp.files import write_atomic
from rlexp.loggers.format import duration, short_path
from rlexp.sweeps.command import run_jobs
from rlexp.sweeps.job import Job, state_of
from rlexp.sweeps.kinds import Grid
from rlexp.sweeps.launchers import Launcher
from rlexp.sweeps.planning import check_job, is_of_sweep
from rlexp.sweeps.sweep_dir import SweepDir
from rlexp.zoo import manifest, page, pictures, results
from rlexp.zoo.listing import known_results
from rlexp.zoo.targets import TARGETS

OWN = {"zoo": "--presets", "seed": "--seeds", "name": "-o", "hydra": "-o"}  # what the command's options say
ALWAYS = ("threads=1",)  # unless told otherwise: what is compared should not depend on the number of cores


def run(presets: Sequence[str], seeds: int, folder: Path, overrides: Sequence[str], own_folders: Sequence[str]) -> int:
    """Run what is due, and write what there is; the exit code: 0 if every run has completed."""
    register()
    folder = folder.absolute()
    names = chosen(presets, own_folders)
    launcher, node, settings = _split(overrides)
    launcher.check()
    jobs = planned(names, range(seeds), folder, settings, own_folders)
    with _sweep(folder, jobs, node, own_folders) as directory:
        _announce(directory.jobs(), names, bool(manifest.changes(settings)))
        code = run_jobs(directory, Grid(), launcher, EVERYTHING, own_folders)
        if code < 128:  # not interrupted: going on comes first
            write(folder, [job.path for job in directory.jobs()], own_folders)
    return code


def chosen(patterns: Sequence[str], own_folders: Sequence[str] = ()) -> list[str]:
    """The presets that were asked for, ``*_cartpole`` for several; without any, all that have a target."""
    known = list(choices("zoo", config_folders(own_folders)))
    if not patterns:
        return [name for name in TARGETS if name in known]
    found: dict[str, None] = {}
    for pattern in patterns:
        matching = [name for name in known if fnmatchcase(name, pattern)]
        if not matching:
            near = suggest(pattern, known)
            raise ConfigError(f"--presets {pattern}: no such preset.{near if len(near) < 200 else ' rlexp list zoo'}")
        found |= dict.fromkeys(matching)
    return list(found)


def planned(
    presets: Sequence[str], seeds: Sequence[int], folder: Path, settings: Sequence[str], own_folders: Sequence[str] = ()
) -> list[Job]:
    """A job for each preset and seed; refused if any of them would be refused as a single run."""
    jobs: list[Job] = []
    for preset in presets:
        try:
            checked = check_job(compose([f"zoo={preset}", "name=preset", *settings], own_folders))
        except RlexpError as error:
            raise ConfigError(f"{preset}: {error} Nothing was started.") from error
        for seed in seeds:
            name = f"{preset}-{seed}"
            overrides = (f"zoo={preset}", f"seed={seed}", *settings)
            config = {**checked, "name": name, "seed": seed}
            jobs.append(Job(len(jobs), f"{preset} seed={seed}", folder / name, config, overrides, folder.name))
    return jobs


def _split(overrides: Sequence[str]) -> tuple[Launcher, dict[str, Any], list[str]]:
    """The launcher, as a component and as plain values, and the settings for all runs."""
    launching = [each for each in overrides if is_of_sweep(each)]
    settings = [each for each in overrides if each not in launching]
    for each in overrides:
        key = parse_override(each)[0].partition(".")[0]
        if key in OWN:
            raise ConfigError(f"{each}: `rlexp bench zoo` has {OWN[key]} for that.")
        if key in ("sweep", "search"):
            raise ConfigError(f"{each}: presets are run as they are. `rlexp --multirun {each} …` is a sweep.")
    node = compose_group("launcher", launching or ["launcher=local"])
    typed = {each.partition("=")[0] for each in settings}
    always = [each for each in ALWAYS if each.partition("=")[0] not in typed]
    return build("launcher", node), node, [*always, *settings]


@contextmanager
def _sweep(folder: Path, jobs: Sequence[Job], launcher: dict[str, Any], own: Sequence[str]) -> Iterator[SweepDir]:
    """The sweep in ``folder``, begun or gone on with, in which all ``jobs`` are planned. The lock is held inside."""
    if SweepDir.is_sweep(folder):
        directory = SweepDir.open(folder).lock()
    else:
        directory = SweepDir.create(
            folder,
            ["rlexp", "bench", "zoo"],
            sweep=compose_group("sweep", ["sweep=grid"]),
            launcher=launcher,
            arguments=[],
            config_folders=[str(Path(each).absolute()) for each in own],
            jobs=[],
        )
    with directory:
        known = {job.path: job for job in directory.jobs()}
        for job in jobs:
            if job.path not in known:
                directory.add(job)
            elif job.config != known[job.path].config:
                other = ", ".join(differing([flat_config(known[job.path].config), flat_config(job.config)]))
                raise ConfigError(
                    f"{short_path(job.path)} was begun with other settings{f' ({other})' if other else ''}. "
                    "Choose another folder: -o DIR."
                )
        directory.info["launcher"] = launcher
        directory.save()
        yield directory


def _announce(jobs: Sequence[Job], presets: Sequence[str], changed: bool) -> None:
    """How much is to be done, and how long it took when it was last measured."""
    due = [job for job in jobs if state_of(job.path) != "completed"]
    last = known_results()
    names = [] if changed else [job.overrides[0].removeprefix("zoo=") for job in due]
    seconds = [last[name]["wall_time_s"] for name in names if name in last]
    about = ""
    if seconds:
        of = "" if len(seconds) == len(due) else f" {len(seconds)} of them"
        about = f";{of} took {duration(sum(seconds))} when last measured, one after another"
    done = f", {len(jobs) - len(due)} completed before" if len(due) < len(jobs) else ""
    say(f"{len(presets)} preset{'s' * (len(presets) > 1)}: {len(due)} run{'s' * (len(due) != 1)} to do{done}{about}")


def write(folder: Path, runs: Sequence[Path], own_folders: Sequence[str] = ()) -> None:
    """Manifests of the completed runs, the page and the pictures."""
    done = [path for path in runs if state_of(path) == "completed"]
    if not done:
        return
    manifest.collect(folder, done, own_folders, say)
    found = results.load(folder)
    drawn = True
    try:
        pictures.draw(found, folder)
    except ConfigError as error:  # no matplotlib
        say(str(error))
        drawn = False
    target = folder / "README.md"
    write_atomic(target, page.page(found, pictures=drawn).encode())
    say(f"results    {short_path(target)}, manifests and pictures beside it")
