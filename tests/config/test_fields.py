"""Every field of every component can be set, and nothing but what it may hold."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import typing
from enum import Enum
from typing import Any, get_args

import pytest

from rlexp.config.check import build, check_config, check_node, to_plain
from rlexp.config.component import REGISTRY, parts_of, range_problems, schedulable, schema_of, target_of
from rlexp.config.compose import SWEEP_GROUPS, compose, compose_group, register
from rlexp.config.fields import Count, Fraction, Natural, NonNegative, Positive, Range, Share, Size
from rlexp.config.overrides import apply_overrides
from rlexp.config.trust import EVERYTHING
from rlexp.errors import ConfigError
from tests.algos.common import some_of

register()

# Every registered class with overrides that compose it.
COMPONENTS = [(group, name) for group, known in sorted(REGISTRY.items()) for name in sorted(known)]
CHOSEN_BY: dict[tuple[str, str], list[str]] = {
    ("model", "network"): ["model=auto"],
    ("env", "gym"): ["env=gym", "env.id=Acrobot-v1"],
}
CHOSEN_BY |= {
    ("exploration", name): ["algo=ddpg", f"algo.exploration._target_={target_of(cls)}"]
    for name, cls in REGISTRY["exploration"].items()
}
NEEDED = {("dataset", name): ["dataset.path=x"] for name in ("npz", "hdf5", "run")}
NEEDED["dataset", "minari"] = ["dataset.id=x-v0"]
FIELDS = [
    (group, name, field.name)
    for group, name in COMPONENTS
    for field in dataclasses.fields(schema_of(REGISTRY[group][name]))
    if field.name not in ("_target_", "schedules")
]


def overrides_for(group: str, name: str) -> list[str]:
    return CHOSEN_BY.get((group, name)) or [f"{group}={name}", *NEEDED.get((group, name), [])]


def node_of(config: dict[str, Any], group: str, name: str) -> dict[str, Any]:
    for key in path_of(group, name).split("."):
        config = config[key]
    return config


def path_of(group: str, name: str) -> str:
    return {"logger": f"logger.{name}", "exploration": "algo.exploration"}.get(group, group)


@functools.cache
def composed(group: str, name: str, given: tuple[str, ...] = ()) -> dict[str, Any]:
    overrides = [*overrides_for(group, name), *given]
    return {group: compose_group(group, overrides)} if group in SWEEP_GROUPS else compose(overrides)


def changed(group: str, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The component's settings after some were replaced, as loading a config with them would give."""
    node = node_of(composed(group, name), group, name)
    return to_plain(check_node(path_of(group, name), copy.deepcopy(node) | settings, EVERYTHING))


def annotation_of(cls: type, field: str) -> Any:
    return typing.get_type_hints(cls, include_extras=True)[field]


def arms(annotation: Any) -> list[Any]:
    """The types a field may have, null and ranges left out."""
    if hasattr(annotation, "__metadata__"):
        return arms(get_args(annotation)[0])
    if get_args(annotation) and type(None) in get_args(annotation):
        return [each for arm in get_args(annotation) if arm is not type(None) for each in arms(arm)]
    return [annotation]


def another(cls: type, field: str, default: Any) -> Any:
    """A value that is allowed and not the default."""
    if group := parts_of(cls).get(field):
        return next(name for name in REGISTRY[group] if name != default)
    kind = arms(annotation_of(cls, field))[0]
    if kind is bool:
        return not default
    if kind in (int, float):
        candidates = [2, 0.5, 0.25] if kind is float else [2, 7]
        return next(kind(each) for each in candidates if each != default and not range_problems(cls, {field: each}))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(each.name for each in kind if each.name != default)
    if kind is str:
        return "other"
    if getattr(kind, "__origin__", None) is dict:
        return {"key": "1" if get_args(kind)[1] is str else 1}
    if get_args(kind) and get_args(kind)[0] is int:
        return [3, 5]
    return []


