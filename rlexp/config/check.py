"""Checking a composed config against the schemas of its targets, and instantiating it: the one place that does.

Composing already refuses a mistyped key, but ``+key=`` slips past it and a user's own target has no registered schema.
So every node is merged strictly into the schema derived from what its ``_target_`` really is. Free of torch.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, get_type_hints

from hydra.core.config_store import ConfigStore
from hydra.utils import instantiate
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlexp.config.component import REGISTRY, WHOLE, accepts_any_keyword, parts_of, range_problems, schema_of, target_of
from rlexp.config.messages import complaint, suggest_below
from rlexp.config.messages import suggest as suggest
from rlexp.config.overrides import whole
from rlexp.config.trust import EVERYTHING, Trust, check_env, locate, require_component
from rlexp.errors import ConfigError, UntrustedError
from rlexp.schedules import Schedule

GROUPS = ("algo", "model", "buffer", "env", "dataset", "trainer", "evaluator")  # each one node of the config
OPTIONAL_GROUPS = ("dataset", "evaluator")  # without an evaluator, which older runs do not name: the environment
HYDRA_KEYS = {"_args_", "_partial_", "_recursive_", "_convert_"}  # would change what instantiate() does with a node


@dataclass
class Root:
    """The top level of every run's config."""

    name: str = "run"  # folder of the run below outputs/; config.yaml makes it of algorithm, environment, seed and time
    seed: int = 0  # every random stream of the run is derived from it
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    compile: Any = "auto"  # compile updates: auto (when enough are planned to pay), true, false
    threads: Any = "auto"  # torch threads: auto or a number
    precision: str = "float32"  # of the large matrix products in updates: float32 or bfloat16
    progress: str = "auto"  # what the terminal shows: auto, rich, plain, none
    init_from: str | None = None  # run or checkpoint whose agent the run starts with; null: an untrained one
    algo: Any = None
    model: Any = None
    buffer: Any = None
    env: Any = None
    dataset: Any = None
    trainer: Any = None
    evaluator: Any = None
    logger: dict[str, Any] = field(default_factory=dict)  # several may stand side by side


@dataclass
class Composed(Root):
    """What is composed: a run, and how several of them are made, which no run keeps."""

    sweep: Any = None
    launcher: Any = None


ConfigStore.instance().store(group="schema", name="root", node=Composed, package="_global_", provider="rlexp")


def check_config(config: dict[str, Any], trust: Trust = EVERYTHING) -> dict[str, Any]:
    """The config with every node strictly typed; ConfigError or UntrustedError otherwise."""
    return check_nodes(config, trust)[0]


def check_nodes(config: dict[str, Any], trust: Trust) -> tuple[dict[str, Any], dict[str, DictConfig]]:
    """What :func:`check_config` gives, and the nodes by where they stand, for :func:`construct`."""
    root_keys = [f.name for f in fields(Root)]
    for key in config:
        if key not in root_keys:
            raise ConfigError(f"{key}: no such setting.{suggest_below(str(key), config, root_keys)}")
    if trust.packages is not None:
        refuse_interpolations(config)
    top = _merge("", Root, {key: value for key, value in config.items() if key not in (*GROUPS, "logger")})
    _check_root(top)
    checked: dict[str, Any] = {key: top[key] for key in root_keys if key not in (*GROUPS, "logger")}
    nodes: dict[str, DictConfig] = {}
    for group in GROUPS:
        node = config.get(group)
        if node is None and group in OPTIONAL_GROUPS:
            checked[group] = None
        else:
            nodes[group] = check_node(group, node, trust)
            checked[group] = to_plain(nodes[group])
    check_env(checked["env"], trust)
    for index, callback in enumerate(checked["trainer"].get("callbacks") or []):
        nodes[f"trainer.callbacks[{index}]"] = check_node(f"trainer.callbacks[{index}]", callback, trust)
    loggers = config.get("logger") or {}
    if not isinstance(loggers, dict):
        raise ConfigError(f"logger must be settings by name, not {loggers!r}: choose with logger=[…] (rlexp list).")
    checked["logger"] = {}
    for name, logger in loggers.items():
        nodes[f"logger.{name}"] = check_node(f"logger.{name}", logger, trust)
        checked["logger"][name] = to_plain(nodes[f"logger.{name}"])
    return checked, nodes


def _example(node: Any, group: str | None) -> str:
    """How a part of a component is written; one that has the settings given, if there is."""
    given = set(node) if isinstance(node, dict) else set()
    for cls in REGISTRY.get(group or "", {}).values():
        if given and given <= {each.name for each in fields(cls)}:
            return f"{{_target_: {target_of(cls)}, {', '.join(f'{name}: {node[name]}' for name in node)}}}"
    return "{_target_: package.Class, …}"


