"""What Hydra meant when it refused to compose: the cause and the nearest right name, never its advice to append."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from traceback import walk_tb
from typing import Any

from hydra.core.default_element import DefaultsTreeNode
from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from rlexp.config.component import REGISTRY, schema_of, schema_type
from rlexp.config.foreign import ours
from rlexp.config.messages import complaint, question, setting_names, settings_called, suggest, suggest_below
from rlexp.config.trust import EVERYTHING, locate
from rlexp.errors import ConfigError

Compose = Callable[[Sequence[str]], DictConfig]

MANY = 6  # choices: more of them are counted, not named


def explain(
    error: BaseException, overrides: Sequence[str], compose: Compose, choices: Callable[[str], dict[str, str]]
) -> ConfigError:
    """The error of a composition for the person who typed ``overrides``; ``compose`` tries others."""
    text = str(error)
    inner = error if isinstance(error, OmegaConfBaseException) else error.__cause__ or error.__context__
    if isinstance(error, MissingConfigException):
        return _missing_choice(text, choices)
    if isinstance(error, YAMLError):
        return _no_yaml(error)
    if isinstance(error, RecursionError):
        return _endless(error)
    if isinstance(error, OverrideParseException):
        return _unreadable(str(error.override), text)
    if found := re.search(r"Could not override '([^']+)'", text):
        key = found[1].split("@")[0]
        same = [i for i, each in enumerate(overrides) if each.lstrip("+~").split("=")[0].split("@")[0] == key]
        rest = [each for i, each in enumerate(overrides) if i not in same[-1:]]  # algo=crr algo={betta: 3}: the latter
        below = getattr(inner, "full_key", None) or key  # of what the override holds, where that is a dict
        node = getattr(inner, "parent_node", None)
        below = str(below) if str(below).startswith(key) else key
        typed = next((overrides[i] for i in same[-1:]), "")
        plain = re.fullmatch(rf"{re.escape(below)}=[\w.+-]+", typed)  # anything else is quoted for the shell
        return _unknown_key(below, f"+{typed if plain else f'{below}=…'}", rest, compose, node)
    if found := re.search(r"Could not append to config. An item is already at '([^']+)'", text):
        return ConfigError(f"+{found[1]} exists already; leave out the plus: {found[1]}=…")
    if found := re.match(r"Ambiguous value for argument '(.+)'", text):
        key, _, value = found[1].partition("=")
        return ConfigError(f"{found[1]} asks for several runs: add --multirun. One list is written {key}=[{value}].")
    if "Config group override must be" in text:
        return ConfigError("A group takes the name of one of its choices, e.g. env=cartpole (see: rlexp list).")
    if isinstance(inner, AssertionError) and "Unexpected type for root" in str(inner):
        key = next((each.split("=")[0] for each in overrides if ".schedules." in each), "algo.schedules.NAME.end")
        whole = f"{key.rsplit('.', 1)[0]}={{shape:linear,end:0}}"
        return ConfigError(f"{key}: give the whole schedule at once, e.g. '{whole}'.")
    if isinstance(inner, OmegaConfBaseException):
        return _misfit(inner, text, overrides)
    return ConfigError(" ".join(line.strip() for line in text.splitlines()[:3]))


def _missing_choice(text: str, choices: Callable[[str], dict[str, str]]) -> ConfigError:
    found = re.search(r"Could not (?:find|load) '([^']+)'", text)
    if found is None:  # the folder of --config-dir, for one
        return ConfigError(text.splitlines()[0])
    group, _, name = found[1].rpartition("/")
    if (head := group.partition("/")[0]) not in ("schema", "hydra"):  # in which groups are below others
        group, name = head, found[1].removeprefix(f"{head}/")  # env=ALE/Breakout-v5
    file = re.match(r"In '([^']+)'", text)
    source = f"{file[1]}.yaml: " if file and file[1] != "config" else ""
    listed = text.split("Config search path")[0].partition("Available options in")[2].splitlines()[1:]
    options = sorted({*(line.strip() for line in listed if line.strip()), *choices(group)})
    hint = (_env_hint(name) if group == "env" else "") or suggest(name, options)
    return ConfigError(f"{source}{group}={name}: there is no such {group or 'config'}.{hint}")


def _env_hint(name: str) -> str:
    """How to write the Atari game or Gymnasium id that was taken for an environment; nothing if it looks like none."""
    if game := _game_hint(name.rpartition("/")[2]):
        return game
    return f" A Gymnasium id is written env=gym env.id={name}" if re.search(r"-v\d+$|^[\w.]+:", name) else ""


def _game_hint(name: str) -> str:
    """How to play the Atari game that was taken for an environment; nothing if it is none, or nobody knows."""
    try:
        from ale_py import roms
    except ImportError:
        return ""
    games = {game.replace("_", ""): game for game in roms.get_all_rom_ids()}
    # breakout, SpaceInvaders, Breakout-v5, PongNoFrameskip-v4, PongDeterministic-v4
    game = games.get(re.sub(r"(noframeskip|deterministic)?-v\d+$|[_-]", "", name.lower()))
    return f" It is an Atari game: env=atari env.game={game}" if game else ""


def _no_yaml(error: YAMLError) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    where = f"{mark.name}, line {mark.line + 1}" if mark else "A config file"
    return ConfigError(f"{where}: this is no YAML ({getattr(error, 'problem', None) or error}).")


def _endless(error: RecursionError) -> ConfigError:
    """Files that stand on each other, which Hydra follows without end, or one that is nested too deeply.

    The error itself says nothing; Hydra's frames know which file it had come to.
    """
    roots = [frame.f_locals.get("root") for frame, _ in walk_tb(error.__traceback__)]
    distinct = {id(root): root for root in roots if isinstance(root, DefaultsTreeNode)}.values()  # frames share them
    paths = [root.node.get_config_path() for root in distinct if not root.node.is_virtual()]
    end = next((i for i, path in enumerate(paths) if path in paths[:i]), None)
    if end is None:
        return ConfigError(f"{paths[-1]}.yaml is nested too deeply." if paths else "The config is nested too deeply.")
    ring = paths[paths.index(paths[end]) : end + 1]
    advice = ""
    if len(ring) == 2:
        group = ring[0].rpartition("/")[0]
        advice = f" In its defaults, `/{group}: NAME` is the {group} that was chosen: write NAME alone."
    return ConfigError(f"{paths[end - 1]}.yaml: configs stand on each other: {' on '.join(ring)}.{advice}")


def _unreadable(override: str, text: str) -> ConfigError:
    if "=" not in override:
        return ConfigError(f"{override!r} is not of the form key=value.")
    reason = next((line for line in text.splitlines() if not line.startswith(("Error parsing", "See "))), "")
    return ConfigError(
        f"{override!r} cannot be read as key=value ({reason}). Lists and dicts are quoted for the shell: 'key=[1,2]'."
    )


def _unknown_key(key: str, added: str, rest: Sequence[str], compose: Compose, parent_node: Any) -> ConfigError:
    """Compose without the offending override and see how far down the config its key leads.

    ``added`` is the override as it would be if the key is one to add.
    """
    try:
        node: Any = compose(rest)
    except Exception:  # of a sweep, for one, only a single job is at fault
        if isinstance(parent_node, DictConfig):
            return _no_such_setting(key, key.split(".")[-1], parent_node, added)
        return ConfigError(f"{key}: no such setting.")
    parts = key.split(".")
    whole = owner = node
    for depth, name in enumerate(parts):
        parent, where = ".".join(parts[:depth]), ".".join(parts[: depth + 1])
        if node is None:
            known = _choices_with(parent, name) or [f"{parent}=… (see: rlexp list {parent})"]
            return ConfigError(f"{key}: no {parent} is chosen. Choose one first: {' or '.join(known)}")
        if not isinstance(node, DictConfig):
            return ConfigError(f"{key}: {parent} is a single value, {node!r}, with nothing below it.")
        if depth and parts[depth - 1] == "kwargs" and name not in node:
            return ConfigError(f"{where} is a new keyword argument; add it with a plus: {added}")
        if name not in node and depth and parts[depth - 1] == "schedules" and name in owner:
            fields = ", ".join(setting_names(node))
            return ConfigError(f"{where}: {name} cannot be scheduled. Those that can: {fields}.")
        if name not in node:
            return _no_such_setting(where, name, node, added, whole)
        owner, node = node, node[name] if not OmegaConf.is_missing(node, name) else "???"
    return ConfigError(f"{key} gets entries that are new; add them with a plus: {added}")


def _no_such_setting(
    where: str, name: str, node: DictConfig, added: str, whole: DictConfig | None = None
) -> ConfigError:
    known = setting_names(node)
    if "." not in where:
        config: Any = OmegaConf.to_container(node)
        return ConfigError(f"{where}: no such setting or group.{suggest_below(name, config, [*known, 'zoo'])}")
    target = node.get("_target_")
    if target is None:
        return ConfigError(f"{where}: no such setting.{suggest(name, known)}")
    try:  # a user's own target may have more settings than its file gives
        cls = locate(target, where, EVERYTHING)
        fields = [field.name for field in dataclasses.fields(schema_of(cls)) if not field.name.startswith("_")]
    except (ConfigError, TypeError, ValueError, NameError):
        fields = known
    if name in fields:
        return ConfigError(f"{where} is not set in its config file; add it with a plus: {added}")
    group, part = where.split(".")[0], where.rpartition(".")[0]
    others = _choices_with(group, name)
    hint = suggest(name, fields)
    if whole is not None and not others and not settings_called(name, {part: dict.fromkeys(("_target_", *fields))}):
        elsewhere = settings_called(name, OmegaConf.to_container(whole))  # type: ignore[arg-type]
        if elsewhere:  # other libraries make everything an argument of the algorithm
            return ConfigError(f"{where}: {target.split('.')[-1]} has no such setting.{question(elsewhere)}")
    word = "it"
    for other in () if others else ours(name):  # SAC has no vf_coef, but others have it as value_coef
        if found := _choices_with(group, other.removeprefix(f"{group}.")):
            others, word = found, other.rpartition(".")[2]
            break
    if others and "Did you mean" not in hint:
        hint = f" {' and '.join(others)} {'have' if len(others) > 1 else 'has'} {word}."
        if len(others) > MANY:
            hint = f" {len(others)} others have {word} (docs/reference.md lists the settings of each)."
    return ConfigError(f"{where}: {target.split('.')[-1]} has no such setting.{hint}")


def _choices_with(group: str, name: str) -> list[str]:
    """The choices of a group that have a setting of this name."""
    return sorted(f"{group}={choice}" for choice, cls in REGISTRY.get(group, {}).items() if schema_type(cls, name))


def _misfit(error: OmegaConfBaseException, text: str, overrides: Sequence[str]) -> ConfigError:
    """A value that does not fit its schema, from an override or from a file."""
    found = re.search(r"Error merging override ([^\s=]+)", text)
    key = error.full_key or (found[1].lstrip("+~") if found else "config")
    file = re.match(r"In '([^']+)'", text)
    typed = {each.lstrip("+~").partition("=")[0]: each.partition("=")[2] for each in overrides}
    if file is None:
        return ConfigError(complaint(key, error, typed.get(key)))
    group, _, name = file[1].rpartition("/")
    if not isinstance(error, (ConfigKeyError, ConfigAttributeError)) or not isinstance(error.parent_node, DictConfig):
        return ConfigError(f"{file[1]}.yaml: {complaint(key, error)}")
    if key == "_target_":
        return ConfigError(
            f"{file[1]}.yaml: _target_ stands at the top level, since the file is of `# @package _global_`. "
            f"Put it and its settings below `{group}:`"
        )
    leaf, known = key.split(".")[-1], setting_names(error.parent_node)
    owner = str(error.parent_node.get("_target_", key.rpartition(".")[0])).split(".")[-1]
    part = key.split(".")[0]
    if not _choices_with(part, leaf):
        return ConfigError(f"{file[1]}.yaml: {key}: {owner or 'a run'} has no such setting.{suggest(leaf, known)}")
    chosen = next((f"{each}={typed[each]}" for each in (part, "algo") if each in typed), f"the choice {part}=…")
    advice = f"The preset does not go with {chosen}: leave out one of the two."
    if (group, part) == ("algo", "trainer") and name in REGISTRY["algo"]:
        loops = sorted(REGISTRY["algo"][name].loops)  # type: ignore[attr-defined]
        advice = f"algo={name} learns with {' or '.join(f'trainer={loop}' for loop in loops)}."
    elif group != "zoo":
        advice = f"Leave out {group}={name}, or the choice {part}=… that does not go with it."
    return ConfigError(f"{key}: {owner} has no such setting, but {group}={name} sets it for another {part}. {advice}")
