"""Schedules: their curves against numbers worked out by hand, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlexp.config.check import check_config
from rlexp.config.compose import compose
from rlexp.config.overrides import apply_overrides
from rlexp.errors import ConfigError
from rlexp.schedules import Schedule, Shape


@pytest.mark.parametrize(
    ("shape", "quarter", "half"),
    [
        (Shape.linear, 4 - 0.25 * 3, 2.5),  # from 4 to 1
        (Shape.cosine, 1 + 3 * 0.5 * (1 + math.sqrt(0.5)), 2.5),
        (Shape.exponential, 4 * 4**-0.25, 2.0),
        (Shape.step, 4.0, 4.0),
    ],
)
def test_every_shape_goes_from_start_to_end(shape: Shape, quarter: float, half: float) -> None:
    schedule = Schedule(shape=shape, end=1.0)
    values = [schedule.value(4.0, progress) for progress in (0.0, 0.25, 0.5, 1.0)]
    assert values == pytest.approx([4.0, quarter, half, 1.0])


@pytest.mark.parametrize("shape", Shape)
def test_outside_of_its_window_a_schedule_stands_still(shape: Shape) -> None:
    schedule = Schedule(shape=shape, start=8.0, end=2.0, begin=0.2, until=0.6)
    assert [schedule.value(5.0, progress) for progress in (0.0, 0.199, 0.6, 0.9, 1.0)] == [8.0, 8.0, 2.0, 2.0, 2.0]
    middle = {"linear": 5.0, "cosine": 5.0, "exponential": 4.0, "step": 8.0}[shape.name]
    assert schedule.value(5.0, 0.4) == pytest.approx(middle)


def entry(*overrides: str, algo: str = "ppo", field: str = "learning_rate") -> dict[str, Any] | None:
    return compose([f"algo={algo}", *overrides])["algo"]["schedules"][field]


def test_nothing_is_scheduled_unless_it_is_asked_for() -> None:
    assert set(compose(["algo=ppo"])["algo"]["schedules"].values()) == {None}


def test_a_schedule_is_given_on_the_command_line_whole_or_by_its_end_alone() -> None:
    expected = {"shape": "linear", "end": 0.0, "start": None, "begin": 0.0, "until": 1.0}
    assert entry("algo.schedules.learning_rate={shape: linear, end: 0}") == expected
    assert entry("algo.schedules.learning_rate.end=0") == expected
    cosine = entry("algo.schedules.learning_rate={shape: cosine, end: 1e-5, start: 1e-3, begin: 0.1, until: 0.9}")
    assert cosine == {"shape": "cosine", "end": 1e-5, "start": 1e-3, "begin": 0.1, "until": 0.9}


def test_a_schedule_of_a_file_can_be_changed_in_part() -> None:
    default = entry(algo="dqn", field="epsilon")
    changed = entry("algo.schedules.epsilon.end=0.2", algo="dqn", field="epsilon")
    assert default is not None
    assert changed == default | {"end": 0.2}


REFUSED = {
    "{shape: line, end: 0}": "algo.schedules.clip_range.shape must be one of linear, cosine, exponential, step, not ",
    "{shape: cosine}": "algo.schedules.clip_range needs the value to end at, e.g. {end: 0}",
    "{end: x}": "algo.schedules.clip_range.end must be a number, not x",
    "{end: 0, begin: 0.5, until: 0.4}": "algo.schedules.clip_range needs 0 <= begin < until",
    "{end: 0, begin: 0.5, until: 0.5}": "algo.schedules.clip_range needs 0 <= begin < until",
    "{end: 0, until: 1.5}": "algo.schedules.clip_range needs 0 <= begin < until <= 1, fractions of the budget, not ",
    "{end: 0, begin: -0.1}": "algo.schedules.clip_range needs 0 <= begin < until",
    "{shape: exponential, end: 0}": "algo.schedules.clip_range is exponential, which needs a positive start and end",
    "{shape: exponential, end: 1, start: 0}": "algo.schedules.clip_range is exponential",
    "{end: -1}": "algo.schedules.clip_range.end must be at least 0, as algo.clip_range itself",
    "{end: 0, start: -1}": "algo.schedules.clip_range.start must be at least 0, as algo.clip_range itself",
    "3": "algo.schedules.clip_range must be a schedule such as {shape: linear, end: 0}, not 3",
}


@pytest.fixture(scope="module")
def ppo() -> dict[str, Any]:
    return compose(["algo=ppo"])


@pytest.mark.parametrize("text", REFUSED)
def test_a_schedule_that_cannot_be_followed_is_refused(text: str, ppo: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_config(apply_overrides(ppo, [f"algo.schedules.clip_range={text}"]))
    assert str(caught.value).startswith(REFUSED[text])


def test_it_is_refused_on_the_command_line_in_the_same_words() -> None:
    for text in ("{shape: cosine}", "3"):
        with pytest.raises(ConfigError) as caught:
            compose(["algo=ppo", f"algo.schedules.clip_range={text}"])
        assert str(caught.value).startswith(REFUSED[text])


def test_an_open_bound_may_be_approached_but_a_closed_one_not_crossed() -> None:
    assert entry("algo.schedules.clip_range.end=0", field="clip_range")  # clip_range itself must be above 0
    with pytest.raises(ConfigError, match=r"algo\.schedules\.gamma\.end must be at most 1"):
        entry("algo.schedules.gamma.end=1.5")


def test_a_saved_schedule_is_read_as_it_was_written() -> None:
    config = compose(["algo=dqn", "algo.schedules.learning_rate={shape: step, end: 1e-5, until: 0.5}"])
    assert check_config(config) == config
