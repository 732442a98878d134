"""Which code a config may run.

A config the user composed may name any target: the user typed it. A config that was loaded from a run, a checkpoint or
a file may only name rlexp's own components and packages the user has declared as trusted. What counts is the object a
path resolves to, not how the path is spelled. Free of torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from rlexp.config.component import REGISTRY, target_of
from rlexp.errors import ConfigError, EnvError, UntrustedError

PLUGIN_VARIABLE = "RLEXP_PLUGINS"  # comma-separated packages, imported before composing and trusted
PLUGIN_ENTRY_POINT = "rlexp.plugins"
ENV_PACKAGES = frozenset({"gymnasium", "ale_py", "gymnasium_robotics", "rlexp"})  # environments a loaded run may make
WRITING_WRAPPERS = frozenset({"RecordVideo"})  # Gymnasium wrappers that write where their arguments say


@dataclass(frozen=True)
class Trust:
    """The packages whose code may run; ``packages=None`` means whatever the config names."""

    packages: frozenset[str] | None

    def allows(self, package: str) -> bool:
        """Whether code of this top-level package may run."""
        return self.packages is None or package in self.packages

    def require(self, package: str, what: str) -> None:
        """Refuse ``what`` unless its package is trusted."""
        if not self.allows(package):
            advice = f"If you trust it, add trust=[{package}] to the command (in Python: trust=[{package!r}])."
            if not may_be_own(package):
                advice = "Only components of rlexp and of packages that you name with trust=[…] may stand there."
            raise UntrustedError(f"{what} would run code of the package {package!r}, which is not trusted. {advice}")


EVERYTHING = Trust(None)


def may_be_own(package: str) -> bool:
    """Whether a user's components could lie in a package of this name; nobody's do in the standard library."""
    return package.isidentifier() and package not in sys.stdlib_module_names


def own_packages(config: Any) -> list[str]:
    """The packages beside rlexp and Gymnasium that a config names: who opens the run later has to trust them."""
    found: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if isinstance(target := node.get("_target_"), str):
                found.add(target.split(".")[0])
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(config)
    env_id = (config.get("env") or {}).get("id")
    if isinstance(env_id, str) and ":" in env_id:
        found.add(env_id.partition(":")[0].split(".")[0])
    return sorted(package for package in found - ENV_PACKAGES - plugin_packages() if may_be_own(package))


def without_strangers(config: dict[str, Any], trust: Trust) -> dict[str, Any]:
    """The config without callbacks, loggers and evaluator of packages that are not trusted: who acts runs none."""

    def stranger(node: Any) -> bool:
        target = node.get("_target_") if isinstance(node, dict) else None
        package = target.split(".")[0] if isinstance(target, str) else ""
        return may_be_own(package) and not trust.allows(package)

    trainer, loggers = config.get("trainer"), config.get("logger")
    if isinstance(trainer, dict) and isinstance(trainer.get("callbacks"), list):
        kept = [node for node in trainer["callbacks"] if not stranger(node)]
        config = config | {"trainer": trainer | {"callbacks": kept}}
    if stranger(config.get("evaluator")):
        config = config | {"evaluator": None}
    if isinstance(loggers, dict):
        config = config | {"logger": {name: node for name, node in loggers.items() if not stranger(node)}}
    return config


def trusting(packages: Iterable[str] = ()) -> Trust:
    """Trust for a loaded config: rlexp, the installed plugins, and the packages the user names."""
    return Trust(frozenset({"rlexp", *packages, *plugin_packages()}))


def plugin_packages() -> set[str]:
    """Top-level packages of the user's plugins: named in the environment or installed with an entry point."""
    named = {name.strip() for name in os.environ.get(PLUGIN_VARIABLE, "").split(",") if name.strip()}
    installed = {entry.module.split(".")[0] for entry in entry_points(group=PLUGIN_ENTRY_POINT)}
    return {name.split(".")[0] for name in named} | installed


def import_plugins() -> None:
    """Import what the user wants to have registered before composing."""
    named = [name.strip() for name in os.environ.get(PLUGIN_VARIABLE, "").split(",") if name.strip()]
    for name in named:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(f"{PLUGIN_VARIABLE} names {name!r}, which cannot be imported: {error}.") from error
    for entry in entry_points(group=PLUGIN_ENTRY_POINT):
        entry.load()


