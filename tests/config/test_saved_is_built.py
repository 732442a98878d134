"""What a component gets is what the run keeps, also where a config in Python holds more than plain values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

import pytest
from omegaconf import OmegaConf

from rlexp import files
from rlexp.algos import DQN
from rlexp.callbacks import Callback
from rlexp.config.check import check_node, construct, to_plain
from rlexp.config.compose import compose
from rlexp.config.trust import EVERYTHING
from rlexp.errors import ConfigError
from rlexp.runner import Runner


class Kind(Enum):
    x = "one"
    y = "two"


class Text(StrEnum):
    same = "same"  # equals its text, and is still no text


@dataclass(eq=False, kw_only=True)
class Open(DQN):
    anything: Any = Kind.y
    table: dict[str, Any] = field(default_factory=dict)
    kind: Kind = Kind.x
    kinds: list[Kind] = field(default_factory=list)
    number: int = 0


class AnyKeyword(Callback):
    def __init__(self, **keywords: Any) -> None:
        self.keywords = keywords


@pytest.fixture
def count() -> Iterator[str]:
    """An interpolation that gives another number each time."""
    numbers = itertools.count(1)
    OmegaConf.register_new_resolver("count", lambda: next(numbers), use_cache=False)
    yield "${count:}"
    OmegaConf.clear_resolver("count")


def test_a_component_gets_what_is_saved(count: str) -> None:
    config = compose(["algo=dqn", "env=cartpole", "device=cpu", "progress=none"])
    given = {"table": {"a": [Kind.x, Text.same], "b": {Kind.y: count}}, "kind": Kind.y, "kinds": [Kind.x, "y"]}
    config["algo"] |= given | {"_target_": f"{__name__}.Open", "number": count}
    config["algo"]["schedules"] = {"learning_rate": {"end": count}}
    runner = Runner(config)
    saved, built = runner.config["algo"], runner.algo
    assert isinstance(built, Open)
    assert (built.anything, built.kind, built.kinds) == ("y", Kind.y, [Kind.x, Kind.y])
    assert (saved["anything"], saved["kind"], saved["kinds"]) == ("y", "y", ["x", "y"])
    assert repr(built.table) == repr(saved["table"])
    assert set(built.table["b"]) == {"y"}
    assert type(built.table["a"][1]) is str
    assert built.number == saved["number"]
    assert built.schedules["learning_rate"]["end"] == saved["schedules"]["learning_rate"]["end"]
    again = Runner(files.parse_config(files.config_bytes(runner.config)))
    assert again.config == runner.config
    assert repr(vars(again.algo)) == repr(vars(built))


def test_keywords_that_no_schema_knows_are_final_too(count: str) -> None:
    target = f"{__name__}.AnyKeyword"
    node = check_node("trainer.callbacks[0]", {"_target_": target, "a": Kind.x, "b": count}, EVERYTHING)
    assert construct("trainer.callbacks[0]", node).keywords == {"a": "x", "b": 1}
    assert to_plain(node) == {"_target_": target, "a": "x", "b": 1}


def test_an_interpolation_that_leads_nowhere_is_a_mistake_in_the_config() -> None:
    with pytest.raises(ConfigError, match=r"^algo: Interpolation key 'nowhere' not found\.$"):
        check_node("algo", {"_target_": f"{__name__}.Open", "number": "${nowhere}"}, EVERYTHING)


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"a": value}, lambda value: {"a": [value]}])
def test_what_only_looks_like_a_plain_config_is_refused_also_after_one_that_is(wrap: Any) -> None:
    class Like(dict):
        """Says the same as a dict."""

    assert repr(wrap(Like(b=1))) == repr(wrap({"b": 1}))
    files.config_bytes(wrap({"b": 1}))  # kept, to be given again
    with pytest.raises(TypeError, match="holds a Like at '"):
        files.config_bytes(wrap(Like(b=1)))