def check_node(where: str, node: Any, trust: Trust, group: str | None = None) -> DictConfig:
    """One component's settings, merged into the schema of its target; ``group`` is that of a part of a component."""
    if not isinstance(node, dict) or "_target_" not in node:
        how = f"choose one with {where}=…" if where in GROUPS else f"write {_example(node, group)}"
        raise ConfigError(f"{where} must be a component, not {node!r}: {how} (see: rlexp list).")
    cls = locate(node["_target_"], where, trust)
    if trust.packages is not None:
        require_component(cls, where, group)
    try:
        schema = schema_of(cls)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"{where}: the arguments of {cls.__qualname__} cannot be read: {error}.") from error
    known = [f.name for f in fields(schema)]
    settings = {key: value for key, value in node.items() if key not in known}
    reserved = HYDRA_KEYS.intersection(settings)
    if settings and (reserved or not accepts_any_keyword(cls)):
        key = next(iter(reserved or settings))
        names = [name for name in known if not name.startswith("_")]
        raise ConfigError(f"{where}.{key}: {cls.__name__} has no such setting.{suggest(str(key), names)}")
    merged = _merge(where, schema, {key: value for key, value in node.items() if key in known and key != "_target_"})
    plain = to_plain(merged)
    for name, problem in range_problems(cls, plain):
        raise ConfigError(f"{where}.{name} {problem}, not {merged[name]!r}.")
    _check_schedules(where, cls, merged)
    if MISSING in str(plain) and (missing := sorted(OmegaConf.missing_keys(merged))):
        raise ConfigError(f"{where}.{missing[0]} must be given: {where}.{missing[0]}=…")
    merged["_target_"] = node["_target_"]
    for name, kind in parts_of(cls).items():
        merged[name] = _checked_part(f"{where}.{name}", kind, to_plain(merged)[name], trust)
    if not settings:
        return merged
    return OmegaConf.create(to_plain(OmegaConf.merge(OmegaConf.create(to_plain(merged)), settings)))  # type: ignore[no-any-return]


def _checked_part(where: str, group: str, part: Any, trust: Trust) -> Any:
    """The name of a registered part, or the settings of one with all their defaults."""
    if isinstance(part, dict):
        return to_plain(check_node(where, part, trust, group))
    names = sorted(REGISTRY[group])
    if part not in names:
        hint = suggest(str(part), names, "One of your own is written {_target_: package.Class, …}.")
        raise ConfigError(f"{where} must be one of {', '.join(names)}, not {part}.{hint}")
    return part


def build(where: str, node: dict[str, Any], trust: Trust = EVERYTHING) -> Any:
    """Check a component's settings and instantiate it."""
    return construct(where, check_node(where, node, trust))


def build_part(where: str, group: str, part: Any) -> Any:
    """What a component's own setting chooses of ``group``: by its name, or with settings; for their owner."""
    checked = _checked_part(where, group, part, EVERYTHING)
    return build(where, checked if isinstance(checked, dict) else {"_target_": target_of(REGISTRY[group][checked])})


def construct(where: str, node: DictConfig) -> Any:
    """Instantiate a checked node. Nested targets (wrappers, callbacks) stay plain: their owner builds them."""
    try:
        return instantiate(node, _convert_="all", _recursive_=False)
    except Exception as error:
        cause = error.__cause__ or error
        if isinstance(cause, ConfigError):
            raise ConfigError(str(cause) if str(cause).startswith(where) else f"{where}: {cause}") from error
        raise ConfigError(f"{where}: {node['_target_']} cannot be constructed: {cause}.") from error


def to_plain(node: Any) -> Any:
    """A config node as plain Python values, enumerations by name."""
    return OmegaConf.to_container(node, resolve=True, enum_to_str=True)


def refuse_interpolations(value: Any, where: str = "config") -> None:
    """A loaded config holds values only: an interpolation could read the environment of whoever opens it."""
    if isinstance(value, str) and "${" in value:
        raise UntrustedError(f"{where} holds the interpolation {value!r}; a saved run has plain values only.")
    for key, child in _children(value):
        refuse_interpolations(child, f"{where}.{key}")
        refuse_interpolations(key, f"{where} (a key)")


def _children(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)


@functools.cache
def _defaults(schema: type) -> DictConfig:
    """A schema's node, settled but for interpolations; slow to make, and merging copies it."""
    node: DictConfig = OmegaConf.structured(schema)
    if not _interpolated(schema):
        _settle(node, list(node))
    return node


@functools.cache
def _interpolated(schema: type) -> bool:
    """Whether a default refers to something that may be another one each time."""
    return "${" in str(OmegaConf.to_container(OmegaConf.structured(schema)))


@functools.cache
def _plain_defaults(schema: type) -> dict[str, Any]:
    return OmegaConf.to_container(_defaults(schema), enum_to_str=True)  # type: ignore[return-value]


@functools.cache
def _whole_settings(schema: type) -> frozenset[str]:
    """The settings that take no fractions."""
    return frozenset(name for name, kind in get_type_hints(schema).items() if kind in WHOLE)


