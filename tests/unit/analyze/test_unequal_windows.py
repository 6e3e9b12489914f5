"""Ranks of which one was in the step for longer than the other."""

import pytest
from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze import diagnose

MS = 1_000_000


def unequal():
    """Return a step of 100 ms on one rank and 60 on the other; each loads data for 30 of it."""
    return trace_of(
        step=[{"dur_ns": 100 * MS}, {"rank": 1, "start_ns": 40 * MS, "dur_ns": 60 * MS}],
        span=[
            {"rank": rank, "kind": "data_load", "start_ns": 50 * MS, "dur_ns": 30 * MS}
            for rank in (0, 1)
        ],
    )


def test_a_class_takes_no_longer_than_on_any_rank():
    """Fails when a share of all ranks' time is applied to the longest: 37.5 ms of 30 on each rank."""
    found = diagnose(unequal())
    bars = {bar.name: bar for bar in found.waterfall}
    assert bars["data_load"].dur_ns == pytest.approx(30 * MS)
    assert bars["data_load"].frac == pytest.approx(60 / 160)
    assert sum(bar.dur_ns for bar in found.waterfall) == pytest.approx(80 * MS)
    assert found.step_time_ns == 100 * MS


def test_whose_mean_it_is_is_said():
    """Fails when a total that is not the step time stands without a word."""
    assert any(
        "A step of a rank takes 80.0 ms on average" in limit
        for limit in texts(diagnose(unequal()).limits)
    )


def test_equal_windows_need_no_word():
    """Fails when a job whose ranks share their steps gets a sentence about means."""
    found = diagnose(trace_of(step=[{"dur_ns": 100 * MS}, {"rank": 1, "dur_ns": 100 * MS}]))
    assert not any("on average" in limit for limit in texts(found.limits))
