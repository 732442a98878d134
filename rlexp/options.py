"""The typed options of the commands on runs and datasets, read from the same key=value form as everything else."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlexp.config.messages import complaint, suggest
from rlexp.config.overrides import KEPT, parse_override, whole
from rlexp.errors import ConfigError

T = TypeVar("T")

_SETTING_LIST = re.compile(r"[\d\s.,eE+-]*")  # model.hidden=[64,64] is one value, seed=[1,2] too
HELP = "help"  # key of the line that --help shows, in a field's metadata

# Of the run itself: where and how it goes on, nothing that changes what it is.
RUN_SETTINGS = {"device": "auto, cpu, cuda, cuda:1, …", "progress": "auto, rich, plain or none"}


@dataclass
class LoadOptions:
    """Of every command on something that was saved."""

    trust: list[str] = field(
        default_factory=list, metadata={HELP: "packages whose code the run may execute, beside rlexp's: trust=[mine]"}
    )


@dataclass
class RunOptions(LoadOptions):
    """Of every command on a run."""

    checkpoint: str = field(default="last", metadata={HELP: "last, best, or the name of one of the run's checkpoints"})


@dataclass
class ResumeOptions(RunOptions):
    """Of ``rlexp resume RUN``."""


@dataclass
class SweepResumeOptions(LoadOptions):
    """Of ``rlexp resume SWEEP``."""


@dataclass
class PredictOptions(RunOptions):
    """Of ``rlexp predict RUN``."""

    deterministic: bool = field(default=True, metadata={HELP: "the greedy action; false: sample as in training"})
    seed: int = field(default=0, metadata={HELP: "of sampled actions (eval: and of the episodes)"})


@dataclass
class EvalOptions(PredictOptions):
    """Of ``rlexp eval RUN``."""

    deterministic: bool | None = field(  # type: ignore[assignment]
        default=None, metadata={HELP: "true: greedy actions, false: sampled ones; left out: as the run was evaluated"}
    )
    episodes: int = field(default=20, metadata={HELP: "episodes to play"})
    render: bool = field(default=False, metadata={HELP: "show the environment in a window"})
    video: str = field(
        default="false", metadata={HELP: "true: an MP4 in the run's videos/; gif: a small one; or the name of a file"}
    )


@dataclass
class CollectOptions(RunOptions):
    """Of ``rlexp collect RUN|random``."""

    to: str = field(default="", metadata={HELP: "file.hdf5, file.npz, or the new id of a Minari dataset (NAME/ID-v0)"})
    format: str | None = field(default=None, metadata={HELP: "hdf5, npz or minari; left out: by the name"})
    steps: int | None = field(default=None, metadata={HELP: "transitions to collect"})
    episodes: int | None = field(default=None, metadata={HELP: "whole episodes to collect, instead of steps"})
    policy: str = field(
        default="stochastic", metadata={HELP: "stochastic (as in training), deterministic, epsilon, or replay (memory)"}
    )
    epsilon: float | None = field(
        default=None, metadata={HELP: "policy=epsilon: probability of a random action, 0.1 if left out"}
    )
    checkpoints: list[str] = field(
        default_factory=list, metadata={HELP: "a mixture: each episode is played by one of these, e.g. [random,last]"}
    )
    weights: list[float] = field(default_factory=list, metadata={HELP: "how often each of checkpoints plays"})
    seed: int = field(default=0, metadata={HELP: "of the episodes and the actions"})


@dataclass
class InfoOptions:
    """Of ``rlexp data info PATH``."""

    plot: str | None = field(default=None, metadata={HELP: "file for a picture of returns and lengths: plot=data.png"})


@dataclass
class ExportOptions(RunOptions):
    """Of ``rlexp export RUN``."""

    to: str = field(default="", metadata={HELP: "torch or onnx, for NAME.pt2 or NAME.onnx here; or such a file"})


@dataclass
class QueryOptions:
    """Of every command on many runs: which of them, in which order."""

    since: str | None = field(default=None, metadata={HELP: "begun after: 90m, 12h, 3d or 2w ago, or 2025-03-01"})
    sort: str | None = field(
        default=None,
        metadata={HELP: "name, created, status, done, steps, time, return, best or a setting; -return: down"},
    )
    limit: int | None = field(default=None, metadata={HELP: "no more than so many, the first in that order"})


@dataclass
class ListRunsOptions(QueryOptions):
    """Of ``rlexp list runs``."""

    show: list[str] = field(
        default_factory=list, metadata={HELP: "settings as more columns: show=algo.gamma,env.num_envs"}
    )


@dataclass
class MetricsOptions(QueryOptions):
    """Of ``rlexp metrics RUNS``."""

    to: str = field(default="-", metadata={HELP: "file.csv or file.parquet; -: CSV to standard output"})
    metrics: list[str] = field(default_factory=list, metadata={HELP: "which, * for any: metrics=eval/*; left out: all"})
    config: str = field(default="differing", metadata={HELP: "settings of the runs as columns: differing, all or none"})


@dataclass
class ReportOptions(QueryOptions):
    """Of ``rlexp report RUNS``."""

    to: str = field(default="report.html", metadata={HELP: "the page, also -o FILE; an earlier report is replaced"})
    title: str | None = field(default=None, metadata={HELP: "above the page; left out: the folder's name"})
    videos: str = field(
        default="auto", metadata={HELP: "embed, link, none; auto: embed the small ones, link the others"}
    )


USAGE = {
    ResumeOptions: """\
