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
            of_games[env] = env in envs and "game" in _load(envs[env])
        leaves_open = not (settings.get("env") or {}).get("game")
        presets[name] = Preset(name, choices, settings, of_games[env] and leaves_open)
    return presets


def _read(name: str, files: Mapping[str, Path], above: Sequence[str] = ()) -> tuple[dict[str, str], dict[str, Any]]:
    """Choices and settings, put together as Hydra does: settings in the order of ``defaults``, own choices on top."""
    if name in above:
        raise ConfigError(f"{files[above[-1]]}: presets stand on each other: {' on '.join([*above, name])}.")
    content = _load(files[name])
    entries = content.pop("defaults")
    choices: dict[str, str] = {}
    settings: dict[str, Any] = {}
    for entry in entries if "_self_" in entries else [*entries, "_self_"]:
        if entry == "_self_":
            settings = _merged(settings, content)
        elif (base := _base(entry)) is not None:
            if base not in files:
                near = suggest(base, files)
                hint = near if "Did you mean" in near else " rlexp list zoo shows those there are."
                raise ConfigError(f"{files[name]} stands on the preset {base}, which does not exist.{hint}")
            below = _read(base, files, [*above, name])
            choices, settings = choices | below[0], _merged(settings, below[1])
    own = [item for entry in entries if isinstance(entry, Mapping) for item in entry.items()]
    return choices | {str(key).removeprefix("override ").rpartition("/")[2]: str(value) for key, value in own}, settings


def _load(path: Path) -> dict[str, Any]:
    """A config file, of which ``defaults`` is a list and each part that presets are asked for is a dict."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no settings, but {content!r}.")
    for part, kind, word in (("defaults", list, "a list"), ("env", dict, "settings"), ("trainer", dict, "settings")):
        if not isinstance(content.get(part) or kind(), kind):
            raise ConfigError(f"{path}: {part} must be {word}, not {content[part]!r}.")
    return {**content, "defaults": content.get("defaults") or []}


def _base(entry: Any) -> str | None:
    """The preset that an entry of ``defaults`` names; None if it is something else, such as a schema."""
    if not isinstance(entry, str):
        return None
    name = entry.partition("@")[0].removeprefix("/zoo/")
    return None if "/" in name else name


def _merged(below: Any, above: Any) -> Any:
    """Settings laid over others."""
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    return {**below, **{key: _merged(below.get(key), value) for key, value in above.items()}}
