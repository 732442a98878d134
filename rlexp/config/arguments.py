"""What a person passes to an agent in Python, as overrides of the command line; mistakes with the right call."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import gymnasium as gym

from rlexp.config.check import GROUPS, Root
from rlexp.config.component import REGISTRY
from rlexp.config.compose import choices, compose
from rlexp.config.messages import settings_below, suggest
from rlexp.envs.locate import find_registration
from rlexp.errors import ConfigError, EnvError

EnvFactory = Callable[[], gym.Env]
_WORDS = ("true", "false", "null", "inf", "nan")  # which Hydra reads as something else than text
PARTS = (*GROUPS, "logger", "zoo")  # what an override chooses: buffer=her
KEYWORDS = tuple(f.name for f in fields(Root) if f.name not in (*GROUPS, "logger"))  # seed, name, device, …


def overrides_of(
    who: str, overrides: Sequence[Any], env: str | EnvFactory | None, settings: dict[str, Any], algo: str | None
) -> list[str]:
    """The overrides that ``who(*overrides, env=env, **settings)`` stands for; ConfigError with the right call."""
    given = [f"algo={algo}"] if algo else []
    for override in overrides:
        if not isinstance(override, str) or ("=" not in override and not override.startswith("~")):
            raise ConfigError(_not_an_override(who, override, overrides, env, algo))
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


def check_factory(who: str, env: Any, *, by_id: bool = False) -> None:
    """Refuse what cannot make environments: one object cannot serve training and evaluation at once.

    ``by_id``: it may also be named.
    """
    if env is None or (callable(env) and not isinstance(env, gym.Env)):
        return
    ways = _ways_to_make(env) if isinstance(env, gym.Env) else ["my_function"]
    right = " or ".join(f"env={way}" for way in ways if by_id or not way.startswith('"'))
    raise ConfigError(f"{who}: env must be a function that makes an environment, because several are needed: {right}.")


def _ways_to_make(env: gym.Env) -> list[str]:
    """What to pass instead of an environment that was made already; its name in quotes where that says all."""
    spec, wrappers = env.spec, []
    if spec is not None:
        wrappers = [each.name for each in spec.additional_wrappers]
        usual = gym.registry[spec.id].kwargs if spec.id in gym.registry else {}
        given = {
            key: value
            for key, value in spec.kwargs.items()
            if key != "render_mode" and repr(usual.get(key)) != repr(value)
        }
        name = f'"{spec.id}"'
        made = f"gym.make({', '.join([name, *(f'{key}={value!r}' for key, value in given.items())])})"
        plain = not given
    else:
        name, plain = type(env.unwrapped).__name__, True
        made = f"{name}(…)"
        while isinstance(env, gym.Wrapper):
            wrappers.insert(0, type(env).__name__)
            env = env.env
    for wrapper in wrappers:
        made = f"{wrapper}({made}, …)"
    return [name, f"lambda: {made}"] if plain and not wrappers else [f"lambda: {made}"]


def _env_overrides(who: str, env: Any) -> list[str]:
    if not isinstance(env, str):
        check_factory(who, env, by_id=True)
        return ["env=gym", f"env.id={getattr(env, '__name__', type(env).__name__).strip('<>')}"]
    known = choices("env")
    if env in known:
        return [f"env={env}"]
    if ":" not in env and "/" not in env and "-v" not in env and not _registered(env):
        raise ConfigError(f"{who}: there is no environment {env!r}.{suggest(env, known)} Or any Gymnasium id.")
    return ["env=gym", f"env.id={env}"]


def _not_an_override(who: str, value: Any, overrides: Sequence[Any], env: Any, algo: str | None) -> str:
    shown = repr(value) if isinstance(value, str) else type(value).__name__
    right = _env_argument(overrides, env, algo)
    return f'{who}: {shown} is not a setting. Write {who}({right}, …) and settings as "trainer.total_steps=50_000".'


def _env_argument(overrides: Sequence[Any], env: Any, algo: str | None) -> str:
    """How the environment is given that seems to be meant; if there is none, one that the algorithm can act in."""
    texts = [each for each in overrides if isinstance(each, str)]
    if chosen := next((each for each in texts if each.startswith("env=")), None):
        return f'"{chosen}"'
    if isinstance(env, str):
        return f"env={env!r}"
    if made := next((each for each in (env, *overrides) if isinstance(each, gym.Env)), None):
        return f"env={_ways_to_make(made)[0]}"
    if maker := next((each for each in (env, *overrides) if callable(each)), None):
        name = getattr(maker, "__name__", "")
        return f"env={name if name.isidentifier() else 'my_function'}"
    if named := next((each for each in texts if _names_env(each)), None):
        return f"env={named!r}"
    algo = algo or next((each.partition("=")[2] for each in texts if each.startswith("algo=")), "")
    actions = getattr(REGISTRY["algo"].get(algo), "actions", ("discrete",))
    return f"env={'CartPole-v1' if 'discrete' in actions else 'Pendulum-v1'!r}"


def _not_a_keyword(who: str, name: str, value: Any, config: dict[str, Any], maker: str, known: Sequence[str]) -> str:
    """What ``who`` says of an argument that it does not take; ``maker(…)`` takes the settings of a config."""
    if name in ("env", *KEYWORDS):
        return f"{who}: write {name}={value!r} as {maker}({name}={value!r}, …)."
    if name.partition(".")[0] in PARTS:
        plain = value is None or isinstance(value, (bool, int, float, str, list, tuple, dict))
        given = (f"{value!r}", quoted(value)) if plain else ("…", "…")
        return f'{who}: write {name}={given[0]} as {maker}("{name}={given[1]}", …).'
    if found := settings_below(name, config):
        given_value = None if (name, value) == ("ent_coef", "auto") else value  # SB3's word for a learned temperature
        right = " or ".join(f'{maker}("{key}={quoted(given_value)}", …)' for key in found)
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
