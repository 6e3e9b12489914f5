"""Maps between clocks, and what makes one believed."""

import numpy as np
import pytest

from meshscope.analyze.align.clocks.fit import (
    LEAST_ERROR_NS,
    ClockMap,
    fit_bounds,
    fit_common_ends,
    moved,
)

US, MS, S = 1_000, 1_000_000, 1_000_000_000
NOW = 1_700_000_000 * S
"""A time of unix size, which a float does not hold to the nanosecond."""
NAN = float("nan")


def ints(*values):
    """Return times as the tables hold them."""
    return np.array(values, dtype=np.int64)


def test_a_map_and_its_inverse_cancel():
    """A comparison would mean something else when read from the other side."""
    there = ClockMap(5 * S, -3e9, 200e-6, 1.0)
    times = np.arange(0, 20 * S, S)
    zeros = np.zeros(len(times), dtype=np.int64)
    back = moved(moved(times, zeros, [there]), zeros, [there.inverse()])
    assert np.abs(back - times).max() <= 1


def test_maps_in_a_row_are_one_map():
    """Clocks that are compared over a third one would be off."""
    one, other = ClockMap(NOW, 7e9, 40e-6, 3e3), ClockMap(NOW + S, -2e9, -90e-6, 4e3)
    times = NOW + np.arange(0, 20 * S, S)
    zeros = np.zeros(len(times), dtype=np.int64)
    stepwise = moved(moved(times, zeros, [one]), zeros, [other])
    both = one.then(other)
    assert np.abs(moved(times, zeros, [both]) - stepwise).max() <= 1000
    assert both.error_ns == pytest.approx(7e3)


def test_an_offset_without_drift_moves_integers_exactly():
    """Times since 1970 would be rounded to what a float holds."""
    times = ints(NOW + 1, NOW + 3)
    assert moved(times, ints(0, 1), [ClockMap(0, 1e9, 0, 0), ClockMap(0, 0, 0, 0)]).tolist() == [
        NOW + 1 + S,
        NOW + 3,
    ]


def test_common_ends_give_the_median_and_its_doubt():
    """An offset would be stated without a bound, or with one that more data does not sharpen."""
    rng = np.random.default_rng(1)
    found = {}
    for count in (5, 500):
        times = NOW + np.arange(count) * MS
        ahead = S + rng.normal(0, 20 * US, count).astype(np.int64)
        found[count] = fit_common_ends(times, ahead, host=False)
        assert found[count].offset_ns == pytest.approx(S, abs=found[count].error_ns)
        assert found[count].drift == 0
    assert LEAST_ERROR_NS < found[500].error_ns < found[5].error_ns < 60 * US


def test_one_common_end_is_not_certain():
    """An offset from one moment would count as much as one from hundreds."""
    one = fit_common_ends(ints(0), ints(50 * US), host=False)
    many = fit_common_ends(np.arange(100) * MS, np.full(100, 50 * US), host=False)
    assert one.error_ns > 3 * many.error_ns
    assert fit_common_ends(ints(0), ints(50 * US), host=True).error_ns > 2 * MS


@pytest.mark.parametrize(("ppm", "is_seen"), [(50, True), (-50, True), (0, False), (2, False)])
def test_a_drift_is_seen_where_it_is_beyond_scatter(ppm, is_seen):
    """Noise would tilt the clocks of a healthy run, or a drift would be left in."""
    rng = np.random.default_rng(7)
    times = NOW + np.arange(200) * 10 * MS
    ahead = (S + ppm * 1e-6 * (times - NOW) + rng.normal(0, 5 * US, 200)).astype(np.int64)
    found = fit_common_ends(times, ahead, host=False)
    assert (found.drift != 0) == is_seen
    assert found.drift == pytest.approx(ppm * 1e-6 if is_seen else 0, abs=2e-6)


def test_what_no_quartz_does_is_no_drift():
    """A schedule that shifts work would be taken for a clock that runs fast."""
    times = np.arange(50) * MS
    assert fit_common_ends(times, (0.1 * times).astype(np.int64), host=False).drift == 0


def test_bounds_meet_in_the_middle():
    """The delay of a message would be taken for an offset."""
    least, most = np.array([90.0, 40.0, NAN]), np.array([500.0, NAN, 110.0])
    found = fit_bounds(ints(0, 1, 2), least, most)
    assert found.offset_ns == 100
    assert found.error_ns == 10 + LEAST_ERROR_NS


@pytest.mark.parametrize(("firm", "offset_ns"), [(1, 120.0), (-1, 480.0), (0, 300.0)])
def test_a_bound_that_is_reached_is_the_offset_but_for_the_wire(firm, offset_ns):
    """Data that lies there before anybody asks for it would move a clock by half of that time."""
    found = fit_bounds(
        ints(0, 1), np.array([100.0, 90.0]), np.array([500.0, 510.0]), firm=firm, wire_ns=20.0
    )
    assert found.offset_ns == offset_ns
    # A wire that is slower that way than the other reaches its bound no nearer than the far one.
    assert found.error_ns == 200 + abs(offset_ns - 300) + LEAST_ERROR_NS


def test_a_wire_that_is_longer_than_the_bounds_allow_meets_in_the_middle():
    """The offset would leave its bounds."""
    least, most = np.array([100.0, 90.0]), np.array([130.0, 140.0])
    assert fit_bounds(ints(0, 1), least, most, firm=1, wire_ns=900.0).offset_ns == 115


def test_bounds_on_one_side_only_are_no_estimate():
    """An offset would be invented."""
    assert fit_bounds(ints(0, 1), np.array([1.0, 2.0]), np.array([NAN, NAN])) is None


def test_bounds_that_contradict_each_other_widen_the_error():
    """Messages that were matched wrongly would give a sharp offset."""
    found = fit_bounds(ints(0, 1), np.array([300.0 * US, 0]), np.array([400.0 * US, 100.0 * US]))
    assert found.offset_ns == 200 * US
    assert found.error_ns == 100 * US + LEAST_ERROR_NS


def test_bounds_of_clocks_that_drift_hold_after_the_drift():
    """Bounds of the first and the last step would contradict each other."""
    times = np.arange(20) * 200 * MS
    true = 50e-6 * times
    found = fit_bounds(times, true - 30 * US, true + 30 * US)
    assert found.drift == pytest.approx(50e-6)
    assert found.error_ns == pytest.approx(30 * US + LEAST_ERROR_NS, abs=US)