def _merge(where: str, schema: type, values: dict[str, Any]) -> DictConfig:
    numbers = _whole_settings(schema)
    values = {name: whole(value) if name in numbers else value for name, value in values.items()}
    try:
        changes = _changes(schema, values)
        defaults = _defaults(schema)
        # Merging nothing takes twice as long as copying.
        merged: Any = OmegaConf.merge(defaults, changes) if changes else copy.deepcopy(defaults)
        _settle(merged, list(merged) if _interpolated(schema) else list(changes))
    except OmegaConfBaseException as error:
        key = error.full_key or _culprit(schema, values)
        raise ConfigError(complaint(f"{where}.{key}".strip("."), error)) from error
    return merged


def _changes(schema: type, values: dict[str, Any]) -> dict[str, Any]:
    """The values that are not the default: merging is slow, and most of a composed node is its schema."""
    defaults = _plain_defaults(schema)
    return {name: value for name, value in values.items() if name not in defaults or not _same(value, defaults[name])}


def _same(value: Any, other: Any) -> bool:
    """Whether plain values are equal and of the same types: 1 is neither True nor 1.0."""
    if type(value) is not type(other):
        return False
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(_same(child, other[key]) for key, child in value.items())
    if isinstance(value, list):
        return len(value) == len(other) and all(map(_same, value, other))
    return bool(value == other)


def _settle(node: DictConfig, names: list[Any]) -> None:
    """Make of settings what they would be after saving and loading: a component gets what the run keeps.

    Interpolations become values, once, as a resolver may give another one each time. An enumeration becomes its name
    where no type makes it one again.
    """
    if not (open_ones := [name for name in names if not _is_settled(node, name)]):
        return
    OmegaConf.resolve(node)
    plain = to_plain(node)
    for name in open_ones:
        if is_dataclass(OmegaConf.get_type(node, name)):
            _settle(node[name], list(node[name]))
        else:
            node[name] = plain[name]


def _is_settled(node: DictConfig, name: Any) -> bool:
    if OmegaConf.is_interpolation(node, name):
        return False
    value = None if OmegaConf.is_missing(node, name) else node[name]
    return _is_plain(OmegaConf.to_container(value) if OmegaConf.is_config(value) else value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, Enum) or (isinstance(value, str) and "${" in value):
        return False
    return all(_is_plain(key) and _is_plain(child) for key, child in _children(value))


def _culprit(schema: type, values: dict[str, Any], within: tuple[str, ...] = ()) -> str:
    """The path of the value that cannot be merged, where the error does not say: try one at a time."""
    for name, value in values.items():
        alone: Any = {name: value}
        for parent in reversed(within):
            alone = {parent: alone}
        try:
            OmegaConf.merge(_defaults(schema), alone)
        except OmegaConfBaseException:
            below = _culprit(schema, value, (*within, name)) if isinstance(value, dict) else ""
            return f"{name}.{below}".strip(".")
    return ""


def _check_schedules(where: str, cls: type, node: DictConfig) -> None:
    """Refuse schedules that cannot be followed; one that was left alone becomes null."""
    for name, entry in (node.get("schedules") or {}).items():
        if entry is None:
            continue
        schedule = OmegaConf.to_object(entry)
        if schedule == Schedule():
            node.schedules[name] = None
        elif isinstance(schedule, Schedule):
            if problem := schedule.problem(node[name]):
                raise ConfigError(f"{where}.schedules.{name} {problem}.")
            for point in ("start", "end"):  # a range's open end may be approached
                for _, problem in range_problems(cls, {name: getattr(schedule, point)}, closed=True):
                    raise ConfigError(f"{where}.schedules.{name}.{point} {problem}, as {where}.{name} itself.")


def _check_root(top: DictConfig) -> None:
    if not isinstance(top.compile, bool) and top.compile != "auto":
        raise ConfigError(f"compile must be auto, true or false, not {top.compile!r}.")
    whole = isinstance(top.threads, int) and not isinstance(top.threads, bool)
    if not (whole and top.threads >= 1) and top.threads != "auto":
        raise ConfigError(f"threads must be auto or a whole number from 1, not {top.threads!r}.")
    if top.precision not in ("float32", "bfloat16"):
        raise ConfigError(f"precision must be float32 or bfloat16, not {top.precision!r}.")
    if top.progress not in ("auto", "rich", "plain", "none"):
        raise ConfigError(f"progress must be auto, rich, plain or none, not {top.progress!r}.")
    check_name(top.name)
    if top.seed < 0:
        raise ConfigError(f"seed must be at least 0, not {top.seed}.")


def check_name(name: str) -> None:
    """Refuse a name that would lead out of outputs/."""
    if not name or "/" in name or name in (".", ".."):
        raise ConfigError(
            f"name is the run's folder below outputs/ and must not hold a slash, not {name!r}. "
            "To write elsewhere, set hydra.run.dir=…"
        )
