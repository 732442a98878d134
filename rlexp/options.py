"""The typed options of ``eval``, ``predict`` and ``resume``, read from the same key=value form as everything else."""

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


USAGE = {
    ResumeOptions: """\
rlexp resume RUN [OPTION=VALUE…] [KEY=VALUE…]     continue a run exactly where it stopped

KEY=VALUE changes a setting of the run from here on: a larger budget (trainer.total_steps=200_000, offline:
trainer.total_updates=…) extends a completed run, algo.gamma=0.9 changes the algorithm, logger=[tensorboard]
chooses other loggers. Its groups, seed and name stay what they are.""",
    PredictOptions: """\
rlexp predict RUN [OPTION=VALUE…] [KEY=VALUE…]    answer observations with actions

Reads one observation (or a list of several) as JSON from each line of standard input and writes one line of action.
An empty line begins a new episode, for policies that remember the one before. KEY=VALUE changes a setting of the run,
as for eval.""",
    EvalOptions: """\
rlexp eval RUN [OPTION=VALUE…] [KEY=VALUE…]       play episodes with the trained policy

KEY=VALUE changes a setting of the run for these episodes, e.g. env.max_episode_steps=100. Returns are shown as
mean ± standard deviation over the episodes.""",
}


def usage(kind: type) -> str:
    """What ``rlexp COMMAND --help`` prints."""
    rows = [(f"{each.name}={_shown(each)}", each.metadata[HELP]) for each in fields(kind)]
    rows += [(f"{name}=…", text) for name, text in _run_settings(kind).items()]
    options = "\n".join(f"  {name:<20}{text}" for name, text in rows)
    return f"{USAGE[kind]}\n\nRUN is a run directory, the name of one below outputs/, or a checkpoint.\n\n{options}"


def _run_settings(kind: type) -> dict[str, str]:
    """Those that the command has a use for: only a run in progress shows any."""
    return {name: text for name, text in RUN_SETTINGS.items() if kind is ResumeOptions or name != "progress"}


def _shown(each: Field[Any]) -> str:
    default = [] if each.default is MISSING else each.default
    return str(default).lower()


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
            given[key] = whole(value) if kinds[key] is int else value
        elif "." in key or key in (*settings, *KEPT):
            overrides.append(argument)
        else:
            raise ConfigError(
                f"{argument}: no such option.{suggest(key, [*names, *settings])} "
                "Settings of the run are written like env.num_envs=4."
            )
    if isinstance(given.get("trust"), str):
        given["trust"] = [given["trust"]]
    try:
        options: T = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), given))  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise ConfigError(complaint(str(error.full_key), error)) from error
    if getattr(options, "episodes", 1) < 1:
        raise ConfigError(f"episodes must be at least 1, not {options.episodes}.")  # type: ignore[attr-defined]
    return options, overrides
