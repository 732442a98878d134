"""The command of a new run that goes on with the agent of a saved one, in another loop. Free of torch."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlexp.config.arguments import quoted
from rlexp.config.component import REGISTRY, target_of
from rlexp.config.compose import compose
from rlexp.config.overrides import parse_override
from rlexp.errors import ConfigError

NEEDED = ("path", "id", "run", "zoo", "sources")  # settings without which some datasets cannot be composed
LOOPS_WITH_DATA = ("offline", "mixed")


def other_loop(config: dict[str, Any], overrides: Sequence[str], path: Path) -> ConfigError | None:
    """The refusal of ``rlexp resume PATH trainer=…``, with the command to use; None if no other loop is asked for."""
    chosen = {key: value for key, value, _ in map(parse_override, overrides)}
    if "trainer" not in chosen:
        return None
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
    groups = ["algo", "model", "env", *(["dataset"] if with_data else [])]
    choices = {group: _choice(group, config) for group in groups}
    env = config["env"].get("id") if choices["env"] else None
    if None in choices.values() or env is None:
        return None
    words = [f"algo={choices['algo']}", "env=gym", f"env.id={quoted(env)}"]
    needed = []
    if with_data:
        words.append(f"dataset={choices['dataset']}")
        needed = [f"dataset.{key}={quoted(config['dataset'][key])}" for key in NEEDED if config["dataset"].get(key)]
    try:
        plain = compose([*words, *needed, *([] if with_data else ["dataset=null"]), *overrides])
    except ConfigError:
        return None
    given = [each.partition("=")[0] for each in [*words, *needed, *overrides]]
    kept = [
        each
        for group in groups
        for each in _changes(plain[group], config[group], group)
        if each.partition("=")[0] not in given
    ]
    ending = [] if with_data else ["dataset=null"]
    return shlex.join(["rlexp", *words, *needed, *kept, *ending, *overrides, f"init_from={path}"])


def _choice(group: str, config: dict[str, Any]) -> str | None:
    """The registered name of what stands in a group of a config that nobody has checked; None if it is not ours."""
    node = config.get(group)
    target = node.get("_target_") if isinstance(node, dict) else None
    return next((name for name, cls in REGISTRY[group].items() if target_of(cls) == target), None)


def _changes(before: Any, after: dict[str, Any], where: str) -> Iterator[str]:
    """``algo.gamma=0.9`` for every setting of ``after`` that ``before`` has otherwise."""
    known = before if isinstance(before, dict) else {}
    for key, value in after.items():
        if key == "_target_" or known.get(key) == value:
            continue
        if isinstance(value, dict) and isinstance(known.get(key), dict) and value and known[key]:
            yield from _changes(known[key], value, f"{where}.{key}")
        else:
            yield f"{where}.{key}={quoted(value)}"
