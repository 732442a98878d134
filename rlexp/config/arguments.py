"""What a person passes to an agent in Python, as overrides of the command line; mistakes with the right call."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import gymnasium as gym

from rlexp.config.check import GROUPS, Root
from rlexp.config.compose import choices, compose
from rlexp.config.messages import settings_below, suggest
from rlexp.envs.locate import find_registration
from rlexp.errors import ConfigError, EnvError

EnvFactory = Callable[[], gym.Env]
_WORDS = ("true", "false", "null", "inf", "nan")  # which Hydra reads as something else than text
KEYWORDS = tuple(f.name for f in fields(Root) if f.name not in (*GROUPS, "logger"))  # seed, name, device, …


def overrides_of(
    who: str, overrides: Sequence[Any], env: str | EnvFactory | None, settings: dict[str, Any], algo: str | None
) -> list[str]:
    """The overrides that ``who(*overrides, env=env, **settings)`` stands for; ConfigError with the right call."""
    given = [f"algo={algo}"] if algo else []
    for override in overrides:
        if not isinstance(override, str) or ("=" not in override and not override.startswith("~")):
            raise ConfigError(_not_an_override(who, override, overrides))
        given.append(override)
    if env is not None:
        if any(override.startswith("env=") for override in given):
            raise ConfigError(f"{who}: the environment is given twice. Leave out env=… or the override env=….")
        given += _env_overrides(who, env)
    for name in settings:
        if name not in KEYWORDS:
            raise ConfigError(_not_a_keyword(who, name, settings[name], compose(given), who, ("env", *KEYWORDS)))
    return [*given, *(f"{name}={quoted(value)}" for name, value in settings.items())]


def check_learn(maker: str, run_dir: Any, settings: dict[str, Any], config: dict[str, Any]) -> None:
    """Refuse a budget or another setting given to ``learn``, where other libraries take it: here it is the agent's."""
    if isinstance(run_dir, int):
        budget = "total_steps" if "total_steps" in config["trainer"] else "total_updates"
        settings = {budget: run_dir, **settings}
    for name, value in settings.items():
        raise ConfigError(_not_a_keyword(f"{maker}.learn", name, value, config, maker, ("run_dir",)))


def check_factory(who: str, env: Any) -> None:
    """Refuse what cannot make environments: one object cannot serve training and evaluation at once."""
    if env is None or (callable(env) and not isinstance(env, gym.Env)):
        return
    name = type(env).__name__
    right = f"env={name} or env=lambda: {name}(…)" if isinstance(env, gym.Env) else "env=my_function"
    raise ConfigError(f"{who}: env must be a function that makes an environment, because several are needed: {right}.")


def _env_overrides(who: str, env: Any) -> list[str]:
    if not isinstance(env, str):
        check_factory(who, env)
        return ["env=gym", f"env.id={getattr(env, '__name__', type(env).__name__).strip('<>')}"]
    known = choices("env")
    if env in known:
        return [f"env={env}"]
    if ":" not in env and "/" not in env and "-v" not in env and not _registered(env):
        raise ConfigError(f"{who}: there is no environment {env!r}.{suggest(env, known)} Or any Gymnasium id.")
    return ["env=gym", f"env.id={env}"]


def _not_an_override(who: str, value: Any, overrides: Sequence[Any]) -> str:
    named = next((each for each in overrides if isinstance(each, str) and _names_env(each)), None)
    maker = next((each for each in overrides if not isinstance(each, str) and callable(each)), None)
    if isinstance(value, gym.Env):
        right = type(value).__name__
    else:
        right = getattr(maker, "__name__", "my_function") if maker is not None else repr(named or "CartPole-v1")
    shown = repr(value) if isinstance(value, str) else type(value).__name__
    return f'{who}: {shown} is not a setting. Write {who}(env={right}, …) and settings as "trainer.total_steps=50_000".'


def _not_a_keyword(who: str, name: str, value: Any, config: dict[str, Any], maker: str, known: Sequence[str]) -> str:
    """What ``who`` says of an argument that it does not take; ``maker(…)`` takes the settings of a config."""
    if name in KEYWORDS:
        return f"{who}: write {name}={value!r} as {maker}({name}={value!r}, …)."
    if found := settings_below(name, config):
        right = " or ".join(f'{maker}("{key}={quoted(value)}", …)' for key in found)
        return f"{who}: write {name}={value!r} as {right}."
    return f"{who} has no argument {name!r}.{suggest(name, known)}"


def _names_env(text: str) -> bool:
    return text in choices("env") or _registered(text)


def _registered(text: str) -> bool:
    try:
        find_registration(text)
    except EnvError:
        return False
    return True


def quoted(value: Any) -> str:
    """A value as Hydra's grammar has it."""
    if isinstance(value, str):
        escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value)
        return value if re.fullmatch(r"[A-Za-z/][\w./-]*", value) and value.lower() not in _WORDS else f"'{escaped}'"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(quoted, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{quoted(each)}' for key, each in value.items())}}}"
    return "null" if value is None else str(value)
