"""A dataclass that Hydra can instantiate is its own schema.

``@component(group)`` derives from a dataclass the structured config that YAML files start from
(``schema/<group>/<name>`` in Hydra's ConfigStore) and checks field ranges whenever the class is constructed.
The same derivation serves a user's own target that carries no decorator. Free of torch.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, make_dataclass
from enum import Enum
from typing import Annotated, Any, Optional, TypeVar, Union, get_args, get_origin

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING as CONFIG_MISSING

from rlexp.config.fields import Part, Range, Static
from rlexp.errors import ConfigError
from rlexp.schedules import Schedule

T = TypeVar("T", bound=type)

REGISTRY: dict[str, dict[str, type]] = {}  # group -> name -> class
_PRIMITIVES = (int, float, bool, str)
WHOLE = (int, Optional[int], list[int], Optional[list[int]])  # types of settings that take no fractions


def component(group: str, name: str | None = None) -> Callable[[T], T]:
    """Register a dataclass as a choice of ``group`` and check its fields' ranges on construction."""

    def register(cls: T) -> T:
        key = name or snake_case(cls.__name__)
        node = schema_of(cls)  # first: a class that is refused is no choice
        REGISTRY.setdefault(group, {})[key] = cls
        _check_on_construction(cls)
        ConfigStore.instance().store(
            group=f"schema/{group}",
            name=key,
            node=node,
            package=f"_global_.{_package(group, key)}",
            provider="rlexp",
        )
        return cls

    return register


def target_of(cls: type) -> str:
    """The importable path of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def snake_case(name: str) -> str:
    """``DiscreteSAC`` -> ``discrete_sac``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _check_on_construction(cls: type) -> None:
    construct = cls.__init__  # type: ignore[misc]

    @functools.wraps(construct)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        if type(self) is cls:
            for name, problem in range_problems(cls, vars(self)):
                raise ConfigError(f"{cls.__name__}.{name} {problem}, not {getattr(self, name)!r}.")

    cls.__init__ = checked  # type: ignore[misc]


def range_problems(cls: type, values: dict[str, Any], *, closed: bool = False) -> list[tuple[str, str]]:
    """The fields of ``cls`` whose value in ``values`` lies outside its range (``closed``: with its open end)."""
    problems = []
    for name, annotation in _init_annotations(cls).items():
        for note in _notes(annotation):
            if isinstance(note, Range) and (problem := note.problem(values.get(name), closed=closed)):
                problems.append((name, problem))
    return problems


@functools.cache
def schema_of(cls: type) -> type:
    """The structured config of a target: ``_target_`` and every constructor argument, typed where it can be."""
    _refuse_shadowing(cls)
    specs: list[Any] = [("_target_", str, field(default=target_of(cls)))]
    for name, annotation, default in _arguments(cls):
        if name == "schedules":
            schedules = _schedules_schema(cls)
            specs.append((name, schedules, field(default_factory=schedules)))
            continue
        kind = _config_type(annotation)
        specs.append((name, kind, default))
    namespace = {"__module__": cls.__module__, "describes_": cls}
    return make_dataclass(f"{cls.__name__}Config", specs, namespace=namespace)


def schema_type(cls: type, name: str) -> Any:
    """The type that the setting ``name`` of a target is checked with; None if there is no such setting."""
    annotations = _init_annotations(cls)
    return _config_type(annotations[name]) if name in annotations else None


def _refuse_shadowing(cls: type) -> None:
    """A setting named like a method or attribute of a base class would take its place there."""
    if not dataclasses.is_dataclass(cls):
        return
    for setting in dataclasses.fields(cls):
        for base in cls.__mro__[1:-1] if setting.init else ():
            if _holds(base, setting.name):
                raise ConfigError(
                    f"{cls.__qualname__}.{setting.name}: {base.__qualname__} uses this name itself, so it cannot be a "
                    "setting. Give the field another name."
                )


def _holds(base: type, name: str) -> bool:
    """Whether a class has a method or an attribute of its own by this name, one that is not a setting."""
    if name in vars(base).get("reserved", ()):
        return True
    declared = [each for cls in base.__mro__ if dataclasses.is_dataclass(cls) for each in dataclasses.fields(cls)]
    if any(each.name == name for each in declared):
        return not any(each.init for each in declared if each.name == name)  # for the framework's own use
    return name in vars(base) or name in vars(base).get("__annotations__", {})


