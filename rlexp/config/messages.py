"""OmegaConf's complaints in the words of someone who has never heard of it. Free of torch."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

_WORDS = (
    (r"Value '(?P<value>.*)' of type '.*' could not be converted to Float", "must be a number, not {value}"),
    (r"Value '(?P<value>-?\d+)\.0' of type 'float' could not be converted to Integer",
     "must be a whole number: write {value}, not {value}.0"),
    (r"Value '(?P<value>.*)' of type '.*' could not be converted to Integer", "must be a whole number, not {value}"),
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


def suggest(word: str, known: Iterable[str]) -> str:
    """`` Did you mean beta?`` or what there is, as the end of a message."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    if near:
        return f" Did you mean {' or '.join(near)}?"
    return f" There are: {', '.join(names)}." if names else ""


def complaint(key: str, error: OmegaConfBaseException, given: str | None = None) -> str:
    """What is wrong with the value of ``key``, in a sentence; ``given`` is that value, where it is known."""
    message = str(error).splitlines()[0].rstrip(".")
    for pattern, words in _WORDS:
        if found := re.fullmatch(pattern, message):
            return f"{key} {words.format(given=given or '1,2', **found.groupdict())}."
    if isinstance(error, (ConfigKeyError, ConfigAttributeError)) and isinstance(error.parent_node, DictConfig):
        return f"{key}: no such setting.{suggest(key.split('.')[-1], setting_names(error.parent_node))}"
    return f"{key}: {message}."


def setting_names(node: DictConfig) -> list[str]:
    """The settings in a node, without ``_target_``."""
    return [str(name) for name in node if not str(name).startswith("_")]
