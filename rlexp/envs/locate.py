"""From the names in a config to code: environment ids, wrapper targets, and the packages they would run.

Names are looked up with importlib and nothing else; a wrapper target must be a ``gymnasium.Wrapper``. Free of torch.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import io
import re
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec as Registration
from gymnasium.envs.registration import parse_env_id

from rlexp.errors import EnvError, UnknownEnvError

# Missing module -> the extra of rlexp that brings it.
_EXTRAS = {
    "mujoco": "mujoco",
    "box2d": "box2d",
    "ale_py": "atari",
    "cv2": "atari",
    "gymnasium_robotics": "robotics",
    "pygame": "classic",
}

# Ids that are only known once their package is imported (Gymnasium keeps stubs of the v2 and v3 MuJoCo tasks).
_PLUGINS = (
    (re.compile(r"^ALE/|NoFrameskip-v\d$"), "ale_py"),
    (re.compile(r"^(Fetch|Hand(Reach|Manip)|AdroitHand|PointMaze|AntMaze|FrankaKitchen)"), "gymnasium_robotics"),
    (
        re.compile(
            r"^(Ant|HalfCheetah|Hopper|Walker2d|Swimmer|Reacher|Pusher|(Inverted|InvertedDouble)Pendulum)-v[23]$"
        ),
        "gymnasium_robotics",
    ),
    (re.compile(r"^Humanoid(Standup)?-v[23]$"), "gymnasium_robotics"),
)


def env_code_roots(env_id: str, wrappers: Iterable[Any] = ()) -> set[str]:
    """The top-level packages whose code would run to make this id with these wrappers; nothing is imported.

    An unversioned id counts for all its versions. An id nobody has registered runs no code, so it adds nothing.
    """
    module, name = _split(env_id)
    roots = {module.partition(".")[0]} if module else set()
    if plugin := _plugin(name):
        roots.add(plugin)
    for registration in _same_name(name):
        roots.add(_root_of(registration.entry_point))
        roots.update(_root_of(wrapper.entry_point) for wrapper in registration.additional_wrappers)
    return roots | {wrapper_parts(entry)[0].partition(".")[0] for entry in wrappers}


def find_registration(env_id: str) -> Registration:
    """The registry's entry for an id; imports what the id says registers it."""
    module, name = _split(env_id)
    plugin = _plugin(name)
    if module:
        try:
            importlib.import_module(module)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise EnvError(f"env.id={env_id}: the module {module!r} could not be imported ({problem}).") from error
    elif plugin:
        try:
            # gymnasium-robotics tells whoever imports it of changes in tasks that were not asked for.
            with contextlib.redirect_stderr(io.StringIO()):
                importlib.import_module(plugin)
        except ImportError as error:
            raise EnvError(missing_package(env_id, error)) from error
    known = _same_name(name)
    if not known:
        raise UnknownEnvError(_unknown(env_id, name))
    return max(known, key=lambda registration: registration.version or 0)


def missing_package(env_id: str, error: BaseException) -> str:
    """What to install so that ``env_id`` can be made, given the error that importing it raised."""
    if "mujoco_py" in str(error) or "v2 and v3 based environments" in str(error):
        newest = max(_same_name(re.sub("-v[0-9]+$", "", env_id)), key=lambda registration: registration.version or 0)
        return f"{env_id} is of mujoco_py, which nobody maintains any more: use {newest.id}"
    package = _missing_module(error)
    if package is None:
        return f"{env_id} could not be imported: {error}"
    extra = _EXTRAS.get(package.lower())
    line = f'pip install "rlexp[{extra}]"' if extra else f"pip install {package}"
    return f"{env_id} needs the package {package}, which is not installed: {line}"


def wrapper_parts(entry: Any) -> tuple[str, dict[str, Any]]:
    """The target and the arguments of one entry of ``env.wrappers``."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("_target_"), str):
        raise EnvError(f"env.wrappers holds {entry!r}; each entry is {{_target_: package.Wrapper, argument: value}}.")
    return entry["_target_"], {str(key): value for key, value in entry.items() if key != "_target_"}


def locate_wrapper(target: str) -> type[gym.Wrapper]:
    """The wrapper class that ``package.module.Class`` names."""
    module_name, _, name = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise EnvError(f"The wrapper {target} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, gym.Wrapper)):
        raise EnvError(f"The wrapper {target} is not a subclass of gymnasium.Wrapper.")
    return found


def _split(env_id: str) -> tuple[str, str]:
    """``module:Id`` -> (module, Id); the module is empty where there is none."""
    module, colon, name = env_id.rpartition(":")
    if ":" in module or (colon and not (module and name)):
        raise EnvError(f"env.id={env_id} is neither a Gymnasium id nor of the form module:Id.")
    return module, name


def _plugin(name: str) -> str | None:
    return next((package for pattern, package in _PLUGINS if pattern.search(name)), None)


def _same_name(name: str) -> list[Registration]:
    """The registrations an id may mean: itself, or all versions if it names none."""
    if name in gym.registry:
        return [gym.registry[name]]
    try:
        space, base, version = parse_env_id(name)
    except gym.error.Error:
        return []
    if version is not None:
        return []
    return [known for known in gym.registry.values() if (known.namespace, known.name) == (space, base)]


def _root_of(entry_point: Any) -> str:
    while isinstance(entry_point, functools.partial):
        entry_point = entry_point.func
    if not isinstance(entry_point, str):
        entry_point = getattr(entry_point, "__module__", None) or type(entry_point).__module__
    return entry_point.partition(":")[0].partition(".")[0]


def _missing_module(error: BaseException) -> str | None:
    """The module whose import failed, from the chain of errors, else from what the message mentions."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, ModuleNotFoundError) and link.name:
            return link.name.partition(".")[0]
        link = link.__cause__ or link.__context__
    text = str(error).lower().replace("-", "_")
    order = ("gymnasium_robotics", *_EXTRAS)  # its message mentions mujoco too
    return next((package for package in order if package in text), None)


def _unknown(env_id: str, name: str) -> str:
    newest: dict[str, Registration] = {}  # by the name without its version; older ones may need what nobody maintains
    for known in sorted(gym.registry.values(), key=lambda each: each.version or 0):
        newest[re.sub(r"-v[0-9]+$", "", known.id).lower()] = known
    # Versions left out: they would make names alike that are not. A class in Python need not be like any.
    near = difflib.get_close_matches(re.sub(r"-v[0-9]+$", "", name).lower(), newest, n=3, cutoff=0.75)
    hint = f" Did you mean {' or '.join(newest[each].id for each in near)}?" if near else ""
    return (
        f"Unknown environment id {env_id!r}.{hint} "
        "An id that a package registers on import is written package:Id, e.g. env.id=my_package:MyEnv-v0."
    )