rlexp resume RUN [OPTION=VALUE…] [KEY=VALUE…]     continue a run exactly where it stopped
rlexp resume SWEEP [trust=[…]] [launcher=NAME …] [sweep.trials=N]     continue a sweep

KEY=VALUE changes a setting of the run from here on: a larger budget (trainer.total_steps=200_000, offline:
trainer.total_updates=…) extends a completed run, algo.gamma=0.9 changes the algorithm, logger=[tensorboard]
chooses other loggers. Its groups, seed and name stay what they are; its agent goes on in another loop as the start of a
new run: rlexp … init_from=RUN. Of a sweep (the folder above its runs), completed jobs are skipped, interrupted ones
continued, failed ones run again; launcher=joblib runs several at once, sweep.trials is the number of trials that a
search is to have in the end.""",
    PredictOptions: """\
rlexp predict RUN [OPTION=VALUE…] [KEY=VALUE…]    answer observations with actions

Reads one observation (or a list of several) as JSON from each line of standard input and writes one line of action.
An empty line begins a new episode, for policies that remember the one before. KEY=VALUE changes a setting of the run,
as for eval.""",
    EvalOptions: """\
rlexp eval RUN [OPTION=VALUE…] [KEY=VALUE…]       play episodes with the trained policy

KEY=VALUE changes a setting of the run for these episodes, e.g. env.max_episode_steps=100. A run that learned from data
alone (env=null) is played in the environment that env=NAME chooses. Returns are shown as mean ± standard deviation
over the episodes.""",
    CollectOptions: """\
rlexp collect RUN to=FILE|ID steps=N|episodes=N [OPTION=VALUE…] [KEY=VALUE…]
rlexp collect random env=NAME to=FILE|ID steps=N|episodes=N     play a policy and keep what happened as a dataset

KEY=VALUE changes a setting of the run for these episodes, as for eval. policy=replay writes the replay memory of the
run instead of playing.""",
    ExportOptions: """\
rlexp export RUN to=torch|onnx|FILE.pt2|FILE.onnx [OPTION=VALUE…]     the greedy policy as a program without rlexp

Observations as the environment gives them in, its actions out: normalisation, rescaling and clipping are inside. The
file is read back and compared with the agent; one that acts differently is not kept.""",
    ListRunsOptions: """\
rlexp list runs [FOLDER…] [KEY=VALUE…] [OPTION=VALUE…]     what was run, how it stands, what it reached

KEY=VALUE keeps the runs with that status, algo, env or any setting; a comma means or, * means anything:
status=failed,killed algo=ppo env=cartpole algo.gamma=0.99 seed=1,2""",
    MetricsOptions: """\
rlexp metrics RUNS… [to=FILE.csv|FILE.parquet] [KEY=VALUE…] [OPTION=VALUE…]     the metrics of many runs as one table

A row for each logged point, with the settings in which the runs differ as columns. RUNS are run directories or folders
that hold some; KEY=VALUE keeps those with that status, algo, env or setting, as for list runs.""",
    ReportOptions: """\
rlexp report RUNS… [-o FILE.html] [KEY=VALUE…] [OPTION=VALUE…]     runs side by side, as one page

Table, learning curves with seeds as bands, what the varied settings did, videos and the details of every run, in one
file that needs no network. RUNS are run directories or folders that hold some; KEY=VALUE keeps those with that status,
algo, env or setting, as for list runs.""",
    InfoOptions: """\
rlexp data info PATH [env=NAME] [plot=FILE.png]    what is in a dataset, and what is wrong with it

