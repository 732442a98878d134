"""The typed options of ``eval``, ``predict`` and ``resume``, read from the same key=value form as everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlexp.config.messages import complaint, suggest
from rlexp.config.overrides import parse_override
from rlexp.errors import ConfigError

T = TypeVar("T")

RUN_SETTINGS = ("device", "progress")  # of the run itself: where and how it goes on, nothing that changes what it is


@dataclass
class ResumeOptions:
    """Of ``rlexp resume RUN``."""

    trust: list[str] = field(default_factory=list)  # packages whose code the run may execute, beside rlexp's
    checkpoint: str = "last"  # last, best, or the name of one


@dataclass
class PredictOptions(ResumeOptions):
    """Of ``rlexp predict RUN``."""

    deterministic: bool = True  # the greedy action; false: sample as in training
    seed: int = 0  # of sampled actions


@dataclass
class EvalOptions(PredictOptions):
    """Of ``rlexp eval RUN``."""

    episodes: int = 20  # episodes to play
    render: bool = False  # show the environment in a window


def read_options(kind: type[T], arguments: Sequence[str]) -> tuple[T, list[str]]:
    """The options of a command, and the remaining arguments: overrides of the run's config."""
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    overrides = []
    for argument in arguments:
        key = argument.lstrip("+").partition("=")[0]
        if key in names:
            given[key] = parse_override(argument)[1]
        elif "." in key or key in RUN_SETTINGS:
            overrides.append(argument)
        else:
            raise ConfigError(
                f"{argument}: no such option.{suggest(key, [*names, *RUN_SETTINGS])} "
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
