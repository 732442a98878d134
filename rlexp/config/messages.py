"""OmegaConf's complaints in the words of someone who has never heard of it. Free of torch."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, Node
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from rlexp.config.foreign import note, ours

_WORDS = (
    (r"Value '(?P<value>.*)' of type '.*' could not be converted to Float", "must be a number{null}, not {value}"),
    (r"Value '(?P<value>-?\d+)\.0' of type 'float' could not be converted to Integer",
     "must be a whole number: write {value}, not {value}.0"),
    (r"Value '(?P<value>.*)' of type '.*' could not be converted to Integer",
     "must be a whole number{null}, not {value}"),
    (r"Value '(?P<value>.*)' is not a valid bool.*", "must be true or false, not {value}"),
    (r"Invalid value '(?P<value>.*)', expected one of \[(?P<known>.*)\]", "must be one of {known}, not {value}"),
    (r"Cannot convert '.*' to string: '(?P<value>.*)'", "must be text, not {value}"),
    (r"Incompatible value 'None' for field of type '.*'", "must not be null"),
    (r"field '.*' is not Optional", "must not be null"),
    (r"Invalid value assigned: .* is not a ListConfig, list or tuple", "must be a list such as [{given}]"),
    (r"Cannot assign .* to Dict\[.*", "must be settings such as {{key: value}}"),
    (r"Cannot merge DictConfig with ListConfig", "must not be a list where settings belong, or the reverse"),
    (r"(Invalid type assigned|Merge error): .* is not a subclass of Schedule\. value: (?P<value>.*)",
     "must be a schedule such as {{shape: linear, end: 0}}, not {value}"),
    (r"Value '(?P<value>.*)' .*is incompatible with type hint '(?P<kind>.*)'", "must be of type {kind}, not {value}"),
    (r".* \(DictConfig\) does not support deletion", "can be changed but not removed"),
)  # fmt: skip


def suggest(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """`` Did you mean beta?`` or what there is, as the end of a message; ``otherwise`` instead of a screen of names."""
    names = list(known)
    if told := note(word, names):
        return f" {told}"
    if near := _named(word, names) if ours(word) else difflib.get_close_matches(word, names, n=3, cutoff=0.6):
        return question(near)
    if otherwise is not None:
        return f" {otherwise}"
    return f" There are: {', '.join(names)}." if names else ""


def suggest_below(word: str, config: Mapping[str, Any], known: Iterable[str]) -> str:
    """As :func:`suggest`, for a word that stands at the top of a config: it may be meant for one of the parts."""
    names = list(known)
    if found := settings_below(word, config):
        return question(found)
    paths = _paths(config)
    near = difflib.get_close_matches(word, [*names, *map(_leaf, paths)], n=1, cutoff=0.7)
    if told := note(word, [*map(_leaf, paths)]):
        return f" {told}"
    if near and near[0] not in names:
        return question([path for path in paths if path.endswith(f".{near[0]}")])
    return suggest(word, names)


def settings_called(word: str, config: Mapping[str, Any]) -> list[str]:
    """The settings in the parts of a config that have a word, or our word for it, as their whole name."""
    paths = _paths(config)
    names = (word, *ours(word, [*map(_leaf, paths)]))
    found = ([path for path in paths if f".{path}".endswith(f".{name}")] for name in names)
    return next(filter(None, found), [])


def settings_below(word: str, config: Mapping[str, Any]) -> list[str]:
    """The settings in the parts of a config that a word names: ``trainer.total_steps`` for total_timesteps."""
    return settings_called(word, config) or [path for path in _paths(config) if _ends_so(path, word)]


def _named(word: str, names: Sequence[str]) -> list[str]:
    """Those of the names that a word stands for: itself, our word for it, or what ends so (critic_learning_rate)."""
    exact = [each for each in (word, *map(_leaf, ours(word, names))) if each in names]
    return exact[:1] or [name for name in names if _ends_so(name, word)]


def _ends_so(name: str, word: str) -> bool:
    return name.endswith(tuple(f"_{each}" for each in ours(word) or (word,)))


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def _paths(config: Mapping[str, Any]) -> list[str]:
    """Every setting of the components in a plain config; loggers stand one level deeper."""

    def below(node: Any, where: str) -> Iterator[str]:
        if isinstance(node, Mapping) and "_target_" in node:
            yield from (f"{where}.{name}" for name in node if not str(name).startswith("_"))

    loggers = config.get("logger")
    parts = dict(config) | ({f"logger.{k}": v for k, v in loggers.items()} if isinstance(loggers, Mapping) else {})
    return [path for where, node in parts.items() for path in below(node, where)]


def question(names: Iterable[str]) -> str:
    """`` Did you mean beta or gamma?``"""
    return f" Did you mean {' or '.join(names)}?"


def as_override(flag: str, value: str, known: Iterable[str]) -> str:
    """`` Settings are written without dashes: algo=ppo`` for ``--algo``; nothing for what is no setting."""
    key = flag.lstrip("-").replace("-", "_")
    if key.partition(".")[0] not in known:
        return ""
    return f" Settings are written without dashes: {key}={value if re.match(r'[^-][^=]*$', value) else '…'}"


def complaint(key: str, error: OmegaConfBaseException, given: str | None = None) -> str:
    """What is wrong with the value of ``key``, in a sentence; ``given`` is that value, where it is known."""
    message = str(error).splitlines()[0].rstrip(".")
    for pattern, words in _WORDS:
        if found := re.fullmatch(pattern, message):
            return f"{key} {words.format(given=given or '1,2', null=_or_null(error), **found.groupdict())}."
    if isinstance(error, (ConfigKeyError, ConfigAttributeError)) and isinstance(error.parent_node, DictConfig):
        return f"{key}: no such setting.{suggest(key.split('.')[-1], setting_names(error.parent_node))}"
    return f"{key}: {message}."


def _or_null(error: OmegaConfBaseException) -> str:
    """``, or null (learned)`` where a component's setting may be null, with what its comment says that null means."""
    node, cls = error.child_node, getattr(error.object_type, "describes_", None)
    if not isinstance(cls, type) or not isinstance(node, Node) or not node._is_optional():
        return ""
    found = re.search(r"\bnull: (.+?)(\. |$)", comment_of(cls, str(error.key)))
    return f", or null ({found[1]})" if found else ", or null"


def comment_of(cls: type, name: str) -> str:
    """The comment beside a field, in the class that declares it last; nothing where there is none to read."""
    for base in cls.__mro__:
        if name in vars(base).get("__annotations__", {}):
            try:
                source = inspect.getsource(base)
            except (OSError, TypeError):  # made by a program, or its file is gone
                return ""
            found = re.search(rf"^ +{name}: [^#\n]*# (.*)$", source, re.MULTILINE)
            return found[1].strip() if found else ""
    return ""


def setting_names(node: DictConfig) -> list[str]:
    """The settings in a node, without ``_target_``."""
    return [str(name) for name in node if not str(name).startswith("_")]