PATH is a .npz or .hdf5 file with D4RL's keys, a run (its directory or name) or folder of runs, or the id of a local
Minari dataset. env=NAME (and env.KEY=VALUE) gives observations, actions and the time limit to compare with. Exit code
1: there are problems.""",
}


def usage(kind: type) -> str:
    """What ``rlexp COMMAND --help`` prints."""
    rows = [(f"{each.name}={_shown(each)}", each.metadata[HELP]) for each in fields(kind)]
    rows += [(f"{name}=…", text) for name, text in _run_settings(kind).items()]
    options = "\n".join(f"  {name:<20}{text}" for name, text in rows)
    run = (
        "\n\nRUN is a run directory, the name of one below outputs/, or a checkpoint."
        if issubclass(kind, RunOptions)
        else ""
    )
    return f"{USAGE[kind]}{run}\n\n{options}"


def _run_settings(kind: type) -> dict[str, str]:
    """Those that the command has a use for: only a run in progress shows any."""
    if not issubclass(kind, RunOptions):
        return {}
    return {name: text for name, text in RUN_SETTINGS.items() if kind is ResumeOptions or name != "progress"}


def _shown(each: Field[Any]) -> str:
    default = [] if each.default is MISSING else each.default
    return "…" if default in (None, "") else str(default).lower()


def read_options(kind: type[T], arguments: Sequence[str]) -> tuple[T, list[str]]:
    """The options of a command, and the remaining arguments: overrides of the run's config."""
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    kinds = get_type_hints(kind)
    settings = [*_run_settings(kind), *(["logger"] if kind is ResumeOptions else [])]
    if kind is SweepResumeOptions:
        settings = ["launcher"]
    given: dict[str, Any] = {}
    overrides = []
    for argument in arguments:
        key = argument.lstrip("+").partition("=")[0]
        if key in names:
            value = parse_override(argument)[1]
            given[key] = whole(value) if kinds[key] in (int, int | None) else value
        elif "." in key or key in (*settings, *KEPT):
            overrides.append(argument)
        else:
            raise ConfigError(
                f"{argument}: no such option.{suggest(key, [*names, *settings])} "
                "Settings of the run are written like env.num_envs=4."
            )
    for key in ("trust", "checkpoints"):
        if isinstance(given.get(key), str):
            given[key] = [given[key]]
    return _checked(kind, given), overrides


def _checked(kind: type[T], given: dict[str, Any]) -> T:
    try:
        options: T = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), given))  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise ConfigError(complaint(str(error.full_key), error)) from error
    if isinstance(options, EvalOptions) and options.episodes < 1:
        raise ConfigError(f"episodes must be at least 1, not {options.episodes}.")
    if isinstance(options, EvalOptions):
        _check_video(options)
    return options


def _check_video(options: EvalOptions) -> None:
    if options.video.lower() in ("true", "false"):
        options.video = {"true": "mp4", "false": ""}[options.video.lower()]
    if options.video and options.video not in ("mp4", "gif") and not options.video.endswith((".mp4", ".gif")):
        raise ConfigError(
            "video must be true, false, mp4, gif, or the name of a file that ends with .mp4 or .gif, not "
            f"{options.video}."
        )
    if options.render and options.video:
        raise ConfigError("render=true and a video: an environment draws for a window or for a file. Choose one.")


Q = TypeVar("Q", bound=QueryOptions)


def read_query(kind: type[Q], arguments: Sequence[str]) -> tuple[Q, list[str], dict[str, list[str]]]:
    """The options of a command on many runs, the folders, and what the runs must have: key, any of these values.

    A comma means or, so this is not Hydra's grammar; a folder may have ``=`` in its name.
    """
    types = get_type_hints(kind)
    given: dict[str, Any] = {}
    folders: list[str] = []
    where: dict[str, list[str]] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or os.path.exists(argument):
            folders.append(argument)
        elif key in types:
            given[key] = _split(value) if types[key] == list[str] else _whole(key, value) if key == "limit" else value
        elif not key or not value:
            raise ConfigError(f"{argument}: write KEY=VALUE, with one of {', '.join(types)} or a setting of the runs.")
        else:
            where[key] = _split(value)
    return _checked(kind, given), folders, where


def _split(text: str) -> list[str]:
    """``a,b`` as a and b; commas in brackets do not divide, and brackets around all of it mean nothing."""
    if text.startswith("[") and text.endswith("]") and "[" not in text[1:]:
        inside = text[1:-1]
        return [text] if _SETTING_LIST.fullmatch(inside) else [each.strip() for each in inside.split(",")]
    return [each.strip() for each in re.split(r",(?![^\[]*\])", text)]


def _whole(key: str, value: str) -> int:
    if not re.fullmatch(r"\d{1,9}", value):
        raise ConfigError(f"{key} must be a whole number, not {value}.")
    return int(value)


def flags_as_options(arguments: Sequence[str], flags: Mapping[str, str]) -> list[str]:
    """``-o FILE`` and ``--to FILE`` as the ``to=FILE`` that they mean."""
    found = []
    waiting = iter(arguments)
    for argument in waiting:
        flag, equals, value = argument.partition("=")
        if flag in flags:
            found.append(f"{flags[flag]}={value if equals else next(waiting, '')}")
        elif argument.startswith("-") and argument != "-":
            raise ConfigError(f"{flag}: no such option.{suggest(flag, flags)}")
        else:
            found.append(argument)
    return found
