"""Overrides on a saved config: ``key=value`` in Hydra's grammar, without its groups. Free of torch."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from rlexp.config.component import REGISTRY, WHOLE, parts_of, schema_type
from rlexp.config.messages import suggest, suggest_below
from rlexp.errors import ConfigError

_STATE = "its checkpoints fit no other"
_DIGITS = "another would change the numbers that the run goes on to"
KEPT = {  # what a saved run cannot exchange, and why
    **dict.fromkeys(("algo", "env", "model", "buffer", "trainer", "dataset"), _STATE),
    **dict.fromkeys(("compile", "threads", "precision"), _DIGITS),
    "trainer.best_episodes": "its random numbers choose among these episodes",
    "buffer.alpha": "the priorities in its checkpoints are of that power",
    "evaluator": "its best checkpoint was chosen by it",
    "init_from": "it began with that agent",
    "zoo": "it was composed when it began",
    "seed": "its random numbers go on where they stopped",
    "name": "it is the name of its folder",
}


def parse_override(text: str) -> tuple[str, Any, bool]:
    """(key, value, whether it may add a key) of one ``key=value`` or ``+key=value``."""
    try:
        override: Override = OverridesParser.create().parse_override(text)
        value = override.value()
    except HydraException as error:
        if "=" not in text:
            raise ConfigError(f"{text!r} is not of the form key=value.") from error
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{text!r} cannot be read as key=value: {reason}.") from error
    if override.is_delete() or override.is_sweep_override():
        raise ConfigError(f"{text!r}: only key=value is understood here.")
    return override.key_or_group, _plain(value), override.is_add() or override.is_force_add()


_POWER = re.compile(r"(?<![\w.])\d+(\.\d+)?[eE]\+?\d{1,2}(?![\w.])")


def whole_numbers(overrides: Iterable[str]) -> list[str]:
    """``trainer.total_steps=1e4`` with the 10000 that it means, which Hydra would read as a float."""
    written = []
    for override in overrides:
        key, equals, value = override.partition("=")
        if takes_whole_numbers(key.lstrip("+")):
            value = _POWER.sub(lambda found: f"{Decimal(found[0]):f}", value)
        written.append(key + equals + value)
    return written


def takes_whole_numbers(key: str) -> bool:
    """Whether a setting of some component, or of the top level, is a whole number or a list of them."""
    group, _, name = key.partition(".")
    if not name:
        return key == "seed"
    return any(schema_type(cls, name) in WHOLE for cls in REGISTRY.get(group, {}).values())


def part_group(key: str) -> str | None:
    """The group that a setting of some component chooses a part from; None if it is an ordinary one."""
    group, _, name = key.partition(".")
    return next((parts_of(cls)[name] for cls in REGISTRY.get(group, {}).values() if name in parts_of(cls)), None)


def below_parts(overrides: Sequence[str]) -> list[str]:
    """``algo.exploration._target_=…`` as Hydra takes it, which sees the name of a part there and not its settings."""
    keys = [each.partition("=")[0].split(".") for each in overrides]
    return [f"++{each}" if part_group(".".join(key[:2])) and key[2:] else each for each, key in zip(overrides, keys)]


def refuse_kept(config: dict[str, Any], overrides: Iterable[str]) -> None:
    """Refuse overrides of what the saved run with this config must keep."""
    for text in overrides:
        key, _, _ = parse_override(text)
        if key in KEPT:
            single = f" Single settings can be changed: {key}.NAME=…" if isinstance(config.get(key), dict) else ""
            raise ConfigError(
                f"{text}: a saved run keeps its {key}, since {KEPT[key]}. Start a new run for that: "
                f"rlexp {text} …{single}"
            )


def whole(value: Any) -> Any:
    """The value of a setting that takes whole numbers: 1e4 is one to whoever wrote it, and a float to who reads it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def apply_overrides(config: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of a saved config with some values changed; a key must exist unless it is added with a plus."""
    changed = copy.deepcopy(config)
    for text in overrides:
        key, value, add = parse_override(text)
        *parents, leaf = key.split(".")
        node: Any = changed
        for depth, name in enumerate([*parents, leaf]):
            known = isinstance(node, dict) and (name in node or (add and depth == len(parents)))
            if not known:
                where = ".".join([*parents, leaf][: depth + 1])
                if depth and not isinstance(node, dict) and (part := ".".join(parents[:depth])) and part_group(part):
                    raise ConfigError(
                        f"{key}: the saved run has {part}={node}. One with settings of its own is given whole: "
                        f"'{part}={{_target_: package.Class, …}}'."
                    )
                names = [str(k) for k in node if not str(k).startswith("_")] if isinstance(node, dict) else []
                hint = suggest(name, names) if depth else suggest_below(name, changed, names)
                raise ConfigError(f"{where}: the saved run has no such setting.{hint}")
            if depth == len(parents):
                group = isinstance(node.get(name), dict) and part_group(key) is None
                if group and not isinstance(value, (dict, type(None))):
                    raise ConfigError(
                        f"{key} is a group of settings; a saved run cannot change its {key} to {value!r}."
                    )
                node[name] = value
            else:
                node = node[name]
    return changed


def _plain(value: Any) -> Any:
    """Hydra's quoted strings as plain ones."""
    if isinstance(value, dict):
        return {str(_plain(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return value.text if hasattr(value, "text") else str(value)
