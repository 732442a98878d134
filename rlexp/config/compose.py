"""From overrides to a checked, plain config; and what can be composed at all."""

from __future__ import annotations

import importlib
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlexp.config.check import GROUPS, Root, check_config, to_plain
from rlexp.config.explain import explain as explain_error
from rlexp.config.messages import complaint
from rlexp.config.overrides import below_parts, whole_numbers
from rlexp.config.trust import EVERYTHING, Trust, import_plugins
from rlexp.errors import ConfigError

CONFIG_MODULE = "rlexp.conf"
CONFIG_DIR_VARIABLE = "RLEXP_CONFIG_DIR"  # a folder of the user's own YAML, added to the search path
SWEEP_GROUPS = ("sweep", "search", "launcher")  # how several runs are made; no part of any of them
CHOICE_GROUPS = (*GROUPS, "logger", "zoo", *SWEEP_GROUPS)  # in the order `rlexp list` shows them
TOP_KEYS = tuple(dict.fromkeys([*CHOICE_GROUPS, *(f.name for f in fields(Root))]))  # what may stand before the = or .
# What Hydra raises where a composition is wrong.
COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, AssertionError, ValueError, RecursionError)
COMPONENT_PACKAGES = (
    "algos",
    "buffers",
    "contrib",
    "datasets",
    "envs",
    "evaluators",
    "loggers",
    "models",
    "sweeps",
    "trainers",
)


def register() -> None:
    """Make every component known to Hydra: rlexp's own, then the user's plugins."""
    for package in COMPONENT_PACKAGES:
        importlib.import_module(f"rlexp.{package}")
    import_plugins()
    if not OmegaConf.has_resolver("rlexp.token"):
        OmegaConf.register_new_resolver("rlexp.token", lambda: secrets.token_hex(2), use_cache=True)
        OmegaConf.register_new_resolver("rlexp.task", task_name)


def task_name(choice: str, env: Mapping[str, Any] | None) -> str:
    """What a run's name calls its environment: env=pendulum itself, the game of env=atari, the id of env=gym."""
    env = env or {}  # whoever removed it is told so when the config is checked
    game, env_id = env.get("game"), env.get("id")
    name = env_id if choice == "gym" and env_id else f"{choice}_{game}" if game else choice
    return re.sub(r"[^\w.]+", "_", str(name))[:80]  # the part of a folder's name, whatever they hold


def config_folders(given: Sequence[str] = ()) -> list[Path]:
    """The user's own config folders: those of --config-dir and the one from the environment."""
    if user := os.environ.get(CONFIG_DIR_VARIABLE):
        given = [*given, user]
    for folder in given:
        if not Path(folder).is_dir():
            raise ConfigError(f"The config folder {folder} (--config-dir or {CONFIG_DIR_VARIABLE}) does not exist.")
    return [Path(folder) for folder in given]


def search_path_overrides(folders: Sequence[str] = ()) -> list[str]:
    """The user's config folders, those given and the one from the environment, as an override."""
    paths = [str(folder.resolve()) for folder in config_folders(folders)]
    quoted = ["'file://" + path.replace("'", r"\'") + "'" for path in paths]
    return [f"hydra.searchpath=[{','.join(quoted)}]"] if quoted else []


def for_hydra(overrides: Sequence[str]) -> list[str]:
    """What is typed as Hydra understands it: no null for a group, no whole 1e4, no settings where a name stands."""
    nulls = [f"{group}=null" for group in CHOICE_GROUPS]
    overrides = ["env=from_dataset" if each == "env=null" else each for each in overrides]
    return below_parts(whole_numbers(f"~{each[:-5]}" if each in nulls else each for each in overrides))


def compose(overrides: Sequence[str] = (), folders: Sequence[str] = (), trust: Trust = EVERYTHING) -> dict[str, Any]:
    """Compose and check a config in Python, without a Hydra job around it; ``folders`` are those of --config-dir."""
    register()
    given = [*search_path_overrides(folders), *for_hydra(overrides)]
    try:
        return check_config(plain_config(_compose(given)), trust)
    except COMPOSITION_ERRORS as error:
        raise explain(error, given) from error


def compose_group(group: str, overrides: Sequence[str]) -> dict[str, Any]:
    """One of the groups that are no part of a run, such as ``launcher``, as plain values."""
    return to_plain(typed(overrides)[group])  # type: ignore[no-any-return]


def typed(overrides: Sequence[str], folders: Sequence[str] = ()) -> DictConfig:
    """The composed config as it is before it is checked and made plain: with the types of its settings."""
    register()
    given = [*search_path_overrides(folders), *for_hydra(overrides)]
    try:
        return _compose(given)
    except COMPOSITION_ERRORS as error:
        raise explain(error, given) from error


def _compose(overrides: Sequence[str]) -> DictConfig:
    GlobalHydra.instance().clear()
    with hydra.initialize_config_module(CONFIG_MODULE, version_base="1.3", job_name="rlexp"):
        config = hydra.compose("config", overrides=list(overrides), return_hydra_config=True)
    HydraConfig.instance().set_config(config)  # ${hydra:…} in `name` reads it
    with open_dict(config):
        del config["hydra"]
    return config


def plain_config(config: DictConfig) -> dict[str, Any]:
    """Resolve every interpolation; what a run keeps has plain values only."""
    try:
        plain: dict[str, Any] = to_plain(config)
    except OmegaConfBaseException as error:
        raise ConfigError(complaint(error.full_key or "config", error)) from error
    for group in SWEEP_GROUPS:
        if plain.pop(group, None) is not None:
            raise ConfigError(f"{group}=… is for several runs: add --multirun.")
    return plain


def explain(error: BaseException, overrides: Sequence[str]) -> ConfigError:
    """Say what Hydra meant, for the person who typed ``overrides``."""
    return explain_error(error, overrides, _compose, choices)


def choices(group: str, folders: Sequence[Path] | None = None) -> dict[str, str]:
    """Every choice of a group with its one line: the first comment of its YAML file. Composes and imports nothing.

    ``folders`` are the user's own; without them, the one from the environment.
    """
    return {name: _first_comment(path) for name, path in choice_files(group, folders).items()}


def choice_files(group: str, folders: Sequence[Path] | None = None) -> dict[str, Path]:
    """The file of every choice of a group, by name."""
    found: dict[str, Path] = {}
    for folder in [*_conf_package_folders(), *(config_folders() if folders is None else folders)]:
        for path in sorted((folder / group).glob("*.yaml")):
            if not path.is_dir():
                found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def choice_file(group: str, name: str) -> Path | None:
    """The YAML file behind ``group=name``, or None."""
    if not re.fullmatch(r"[\w-]+", name):
        return None
    places = [folder / group / f"{name}.yaml" for folder in [*_conf_package_folders(), *config_folders()]]
    return next((path for path in places if path.is_file()), None)


def _conf_package_folders() -> list[Path]:
    module = importlib.import_module(CONFIG_MODULE)
    return [Path(folder) for folder in module.__path__]


def _first_comment(path: Path) -> str:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and not line.startswith("# @package"):
            return line.lstrip("# ").strip()
    return ""
