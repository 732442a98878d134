"""The component decorator: from the fields of a dataclass to the schema of its config."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal, Optional, Union

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import ValidationError

from rlexp.config.component import REGISTRY, component, registered_name, schedulable, schema_of, snake_case, target_of
from rlexp.config.fields import Count, Fraction, Natural, NonNegative, Positive, Range, Size
from rlexp.errors import ConfigError
from rlexp.schedules import Schedule


class Colour(Enum):
    red = "red"
    green = "green"


@dataclass
class Nested:
    x: int = 1


@dataclass(eq=False, kw_only=True)
class Base:
    kind: ClassVar[str] = "base"

    rate: Positive = 0.1
    dropped: float = 2.0
    schedules: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class Thing(Base):
    needed: str
    dropped: float = field(init=False, default=0.0)
    steps: Count = 3
    width: Size = 4
    maybe: Fraction | None = None
    old_maybe: Optional[Natural] = None
    flag: bool = False
    colour: Colour = Colour.red
    widths: tuple[int, ...] = (8, 9)
    maybe_widths: tuple[int, ...] | None = None
    names: list[str] = field(default_factory=lambda: ["a"])
    table: dict[str, float] = field(default_factory=dict)
    nested: Nested = field(default_factory=Nested)
    number_or_text: Union[int, str] = "auto"
    anything: Any = None
    function: Callable[[], int] | None = None
    literal: Literal["a", "b"] = "a"
    iterator: Iterator[int] | int = 0
    cache: dict[str, int] = field(init=False, default_factory=dict)


def types_of(cls: type) -> dict[str, Any]:
    return {each.name: each.type for each in dataclasses.fields(schema_of(cls))}


def test_the_schema_has_the_fields_with_types_that_can_be_checked() -> None:
    assert {k: v for k, v in types_of(Thing).items() if k != "schedules"} == {
        "_target_": str,
        "rate": float,
        "needed": str,
        "steps": int,
        "width": int,
        "maybe": Optional[float],
        "old_maybe": Optional[int],
        "flag": bool,
        "colour": Colour,
        "widths": list[int],
        "maybe_widths": Optional[list[int]],
        "names": list[str],
        "table": dict[str, float],
        "nested": Nested,
        "number_or_text": Union[int, str],
        "anything": Any,
        # what OmegaConf knows no type for
        "function": Any,
        "literal": Any,
        "iterator": Any,
    }


def test_the_schema_has_the_defaults() -> None:
    values = OmegaConf.structured(schema_of(Thing))
    assert values._target_ == f"{__name__}.Thing" == target_of(Thing)
    assert OmegaConf.is_missing(values, "needed")
    assert (values.rate, values.steps, values.maybe, values.colour) == (0.1, 3, None, Colour.red)
    assert (values.widths, values.names, values.nested) == ([8, 9], ["a"], {"x": 1})  # a tuple becomes a list


def test_a_field_that_is_no_argument_is_no_setting() -> None:
    assert not {"dropped", "cache", "kind"} & set(types_of(Thing))
    assert "dropped" in types_of(Base)  # the parent keeps what the child took back


def test_the_schema_refuses_what_the_field_would() -> None:
    for name, wrong in (("rate", "x"), ("steps", 1.5), ("colour", "blue"), ("widths", ["x"]), ("flag", "maybe")):
        with pytest.raises(ValidationError):
            OmegaConf.merge(OmegaConf.structured(schema_of(Thing)), {name: wrong})


def test_numeric_fields_can_be_scheduled_but_for_sizes_and_optional_ones() -> None:
    assert schedulable(Thing) == {"rate": float, "steps": int}
    entries = {each.name: each.type for each in dataclasses.fields(types_of(Thing)["schedules"])}
    assert entries == {"rate": Optional[Schedule], "steps": Optional[Schedule]}


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [
        (Positive, [1e-9, 5.0], [0.0, -1.0, float("nan")]),
        (NonNegative, [0.0, 5.0], [-1e-9]),
        (Fraction, [0.0, 1.0], [-1e-9, 1.0001, float("inf")]),
        (Count, [1, 9], [0, -1]),
        (Natural, [0, 9], [-1]),
        (Size, [1, 9], [0]),
    ],
)
def test_the_ranges(kind: Any, inside: list[float], outside: list[float]) -> None:
    limits = next(note for note in kind.__metadata__ if isinstance(note, Range))
    assert [limits.problem(value) for value in inside] == [None] * len(inside)
    assert all(limits.problem(value) for value in outside)


def test_a_range_leaves_types_to_the_schema() -> None:
    assert [Range(1).problem(value) for value in (None, "x", False)] == [None, None, None]


@pytest.fixture
def registered() -> Iterator[type]:
    """A component of a group of its own, taken out again."""

    @component("test_group")
    @dataclass(eq=False, kw_only=True)
    class HTTPThing2Go:
        rate: Positive = 1.0
        maybe: Count | None = None

    yield HTTPThing2Go
    del REGISTRY["test_group"]
    del ConfigStore.instance().repo["schema"]["test_group"]


def test_the_decorator_registers_a_choice_by_its_name(registered: type) -> None:
    assert REGISTRY["test_group"] == {"http_thing2_go": registered}
    assert registered_name("test_group", registered) == "http_thing2_go"
    assert registered_name("test_group", Thing) == "thing"  # a user's own that carries no decorator
    stored = ConfigStore.instance().repo["schema"]["test_group"]["http_thing2_go.yaml"]
    assert stored.node == {"_target_": target_of(registered), "rate": 1.0, "maybe": None}
    assert stored.package == "_global_.test_group"


def test_the_decorator_checks_ranges_on_construction(registered: Any) -> None:
    assert registered(rate=2.0, maybe=3).maybe == 3
    with pytest.raises(ConfigError, match=r"^HTTPThing2Go\.rate must be greater than 0, not 0\."):
        registered(rate=0.0)
    with pytest.raises(ConfigError, match=r"^HTTPThing2Go\.maybe must be at least 1, not 0\."):
        registered(maybe=0)


def test_a_subclass_is_checked_by_its_own_ranges_not_its_parents(registered: Any) -> None:
    @component("test_group", "wider")
    @dataclass(eq=False, kw_only=True)
    class Wider(registered):  # type: ignore[misc]
        rate: NonNegative = 0.0

    assert Wider().rate == 0.0


@pytest.mark.parametrize(
    ("name", "snake"),
    [("PPO", "ppo"), ("DiscreteSAC", "discrete_sac"), ("OnPolicy", "on_policy"), ("TD3BC", "td3_bc"), ("C51", "c51")],
)
def test_names_are_written_in_snake_case(name: str, snake: str) -> None:
    assert snake_case(name) == snake


# ---- a class that is no dataclass


class Plain:
    def __init__(self, needed: int, rate: Annotated[float, Range(0)] = 1.0, *, odd: Literal["a"] = "a", bare=3) -> None:  # type: ignore[no-untyped-def]
        self.needed, self.rate = needed, rate


def test_a_class_that_is_no_dataclass_is_described_by_its_signature() -> None:
    assert types_of(Plain) == {"_target_": str, "needed": int, "rate": float, "odd": Any, "bare": Any}
    values = OmegaConf.structured(schema_of(Plain))
    assert OmegaConf.is_missing(values, "needed")
    assert (values.rate, values.odd, values.bare) == (1.0, "a", 3)


def test_a_class_without_a_signature_of_its_own_has_no_settings() -> None:
    class Empty:
        pass

    assert types_of(Empty) == {"_target_": str}
