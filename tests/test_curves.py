"""The numbers by which whole runs are compared, worked out by hand."""

from rlexp.curves import curve_summary


def row(steps: int, value: float | None = None, seconds: float = 0.0) -> dict[str, object]:
    found: dict[str, object] = {"env_steps": steps, "updates": steps // 2, "time_s": seconds}
    return found if value is None else found | {"eval/return_mean": value}


def test_the_area_is_that_of_straight_lines_between_evaluations_over_its_width() -> None:
    rows = [row(0), row(10, 2.0), row(20, 4.0), row(25), row(50, 10.0)]
    # (10 · 3 + 30 · 7) / 40
    assert curve_summary(rows, "env_steps")["area"] == 6.0
    assert curve_summary(rows, "env_steps")["evaluations"] == 3
    assert curve_summary([row(10, 7.0)], "env_steps")["area"] == 7.0
    assert curve_summary([row(10)], "env_steps")["area"] is None
    assert curve_summary([row(10, 1.0), row(20, float("nan"))], "env_steps")["area"] is None


def test_the_threshold_counts_from_the_first_evaluation_that_reaches_it() -> None:
    rows = [row(10, 2.0, 1.0), row(20, 5.0, 2.5), row(30, 4.0, 3.0), row(40, 6.0, 4.0)]
    summary = curve_summary(rows, "updates", threshold=5.0)
    assert (summary["threshold"], summary["updates_to_threshold"], summary["seconds_to_threshold"]) == (5.0, 10, 2.5)
    never = curve_summary(rows, "env_steps", threshold=7.0)
    assert (never["env_steps_to_threshold"], never["seconds_to_threshold"]) == (None, None)
    assert curve_summary(rows, "env_steps")["env_steps_to_threshold"] is None