def schedulable(cls: type) -> dict[str, type]:
    """The numeric fields of a component that may follow a schedule, with their type (int or float)."""
    fields = {}
    for name, annotation in _init_annotations(cls).items():
        kind = _config_type(annotation)
        if kind in (int, float) and not any(isinstance(note, Static) for note in _notes(annotation)):
            fields[name] = kind
    return fields


@functools.cache
def parts_of(cls: type) -> Mapping[str, str]:
    """The fields of a component that choose a part of it, with the group that it is chosen from.

    One that a subclass declares again with another type still does: what its base builds has to be checked.
    """
    own = _init_annotations(cls)
    bases = [_init_annotations(base) for base in reversed(cls.__mro__[1:-1]) if "__init__" in vars(base)]
    noted = [(name, note) for hints in (*bases, own) for name, hint in hints.items() for note in _notes(hint)]
    return {name: note.group for name, note in noted if isinstance(note, Part) and name in own}


def _schedules_schema(cls: type) -> type:
    # An entry that is null could be replaced by a file, but not by an override: OmegaConf cannot merge into null.
    specs = [(name, Optional[Schedule], field(default_factory=Schedule)) for name in schedulable(cls)]
    return make_dataclass(f"{cls.__name__}Schedules", specs, namespace={"__module__": cls.__module__})


@functools.cache  # evaluating annotations, those of all bases, is what checking a config would spend its time on
def _init_annotations(cls: type) -> Mapping[str, Any]:
    if dataclasses.is_dataclass(cls):
        hints = typing.get_type_hints(cls, include_extras=True)
        return {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init}
    hints = typing.get_type_hints(cls.__init__, include_extras=True) if inspect.isclass(cls) else {}  # type: ignore[misc]
    parameters = inspect.signature(cls).parameters.values()
    return {p.name: hints.get(p.name, Any) for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def _arguments(cls: type) -> list[tuple[str, Any, Any]]:
    """(name, annotation, dataclass field holding the default) for every constructor argument."""
    annotations = _init_annotations(cls)
    if dataclasses.is_dataclass(cls):
        given = {f.name: (f.default, f.default_factory) for f in dataclasses.fields(cls)}
    else:
        empty = inspect.Parameter.empty
        signature = inspect.signature(cls).parameters
        given = {n: (MISSING if signature[n].default is empty else signature[n].default, MISSING) for n in annotations}
    arguments = []
    for name, annotation in annotations.items():
        default, factory = given[name]
        if factory is not MISSING:
            value = field(default_factory=factory)
        elif default is MISSING:
            value = field(default=CONFIG_MISSING)
        elif isinstance(default, tuple):
            value = field(default_factory=functools.partial(list, default))
        else:
            value = field(default=default)
        arguments.append((name, annotation, value))
    return arguments


def accepts_any_keyword(cls: type) -> bool:
    """Whether a target takes ``**kwargs``, so that unknown keys cannot be called mistakes."""
    if dataclasses.is_dataclass(cls):
        return False
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls).parameters.values())


def _notes(annotation: Any) -> tuple[Any, ...]:
    """The Annotated metadata of a type, looking through Optional."""
    if get_origin(annotation) is Annotated:
        return tuple(get_args(annotation)[1:])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(note for arm in get_args(annotation) for note in _notes(arm))
    return ()


def _config_type(annotation: Any) -> Any:
    """The type OmegaConf checks a field with; Any where it knows none that fits."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _config_type(args[0])
    if origin in (Union, types.UnionType):
        arms = [_config_type(arm) for arm in args if arm is not type(None)]
        optional = len(arms) < len(args)
        if any(arm is Any for arm in arms):
            return Any
        if len(arms) > 1 and any(arm not in _PRIMITIVES for arm in arms):
            return Any
        kind = arms[0] if len(arms) == 1 else Union[tuple(arms)]
        return Optional[kind] if optional else kind
    if origin in (list, tuple) and args:
        return list[_config_type(args[0])]  # type: ignore[misc]
    if origin is dict and args:
        return dict[str, _config_type(args[1])]  # type: ignore[misc]
    if annotation in _PRIMITIVES or (inspect.isclass(annotation) and issubclass(annotation, Enum)):
        return annotation
    if inspect.isclass(annotation) and dataclasses.is_dataclass(annotation):
        return annotation
    return Any


def _package(group: str, name: str) -> str:
    """Where a choice lands in the config: several loggers stand side by side, every other group is one node."""
    return f"{group}.{name}" if group == "logger" else group


def registered_name(group: str, cls: type) -> str:
    """The name a class is chosen by, or one made from the class name for a user's own."""
    for name, known in REGISTRY.get(group, {}).items():
        if known is cls:
            return name
    return snake_case(cls.__name__)
