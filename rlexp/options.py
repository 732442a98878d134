"""The typed options of the commands on runs and datasets, read from the same key=value form as everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlexp.config.messages import complaint, suggest
from rlexp.config.overrides import KEPT, parse_override, whole
from rlexp.errors import ConfigError

T = TypeVar("T")

HELP = "help"  # key of the line that --help shows, in a field's metadata

# Of the run itself: where and how it goes on, nothing that changes what it is.
RUN_SETTINGS = {"device": "auto, cpu, cuda, cuda:1, …", "progress": "auto, rich, plain or none"}


@dataclass
class RunOptions:
    """Of every command on a run."""

    trust: list[str] = field(
        default_factory=list, metadata={HELP: "packages whose code the run may execute, beside rlexp's: trust=[mine]"}
    )
    checkpoint: str = field(default="last", metadata={HELP: "last, best, or the name of one of the run's checkpoints"})


@dataclass
class ResumeOptions(RunOptions):
    """Of ``rlexp resume RUN``."""


@dataclass
class PredictOptions(RunOptions):
    """Of ``rlexp predict RUN``."""

    deterministic: bool = field(default=True, metadata={HELP: "the greedy action; false: sample as in training"})
    seed: int = field(default=0, metadata={HELP: "of sampled actions (eval: and of the episodes)"})


@dataclass
class EvalOptions(PredictOptions):
    """Of ``rlexp eval RUN``."""

    episodes: int = field(default=20, metadata={HELP: "episodes to play"})
    render: bool = field(default=False, metadata={HELP: "show the environment in a window"})


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


USAGE = {
    ResumeOptions: """\
rlexp resume RUN [OPTION=VALUE…] [KEY=VALUE…]     continue a run exactly where it stopped

KEY=VALUE changes a setting of the run from here on: a larger budget (trainer.total_steps=200_000, offline:
trainer.total_updates=…) extends a completed run, algo.gamma=0.9 changes the algorithm, logger=[tensorboard]
chooses other loggers. Its groups, seed and name stay what they are; its agent goes on in another loop as the start of a
new run: rlexp … init_from=RUN.""",
    PredictOptions: """\
rlexp predict RUN [OPTION=VALUE…] [KEY=VALUE…]    answer observations with actions

Reads one observation (or a list of several) as JSON from each line of standard input and writes one line of action.
An empty line begins a new episode, for policies that remember the one before. KEY=VALUE changes a setting of the run,
as for eval.""",
    EvalOptions: """\
rlexp eval RUN [OPTION=VALUE…] [KEY=VALUE…]       play episodes with the trained policy

KEY=VALUE changes a setting of the run for these episodes, e.g. env.max_episode_steps=100. Returns are shown as
mean ± standard deviation over the episodes.""",
    CollectOptions: """\
rlexp collect RUN to=FILE|ID steps=N|episodes=N [OPTION=VALUE…] [KEY=VALUE…]
rlexp collect random env=NAME to=FILE|ID steps=N|episodes=N     play a policy and keep what happened as a dataset

KEY=VALUE changes a setting of the run for these episodes, as for eval. policy=replay writes the replay memory of the
run instead of playing.""",
    InfoOptions: """\
rlexp data info PATH [env=NAME] [plot=FILE.png]    what is in a dataset, and what is wrong with it

PATH is a .npz or .hdf5 file with D4RL's keys, a run directory or folder of runs, or the id of a local Minari dataset.
env=NAME (and env.KEY=VALUE) gives the bounds of actions and the time limit to compare with. Exit code 1: there are
problems.""",
}


def usage(kind: type) -> str:
    """What ``rlexp COMMAND --help`` prints."""
    rows = [(f"{each.name}={_shown(each)}", each.metadata[HELP]) for each in fields(kind)]
    rows += [(f"{name}=…", text) for name, text in _run_settings(kind).items()]
    options = "\n".join(f"  {name:<20}{text}" for name, text in rows)
    run = (
        "\n\nRUN is a run directory, the name of one below outputs/, or a checkpoint."
        if kind is not InfoOptions
        else ""
    )
    return f"{USAGE[kind]}{run}\n\n{options}"


def _run_settings(kind: type) -> dict[str, str]:
    """Those that the command has a use for: only a run in progress shows any."""
    if kind is InfoOptions:
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
    try:
        options: T = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), given))  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise ConfigError(complaint(str(error.full_key), error)) from error
    if isinstance(options, EvalOptions) and options.episodes < 1:
        raise ConfigError(f"episodes must be at least 1, not {options.episodes}.")
    return options, overrides