FAMILIES = {
    param.values[0] for param in some_of([name for group, name in COMPONENTS if group == "algo"]) if not param.marks
}


@pytest.mark.parametrize(
    ("group", "name"),
    [
        pytest.param(g, n, id=f"{g}.{n}", marks=pytest.mark.learning if g == "algo" and n not in FAMILIES else ())
        for g, n in COMPONENTS
    ],
)
def test_every_field_can_be_overridden(group: str, name: str) -> None:
    cls = REGISTRY[group][name]
    before = node_of(composed(group, name), group, name)
    wanted = {f: another(cls, f, before[f]) for g, n, f in FIELDS if (g, n) == (group, name)}
    given = [
        f"{'+' if isinstance(value, dict) else ''}{path_of(group, name)}.{field}={str(value).replace(chr(39), '')}"
        for field, value in wanted.items()
    ]
    after = node_of(composed(group, name, tuple(given)), group, name)
    assert {field: after[field] for field in wanted} == wanted


def declared_once(cases: list[Any]) -> list[Any]:
    """The cases (group, name, field, …) but those whose field is inherited as it is from a class before."""
    first: dict[Any, Any] = {}
    for case in cases:
        group, name, field, *rest = case
        classes = REGISTRY[group][name].__mro__
        owner = next((cls for cls in classes if field in vars(cls).get("__annotations__", ())), classes[0])
        first.setdefault((owner, field, *rest), case)
    return list(first.values())


DECLARED = declared_once(FIELDS)


@pytest.mark.parametrize(("group", "name", "field"), DECLARED, ids=[".".join(each) for each in DECLARED])
def test_a_value_of_the_wrong_type_is_refused_by_the_name_of_its_field(group: str, name: str, field: str) -> None:
    kind = arms(annotation_of(REGISTRY[group][name], field))[0]
    if kind is str:
        wrong: Any = {"a": 1}
    elif isinstance(kind, type):
        wrong = "neither"  # no number, no flag, no choice
    else:
        wrong = 3  # neither a list nor settings
    with pytest.raises(ConfigError) as caught:
        changed(group, name, {field: wrong})
    assert str(caught.value).startswith(f"{path_of(group, name)}.{field} must be ")
    if isinstance(kind, type) and issubclass(kind, Enum):
        assert all(choice.name in str(caught.value) for choice in kind)


RANGED = [
    (group, name, field, note)
    for group, name, field in FIELDS
    for arm in (annotation_of(REGISTRY[group][name], field),)
    for part in (arm, *get_args(arm))
    for note in getattr(part, "__metadata__", ())
    if isinstance(note, Range)
]


def test_the_ranges_of_the_framework_are_all_in_use() -> None:
    """So that the test below covers each of them."""
    used = {note for *_, note in RANGED}
    assert used >= {get_args(kind)[1] for kind in (Positive, NonNegative, Fraction, Share, Count, Natural, Size)}


LIMITED = declared_once(RANGED)


@pytest.mark.parametrize(("group", "name", "field", "limits"), LIMITED, ids=[".".join(each[:3]) for each in LIMITED])
def test_a_value_outside_its_range_is_refused_and_the_bounds_are_kept(
    group: str, name: str, field: str, limits: Range
) -> None:
    cls = REGISTRY[group][name]
    whole = arms(annotation_of(cls, field))[0] is int
    step = 1 if whole else 0.25
    outside = [limits.low if limits.open_low else limits.low - step]
    inside = [limits.low + step] if limits.open_low else [limits.low]
    if math.isfinite(limits.high):
        outside.append(limits.high + step)
        inside.append(limits.high)
    for value in outside:
        with pytest.raises(ConfigError, match=rf"^{path_of(group, name)}\.{field} must be (at|greater)"):
            changed(group, name, {field: int(value) if whole else value})
    for value in inside:
        assert changed(group, name, {field: int(value) if whole else value})[field] == value
    if not whole:
        with pytest.raises(ConfigError, match=rf"^{path_of(group, name)}\.{field} must be a number, not nan"):
            changed(group, name, {field: math.nan})


