"""From overrides to a checked, plain config; and what can be composed at all."""

from __future__ import annotations

import importlib
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from rlexp.config.check import GROUPS, check_config, suggest, to_plain
from rlexp.config.trust import EVERYTHING, import_plugins
from rlexp.errors import ConfigError

CONFIG_MODULE = "rlexp.conf"
CONFIG_DIR_VARIABLE = "RLEXP_CONFIG_DIR"  # a folder of the user's own YAML, added to the search path
CHOICE_GROUPS = (*GROUPS, "logger", "zoo")  # in the order `rlexp list` shows them
COMPONENT_PACKAGES = ("algos", "buffers", "datasets", "envs", "loggers", "models", "trainers")


def register() -> None:
    """Make every component known to Hydra: rlexp's own, then the user's plugins."""
    for package in COMPONENT_PACKAGES:
        importlib.import_module(f"rlexp.{package}")
    import_plugins()
    if not OmegaConf.has_resolver("rlexp.token"):
        OmegaConf.register_new_resolver("rlexp.token", lambda: secrets.token_hex(2), use_cache=True)


def search_path_overrides() -> list[str]:
    """The user's config folder from the environment, as an override."""
    folder = os.environ.get(CONFIG_DIR_VARIABLE)
    return [f"hydra.searchpath=[file://{Path(folder).resolve()}]"] if folder else []


def compose(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Compose and check a config in Python, without a Hydra job around it."""
    register()
    given = [*search_path_overrides(), *overrides]
    try:
        return check_config(plain_config(_compose(given)), EVERYTHING)
    except (HydraException, OmegaConfBaseException, AssertionError) as error:
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
        return to_plain(config)
    except OmegaConfBaseException as error:
        key = error.full_key or "config"
        raise ConfigError(f"{key}: {str(error).splitlines()[0]}.") from error


def explain(error: BaseException, overrides: Sequence[str]) -> ConfigError:
    """Say what Hydra meant, with the nearest name instead of its advice to append an unknown key."""
    text = str(error)
    if isinstance(error, MissingConfigException) and (found := re.search(r"Could not (?:find|load) '([^']+)'", text)):
        group, _, name = found[1].rpartition("/")
        options = re.findall(r"^\t(\S+)$", text.split("Config search path")[0], flags=re.MULTILINE)
        if not options and (near := re.search(r"Available options in '[^']*':(.*)", text, flags=re.DOTALL)):
            options = near[1].split("Config search path")[0].split()
        return ConfigError(f"{group}={name}: there is no such {group or 'config'}.{suggest(name, options)}")
    if found := re.search(r"Could not override '([^']+)'", text):
        return _explain_unknown_key(found[1].split("@")[0], overrides)
    if isinstance(error, OverrideParseException):
        return ConfigError(
            f"{error.override!r} cannot be read as an override: {text.splitlines()[0]}. "
            "Write key=value, and quote lists and dicts for the shell."
        )
    if isinstance(error, AssertionError) and "Unexpected type for root" in text:
        key = next((o.split("=")[0] for o in overrides if ".schedules." in o), "algo.schedules.NAME.end")
        whole = f"{key.rsplit('.', 1)[0]}={{shape:linear,end:0}}"
        return ConfigError(f"{key}: give the whole schedule at once, e.g. '{whole}'.")
    if found := re.search(r"Error merging override (\S+)", text):
        cause = str(error.__cause__ or "").splitlines()
        return ConfigError(f"{found[1]}: {cause[0] if cause else text}.")
    if isinstance(error, ConfigCompositionException) and error.__cause__ is not None:
        cause_text = str(error.__cause__).splitlines()
        return ConfigError(f"{text.splitlines()[0]} {cause_text[0] if cause_text else ''}".strip())
    if found := re.search(r"Key '([^']+)' not in '([^']+)'", text):
        key = getattr(error, "full_key", None) or found[1]
        return ConfigError(
            f"{key}: {found[2].removesuffix('Config')} has no such setting. A preset (zoo=…) or config file sets it "
            f"for another choice of {key.split('.')[0]}; drop one of the two, or set that choice's own fields."
        )
    return ConfigError(" ".join(line.strip() for line in text.splitlines()[:3]))


def _explain_unknown_key(key: str, overrides: Sequence[str]) -> ConfigError:
    """Compose without the offending override and look what stands where it pointed."""
    rest = [o for o in overrides if o.lstrip("+~").split("=")[0].split("@")[0] != key]
    parent, _, leaf = key.rpartition(".")
    try:
        base = _compose(rest)
        node = OmegaConf.select(base, parent) if parent else base
    except Exception:
        return ConfigError(f"{key}: no such setting.")
    if parent.split(".")[-1] == "kwargs":
        return ConfigError(f"{key} is a new keyword argument; add it with a plus: +{key}=…")
    if node is None or not isinstance(node, DictConfig):
        up = parent.split(".")[0]
        return ConfigError(f"{key}: no such setting.{suggest(up, [str(k) for k in base])}")
    known = [str(k) for k in node if not str(k).startswith("_")]
    if not parent:
        known = [*known, "zoo"]
        return ConfigError(f"{key}: no such setting or group.{suggest(leaf, known)}")
    owner = str(node.get("_target_", parent)).split(".")[-1]
    return ConfigError(f"{key}: {owner} has no such setting.{suggest(leaf, known)}")


def choices(group: str) -> dict[str, str]:
    """Every choice of a group with its one line: the first comment of its YAML file. Composes and imports nothing."""
    folders = _conf_package_folders()
    if user := os.environ.get(CONFIG_DIR_VARIABLE):
        folders.append(Path(user))
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted((folder / group).glob("*.yaml")):
            found.setdefault(path.stem, _first_comment(path))
    return dict(sorted(found.items()))


def _conf_package_folders() -> list[Path]:
    module = importlib.import_module(CONFIG_MODULE)
    return [Path(folder) for folder in module.__path__]


def _first_comment(path: Path) -> str:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and not line.startswith("# @package"):
            return line.lstrip("# ").strip()
    return ""