def locate(target: Any, where: str, trust: Trust) -> type:
    """The class behind ``_target_`` at ``where``, imported only if its package is trusted."""
    if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")):
        raise ConfigError(f"{where}._target_ must be the dotted path of a class, not {target!r}.")
    root, *_ = target.split(".")
    trust.require(root, f"{where}._target_={target}")
    found = _import(target, where, trust)
    if not isinstance(found, type):
        raise ConfigError(f"{where}._target_={target} is not a class.")
    trust.require(
        found.__module__.split(".")[0], f"{where}._target_={target}, which is {found.__module__}.{found.__qualname__},"
    )
    return found


def require_component(cls: type, where: str, group: str | None = None) -> None:
    """Of rlexp's own classes a loaded config may name the components that can stand at ``where``, and no others.

    Those are the ones of ``group``, or of the group that ``where`` begins with.
    """
    if cls.__module__.split(".")[0] != "rlexp":
        return
    from rlexp.callbacks import Callback

    known = REGISTRY.get(group or where.split(".")[0], {}).values()
    if not (issubclass(cls, Callback) if where.startswith("trainer.callbacks[") else cls in known):
        raise UntrustedError(f"{where}._target_={target_of(cls)} is not a component that can stand there (rlexp list).")


def _import(target: str, where: str, trust: Trust) -> Any:
    """Import the longest module prefix of a dotted path, then walk its attributes, never into an untrusted module."""
    parts = target.split(".")
    for length in range(len(parts), 0, -1):
        module_name = ".".join(parts[:length])
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # Only "this very path is not a module" lets us look for an attribute; a missing dependency is an error.
            if error.name is not None and module_name.startswith(error.name):
                continue
            raise ConfigError(
                f"{where}._target_={target} needs the package {error.name!r}, which is not installed."
            ) from error
        except Exception as error:
            reason = str(error) if isinstance(error, ConfigError) else f"{error!r}."  # of a component's definition
            raise ConfigError(f"{where}._target_={target}: importing {module_name} failed: {reason}") from error
        for part in parts[length:]:
            if isinstance(found, ModuleType):
                trust.require(found.__name__.split(".")[0], f"{where}._target_={target}, leading out of {parts[0]},")
            try:
                found = getattr(found, part)
            except AttributeError:
                rest = ".".join(parts[length:])
                raise ConfigError(f"{where}._target_={target}: {module_name} has no {rest!r}.") from None
            except Exception as error:  # a module that imports its parts when they are asked for
                raise ConfigError(f"{where}._target_={target} cannot be imported: {error!r}.") from error
        return found
    raise ConfigError(f"{where}._target_={target} cannot be imported: there is no package {parts[0]!r}.")


def check_env(env: dict[str, Any], trust: Trust) -> None:
    """Refuse an environment id or wrapper of a loaded config whose code is not trusted."""
    if trust.packages is None:
        return
    from rlexp.envs import env_code_roots
    from rlexp.envs.locate import find_registration

    env_trust = Trust(trust.packages | ENV_PACKAGES)
    for index, wrapper in enumerate(env.get("wrappers") or []):
        _check_wrapper(f"env.wrappers[{index}]", wrapper, env_trust)
    if "xml_file" in (env.get("kwargs") or {}):
        raise UntrustedError("env.kwargs.xml_file names a file of its own choice on this machine; remove it.")
    env_id = str(env.get("id"))
    for _ in ("before", "after its module has registered it"):
        for package in sorted(env_code_roots(env_id)):
            if package not in ENV_PACKAGES:
                trust.require(package, f"env.id={env_id}")
        if ":" in env_id:
            with suppress(EnvError):  # told when the environment is made
                find_registration(env_id)


def _check_wrapper(where: str, wrapper: Any, trust: Trust) -> None:
    import gymnasium as gym

    found = locate(wrapper.get("_target_") if isinstance(wrapper, dict) else None, where, trust)
    if not issubclass(found, gym.Wrapper):
        raise UntrustedError(f"{where}._target_={target_of(found)} must be a subclass of gymnasium.Wrapper.")
    if any(base.__name__ in WRITING_WRAPPERS for base in found.__mro__):
        raise UntrustedError(f"{where}: {found.__name__} writes files where the loaded config says; remove it.")