@pytest.mark.parametrize(("group", "name"), COMPONENTS, ids=[".".join(each) for each in COMPONENTS])
def test_an_unknown_field_is_refused_with_the_nearest_one(group: str, name: str) -> None:
    known = [field for g, n, field in FIELDS if (g, n) == (group, name)]
    if not known:  # the rollout buffer has no settings
        with pytest.raises(ConfigError, match="has no such setting"):
            changed(group, name, {"anything": 1})
        return
    for field in known:
        typo = field[0] + field + field[-1]
        with pytest.raises(ConfigError) as caught:
            changed(group, name, {typo: 1})
        message = str(caught.value)
        assert message.startswith(
            f"{path_of(group, name)}.{typo}: {REGISTRY[group][name].__name__} has no such setting."
        )
        assert field in message


def test_a_range_is_checked_when_a_class_is_constructed_in_python_too() -> None:
    with pytest.raises(ConfigError, match=r"^PPO\.clip_range must be greater than 0, not -1"):
        REGISTRY["algo"]["ppo"](clip_range=-1)


def test_a_component_that_refuses_itself_names_its_group_once() -> None:
    for overrides, message in (
        (["algo=rlpd", "algo.n_target_critics=5"], "algo: n_target_critics=5 must not be more than n_critics=2"),
        (["model.hidden=[0]"], "model.hidden must be a list of widths of at least 1"),
        (["algo=crr", "dataset=replay"], "dataset=replay: set one of dataset.run"),
    ):
        config = compose(overrides)
        group = message.split(".")[0].split(":")[0].split("=")[0]
        with pytest.raises(ConfigError) as caught:
            build(group, config[group])
        assert str(caught.value).startswith(message)


@pytest.mark.parametrize("algo", sorted(REGISTRY["algo"]))
def test_every_numeric_hyperparameter_can_be_scheduled_and_no_size(algo: str) -> None:
    cls = REGISTRY["algo"][algo]
    fields = schedulable(cls)
    sizes = [field for g, n, field, note in RANGED if (g, n) == ("algo", algo) and fixed(cls, field)]
    assert ("gamma" in fields) == cls.__dataclass_fields__["gamma"].init  # cloning looks no step ahead
    assert not set(sizes) & set(fields)
    node = changed("algo", algo, {"schedules": {field: {"end": 1} for field in fields}})
    assert {field for field, entry in node["schedules"].items() if entry} == set(fields)


def fixed(cls: type, field: str) -> bool:
    return annotation_of(cls, field) == Size


def test_overrides_of_a_saved_config_are_checked_like_those_of_a_new_one() -> None:
    saved = compose(["algo=ppo"])
    assert apply_overrides(saved, ["algo.gamma=0.5"])["algo"]["gamma"] == 0.5
    assert saved["algo"]["gamma"] == 0.99  # a copy
    for override, message in (
        ("algo.gama=0.5", "algo.gama: the saved run has no such setting. Did you mean gamma"),
        ("foo=1", "foo: the saved run has no such setting."),
        ("algo=sac", "algo is a group of settings"),
        ("algo.gamma", "'algo.gamma' is not of the form key=value"),
        ("algo.gamma=1,2", "only key=value is understood here"),
        ("~algo.gamma", "only key=value is understood here"),
    ):
        with pytest.raises(ConfigError, match=message.replace("'", ".")):
            apply_overrides(saved, [override])
    with pytest.raises(ConfigError, match=r"algo\.gamma must be at most 1"):
        check_config(apply_overrides(saved, ["algo.gamma=2"]))
    with pytest.raises(ConfigError, match=r"algo\.betta: PPO has no such setting"):
        check_config(apply_overrides(saved, ["+algo.betta=2"]))
