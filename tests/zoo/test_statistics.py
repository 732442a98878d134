"""Statistics over few seeds, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rlexp.zoo.statistics import interval, iqm, profile, stratified_interval


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0], 2.5),
        ([4.0, 1000.0, 3.0, 1.0], 3.5),  # order and an outlier do not matter
        ([0.0, 3.0, 12.0], (0.25 * 0 + 3 + 0.25 * 12) / 1.5),  # what lies across a quartile counts in part
        ([7.0], 7.0),
    ],
)
def test_the_interquartile_mean_is_that_of_the_middle_half(values: list[float], expected: float) -> None:
    assert float(iqm(np.array(values))) == pytest.approx(expected)


def test_an_interval_of_few_values_is_exact() -> None:
    assert interval([5.0]) is None  # one value says nothing of its spread
    assert interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    assert interval([0.0, 1.0]) == (0.0, 1.0)  # 00, 01, 10, 11: a quarter of the means at either end
    assert interval([1.0, 2.0, 3.0]) == (1.0, 3.0)  # each end is 1 of 27 resamples, more than 2.5 %
    assert interval([1.0, 2.0, 3.0], level=0.9) == pytest.approx((4 / 3, 8 / 3))  # and less than 5 %


def test_an_interval_of_many_values_is_that_of_the_normal_approximation_and_the_same_every_time() -> None:
    values = np.random.default_rng(1).normal(10, 3, 400).tolist()
    found = interval(values)
    assert found is not None
    assert found == interval(values)
    wide = 1.96 * np.std(values) / np.sqrt(400)
    assert found == pytest.approx((np.mean(values) - wide, np.mean(values) + wide), abs=0.05)


def test_groups_are_resampled_on_their_own() -> None:
    assert stratified_interval([[0.0, 0.0], [1.0, 1.0]], lambda values: values.mean(-1)) == (0.5, 0.5)
    assert stratified_interval([[0.0], [1.0]], lambda values: values.mean(-1)) is None


def test_a_profile_is_the_share_of_runs_at_each_threshold_and_groups_weigh_the_same() -> None:
    share, low, high = profile([[0.0, 1.0, 1.0, 1.0], [1.0]], np.array([0.0, 0.5, 1.5]))
    assert share.tolist() == [1.0, (0.75 + 1) / 2, 0.0]
    assert (low[0], high[0], low[2], high[2]) == (1.0, 1.0, 0.0, 0.0)
    assert low[1] < share[1] < high[1] <= 1.0
