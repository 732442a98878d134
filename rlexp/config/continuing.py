"""The command of a new run that goes on with the agent of a saved one, in another loop. Free of torch."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlexp.config.arguments import quoted
from rlexp.config.check import GROUPS, check_config
from rlexp.config.component import REGISTRY, target_of
from rlexp.config.compose import compose
from rlexp.config.overrides import parse_override
from rlexp.config.trust import Trust
from rlexp.envs.from_dataset import NAME as FROM_DATASET
from rlexp.errors import ConfigError

NEEDED = ("path", "id", "run", "zoo", "sources")  # settings without which some datasets cannot be composed
LOOPS_WITH_DATA = ("offline", "mixed")
OF_EACH_RUN = ("name", "init_from")


def other_loop(config: dict[str, Any], overrides: Sequence[str], path: Path, trust: Trust) -> ConfigError | None:
    """The refusal of ``rlexp resume PATH trainer=…``, with the command to use; None if no other loop is asked for.

    UntrustedError if the run names code that the user has not: typed again, the command would be trusted to run it.
    """
    chosen = {key: value for key, value, _ in map(parse_override, overrides)}
    if "trainer" not in chosen:
        return None
    config = check_config(config, trust)
    asked = next(each for each in overrides if each.partition("=")[0] == "trainer")
    loop, algo = chosen["trainer"], REGISTRY["algo"].get(str(_choice("algo", config)))
    if algo is not None and loop in REGISTRY["trainer"] and loop not in algo.loops:  # type: ignore[attr-defined]
        fitting = " or ".join(f"trainer={each}" for each in sorted(algo.loops))  # type: ignore[attr-defined]
        return ConfigError(f"{asked}: algo={_choice('algo', config)} cannot learn in that loop. Use {fitting}.")
    command = _command(config, list(overrides), path, with_data=loop in LOOPS_WITH_DATA)
    how = f"Its agent goes on in a new run:\n{command}"
    if command is None:
        how = f"Its agent goes on in a new run, in the same environment: rlexp {asked} … init_from={path}"
    return ConfigError(f"{asked}: a saved run keeps its trainer, since its checkpoints fit no other. {how}")


def _command(config: dict[str, Any], overrides: list[str], path: Path, *, with_data: bool) -> str | None:
    """None if the run has components that no group names, no environment, or is asked for what cannot be composed."""
    given = [each.lstrip("+").partition("=")[0] for each in overrides]
    same_data = with_data and "dataset" not in given
    groups = ["algo", "model", "env", "buffer", *(["dataset"] if same_data else [])]
    choices = {group: _choice(group, config) for group in groups}
    if None in choices.values() or choices["env"] == FROM_DATASET:
        return None
    words = [f"algo={choices['algo']}", f"env={choices['env']}"]
    words += [f"env.id={quoted(config['env']['id'])}"] if config["env"].get("id") else []
    if same_data:
        words.append(f"dataset={choices['dataset']}")
        words += [f"dataset.{key}={quoted(config['dataset'][key])}" for key in NEEDED if config["dataset"].get(key)]
    ending = [*([] if with_data else ["dataset=null"]), *overrides]
    try:
        plain = compose([*words, *ending])
        words += [each for each in _chosen(plain, config, with_data) if each.partition("=")[0] not in given]
        plain = compose([*words, *ending])
        given += [each.partition("=")[0] for each in words]
        kept = [each for each in _kept(plain, config) if each.lstrip("+").partition("=")[0] not in given]
        compose([*words, *kept, *ending])  # what is proposed can be done
    except ConfigError:
        return None
    return shlex.join(["rlexp", *words, *kept, *ending, f"init_from={path}"])


def _chosen(plain: dict[str, Any], config: dict[str, Any], with_data: bool) -> Iterator[str]:
    """The choices of a config that another one has otherwise, as far as they fit a run with or without data."""
    if (buffer := _choice("buffer", config)) != _choice("buffer", plain):
        yield f"buffer={buffer}"
    evaluator = _choice("evaluator", config)
    needs_data = evaluator is not None and REGISTRY["evaluator"][evaluator].needs_data  # type: ignore[attr-defined]
    if evaluator not in (None, _choice("evaluator", plain)) and (with_data or not needs_data):
        yield f"evaluator={evaluator}"
    loggers = [name for name in config["logger"] if name in REGISTRY["logger"]]
    if loggers != list(plain["logger"]):
        yield f"logger=[{','.join(loggers)}]"


def _kept(plain: dict[str, Any], config: dict[str, Any]) -> Iterator[str]:
    """The settings of a config that another one has otherwise, of the components that are in both."""
    for group, node in plain.items():
        saved = config.get(group)
        if group == "logger":
            for name, logger in node.items():
                yield from _changes(logger, config["logger"][name], f"logger.{name}")
        elif isinstance(node, dict) and isinstance(saved, dict):
            if group == "trainer" or saved.get("_target_") == node["_target_"]:  # a trainer is always another one
                yield from _changes(node, {key: value for key, value in saved.items() if key in node}, group)
        elif group in config and group not in (*GROUPS, *OF_EACH_RUN) and saved != node:
            yield f"{group}={quoted(saved)}"


def _choice(group: str, config: dict[str, Any]) -> str | None:
    """The registered name of what stands in a group; None if it is not ours, or nothing."""
    target = (config.get(group) or {}).get("_target_")
    return next((name for name, cls in REGISTRY[group].items() if target_of(cls) == target), None)


def _changes(before: dict[str, Any], after: dict[str, Any], where: str) -> Iterator[str]:
    """``algo.gamma=0.9`` for every setting that ``before`` has otherwise, ``+env.kwargs.g=9`` for one that it lacks."""
    for key, value in after.items():
        if key == "_target_" or (key in before and before[key] == value):
            continue
        if isinstance(value, dict) and isinstance(before.get(key), dict):
            yield from _changes(before[key], value, f"{where}.{key}")
        else:
            yield f"{'' if key in before else '+'}{where}.{key}={quoted(value)}"
