"""Presets as their files have them, together with the presets they stand on: read, not composed. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlexp.config.compose import choice_files
from rlexp.config.messages import suggest
from rlexp.errors import ConfigError
from rlexp.files import reason


@dataclass(frozen=True)
class Preset:
    """What a preset chooses and sets, by itself or by what it stands on."""

    name: str
    choices: dict[str, str]  # group: choice
    settings: dict[str, Any]
    any_game: bool  # its environment is of many games, and it leaves open of which

    @property
    def algo(self) -> str:
        """Its algorithm, or nothing."""
        return self.choices.get("algo", "")

    @property
    def envs(self) -> list[str]:
        """What its environment is called: by the game or id, and by the choice."""
        env = self.settings.get("env") or {}
        return [str(each) for each in (env.get("game") or env.get("id"), self.choices.get("env")) if each]

    @property
    def budget(self) -> tuple[Any, str] | None:
        """How much, and of what: steps or updates."""
        trainer = self.settings.get("trainer") or {}
        units = ("steps", "updates")
        return next(((trainer[f"total_{unit}"], unit) for unit in units if trainer.get(f"total_{unit}")), None)


def read_presets(folders: Sequence[Path] | None = None) -> dict[str, Preset]:
    """All presets by name; ``folders`` are the user's own, without them the one from the environment."""
    files, envs = choice_files("zoo", folders), choice_files("env", folders)
    of_games: dict[str, bool] = {}
    presets = {}
    for name in files:
        choices, settings = _read(name, files)
        env = choices.get("env", "")
        if env not in of_games:
            of_games[env] = _of_games(env, envs)
        leaves_open = not (settings.get("env") or {}).get("game")
        presets[name] = Preset(name, choices, settings, of_games[env] and leaves_open)
    return presets


def _of_games(env: str, envs: Mapping[str, Path], above: Sequence[str] = ()) -> bool:
    """Whether an environment, or one that it stands on, asks for a game."""
    if env not in envs or env in above:
        return False
    content = _load(envs[env])
    bases = (base for entry in content["defaults"] for base in _bases(entry, "env", envs))
    return "game" in content or any(_of_games(base, envs, [*above, env]) for base in bases)


def _read(name: str, files: Mapping[str, Path], above: Sequence[str] = ()) -> tuple[dict[str, str], dict[str, Any]]:
    """Choices and settings, put together as Hydra does: settings in the order of ``defaults``, own choices on top."""
    if name in above:
        raise ConfigError(f"{files[above[-1]]}: presets stand on each other: {' on '.join([*above, name])}.")
    content = _load(files[name])
    entries = content.pop("defaults")
    for part in ("env", "trainer"):
        if not isinstance(content.get(part) or {}, dict):
            raise ConfigError(f"{files[name]}: {part} must be settings, not {content[part]!r}.")
    choices: dict[str, str] = {}
    settings: dict[str, Any] = {}
    for entry in entries if "_self_" in entries else [*entries, "_self_"]:
        if entry == "_self_":
            settings = _merged(settings, content)
            continue
        for base in _bases(entry, "zoo", files):
            if base not in files:
                near = suggest(base, files)
                hint = near if "Did you mean" in near else " rlexp list zoo shows those there are."
                raise ConfigError(f"{files[name]} stands on the preset {base}, which does not exist.{hint}")
            below = _read(base, files, [*above, name])
            choices, settings = choices | below[0], _merged(settings, below[1])
    own = [item for entry in entries if isinstance(entry, Mapping) for item in entry.items()]
    return choices | {_split(key)[1].rpartition("/")[2]: str(value) for key, value in own}, settings


class _Loader(yaml.SafeLoader):
    """SafeLoader to which dates are text, as they are to OmegaConf."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (as its base has it)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _load(path: Path) -> dict[str, Any]:
    """A config file, of which ``defaults`` is a list."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506  (a SafeLoader)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {reason(error)}.") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply.") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:  # the last two of `!!bool x`
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no settings, but {content!r}.")
    defaults = content.get("defaults") or []
    if not isinstance(defaults, list):
        raise ConfigError(f"{path}: defaults must be a list, not {defaults!r}.")
    return {**content, "defaults": defaults}


def _bases(entry: Any, group: str, files: Mapping[str, Path]) -> list[str]:
    """The files of its own group that an entry of ``defaults`` names: ``b``, ``/zoo/b.yaml``, ``/zoo@_global_: b``.

    None for a schema, for what is chosen of another group, and for what is optional and not there.
    """
    if isinstance(entry, str):
        name = entry.partition("@")[0].removeprefix(f"/{group}/").removesuffix(".yaml")
        return [] if "/" in name else [name]
    found = []
    for key, value in entry.items() if isinstance(entry, Mapping) else ():
        flags, key_group = _split(key)
        if key_group == f"/{group}" and "override" not in flags:
            given = value if isinstance(value, list) else [value]
            names = [str(each).removesuffix(".yaml") for each in given if each is not None]
            found += [name for name in names if name in files or "optional" not in flags]
    return found


def _split(key: Any) -> tuple[list[str], str]:
    """``override /env@_global_`` is of the group ``/env``."""
    *flags, group = str(key).split() or [""]
    return flags, group.partition("@")[0]


def _merged(below: Any, above: Any) -> Any:
    """Settings laid over others."""
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    return {**below, **{key: _merged(below.get(key), value) for key, value in above.items()}}
