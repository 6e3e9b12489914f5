"""Medians that leave out the row they are compared with, rows that do not count, and outliers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.tables.centres import (
    StepsOfRanks,
    as_bad_as_own,
    median_of_others,
    to_mean_steps,
    without_outliers,
)

ROWS = st.lists(
    st.tuples(st.integers(-50, 50), st.integers(0, 2), st.integers(0, 1), st.booleans()),
    min_size=1,
    max_size=24,
)


def slowly(rows, *, all_count):
    """Return the medians by the definition, row by row."""
    result = []
    for place, (_, *keys, _) in enumerate(rows):
        others = [
            own
            for other, (own, *theirs, counts) in enumerate(rows)
            if other != place and theirs == keys and (all_count or counts)
        ]
        result.append(np.median(others) if others else np.nan)
    return result


@given(rows=ROWS, all_count=st.booleans())
def test_a_row_is_compared_with_the_others_that_count(rows, all_count):
    """Fails when a rank is compared with itself, with another group, or with ranks that are slow too."""
    value, first, second, counts = (np.array(column) for column in zip(*rows, strict=True))
    found = median_of_others(
        value.astype(float), first, second, counts=None if all_count else counts
    )
    np.testing.assert_array_equal(found, slowly(rows, all_count=all_count))


@given(
    values=st.lists(st.floats(90.0, 110.0), min_size=9, max_size=30),
    bad=st.floats(1e3, 1e9),
    sign=st.sampled_from([-1, 1]),
)
def test_an_outlier_counts_no_more_than_the_usual_noise(values, bad, sign):
    """Fails when one bad step moves the mean of the others, or usual noise is cut off."""
    usual = np.array([*values, 100.0])
    spoilt = np.array([*values, 100.0 + sign * bad])
    group = np.zeros(len(usual), np.int64)
    reach = 5 / 1.15 * 20 + 0.11
    kept = without_outliers(spoilt, group)
    assert abs(kept[-1] - np.median(spoilt)) <= reach
    assert abs(kept.mean() - usual.mean()) <= reach / len(usual) + 10


def test_values_that_are_alike_but_for_rounding_have_outliers_too():
    """Fails when a third of the steps, a nanosecond off, are taken for a kind of their own."""
    value = np.array([100.0, 100.0, 99.8] * 8 + [400.0])
    assert without_outliers(value, np.zeros(25, np.int64))[-1] == pytest.approx(100.87, abs=0.01)


def test_what_comes_often_is_no_outlier():
    """Fails when a rank that is slow in a third of its steps is taken for one with bad steps."""
    value = np.array([10.0, 10.0, 30.0] * 8)
    np.testing.assert_array_equal(without_outliers(value, np.zeros(24, np.int64)), value)


def steps_of(totals):
    """Return the steps of ranks that are each other's peers, by rank and step."""
    ranks, steps = np.indices(totals.shape)
    return StepsOfRanks(
        ranks.ravel(), steps.ravel(), np.zeros(totals.size, np.int64), totals.ravel()
    )


def test_bad_steps_of_peers_count_as_far_as_the_rank_has_such():
    """Fails when two bad steps of most peers make a rank without any look faster than it would be."""
    totals = np.full((4, 40), 100.0)
    totals[0, [3, 20]] = totals[1, [7, 30]] = totals[2, [9, 31]] = 400.0
    centre = np.full(totals.size, 100.0)
    mean = (to_mean_steps(centre, steps_of(totals), None) * centre).reshape(4, 40).mean(axis=1)
    np.testing.assert_allclose(mean, [115.0, 115.0, 115.0, 100.0], rtol=2e-3)


@pytest.mark.parametrize("healthy", [3, 5])
def test_healthy_steps_of_a_rank_that_is_slow_in_most_are_not_bad_ones_of_its_peers(healthy):
    """Fails when it is expected to work less than nothing there, and its cost is reported as twice what it is."""
    totals = np.full((4, 20), 100.0)
    totals[0, healthy:] = 270.0
    centre = np.full(totals.size, 100.0)
    np.testing.assert_allclose(as_bad_as_own(centre, steps_of(totals)), centre)


@pytest.mark.parametrize("healthy", [3, 5])
def test_healthy_steps_of_a_slow_rank_are_no_bad_ones_of_its_only_peer(healthy):
    """Fails when the peer is said to take less than it does, and the slow rank to cost more."""
    totals = np.full((2, 20), 100.0)
    totals[0, healthy:] = 270.0
    centre = totals[::-1].ravel()
    np.testing.assert_allclose(to_mean_steps(centre, steps_of(totals), None), 1.0)


@pytest.mark.parametrize("own", [100.0, 130.0])
def test_a_bad_step_of_the_peers_alone_is_not_expected_of_a_rank(own):
    """Fails when a pause of the others makes a rank look fast, or hides a part of what it is slower by."""
    totals = np.full((4, 20), 100.0)
    totals[0] = own
    totals[1:, 7] = 400.0
    centre = np.full((4, 20), 100.0)
    centre[0, 7] = 400.0
    found = as_bad_as_own(centre.ravel(), steps_of(totals)).reshape(4, 20)
    np.testing.assert_allclose(found[0], 100.0, rtol=5e-3)
