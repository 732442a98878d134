"""OmegaConf's complaints in the words of someone who has never heard of it. Free of torch."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

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

# What other libraries call our settings, where it can mean nothing else (docs/coming_from.md has it all).
_OURS = {
    "actor_lr": "actor_learning_rate",
    "batch_size": "minibatch_size",  # on-policy; of the other loops it is the name
    "buffer_size": "capacity",
    "clip_coef": "clip_range",
    "critic_lr": "critic_learning_rate",
    "ent_coef": "entropy_coef",
    "eval_freq": "eval_interval",
    "goal_selection_strategy": "strategy",
    "gradient_steps": "gradient_updates_per_step",
    "hidden_sizes": "hidden",
    "lr": "learning_rate",
    "n_envs": "num_envs",
    "n_epochs": "epochs",
    "n_eval_episodes": "eval_episodes",
    "n_steps": "rollout_steps",
    "net_arch": "hidden",
    "norm_obs": "normalize_obs",
    "norm_reward": "normalize_reward",
    "num_steps": "rollout_steps",
    "noise_clip": "target_noise_clip",
    "policy_delay": "actor_interval",
    "policy_lr": "actor_learning_rate",
    "policy_noise": "target_noise",
    "save_freq": "checkpoint_interval",
    "target_policy_noise": "target_noise",
    "target_update_interval": "target_interval",
    "total_timesteps": "total_steps",
    "train_freq": "train_frequency",
    "update_epochs": "epochs",
    "vf_coef": "value_coef",
}


def suggest(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """`` Did you mean beta?`` or what there is, as the end of a message; ``otherwise`` instead of a screen of names."""
    names = list(known)
    near = _named(word, names) if word in _OURS else []
    if near := near or difflib.get_close_matches(word, names, n=3, cutoff=0.6):
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
    near = difflib.get_close_matches(word, [*names, *(path.rpartition(".")[2] for path in paths)], n=1, cutoff=0.7)
    if near and near[0] not in names:
        return question([path for path in paths if path.endswith(f".{near[0]}")])
    return suggest(word, names)


def settings_called(word: str, config: Mapping[str, Any]) -> list[str]:
    """The settings in the parts of a config that have a word, or our word for it, as their whole name."""
    paths = _paths(config)
    found = [[path for path in paths if path.rpartition(".")[2] == name] for name in (word, _OURS.get(word))]
    return found[0] or found[1]


def settings_below(word: str, config: Mapping[str, Any]) -> list[str]:
    """The settings in the parts of a config that a word names: ``trainer.total_steps`` for total_timesteps."""
    paths = _paths(config)
    wanted = _named(word, [path.rpartition(".")[2] for path in paths])
    return [path for path in paths if path.rpartition(".")[2] in wanted]


def _named(word: str, names: Sequence[str]) -> list[str]:
    """Those of the names that a word stands for: itself, our word for it, or what ends so (critic_learning_rate)."""
    ours = _OURS.get(word, word)
    exact = [each for each in (word, ours) if each in names]
    return exact[:1] or [name for name in names if name.endswith(f"_{ours}")]


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
            return f"{key} {words.format(given=given or '1,2', **found.groupdict())}."
    if isinstance(error, (ConfigKeyError, ConfigAttributeError)) and isinstance(error.parent_node, DictConfig):
        return f"{key}: no such setting.{suggest(key.split('.')[-1], setting_names(error.parent_node))}"
    return f"{key}: {message}."


def setting_names(node: DictConfig) -> list[str]:
    """The settings in a node, without ``_target_``."""
    return [str(name) for name in node if not str(name).startswith("_")]
