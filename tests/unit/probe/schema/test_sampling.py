"""Windows of steps that all ranks choose alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.probe.schema.sampling import (
    EARLY_STEPS,
    EARLY_WINDOW_STEPS,
    ONE_IN,
    WINDOW_STEPS,
    begins_window,
    is_recorded,
    least_one_in,
    next_window,
)


@given(st.integers(0, 10**9), st.sampled_from(ONE_IN))
def test_whoever_records_less_records_what_others_do(step, one_in):
    """Ranks that record another share of the windows would have no step in common."""
    if is_recorded(step, one_in):
        assert all(is_recorded(step, more) for more in ONE_IN if more <= one_in)


@pytest.mark.parametrize("one_in", ONE_IN)
def test_of_so_many_steps_one_window_is_recorded(one_in):
    """More or less would be recorded than the budget was reckoned with."""
    period = WINDOW_STEPS * one_in
    for first in (EARLY_STEPS, 113, 6 * period + EARLY_STEPS):
        steps = range(first, first + period)
        assert sum(is_recorded(step, one_in) for step in steps) == WINDOW_STEPS
    early = [step for step in range(EARLY_STEPS) if is_recorded(step, one_in)]
    # The second window comes on top where it is not of the share.
    assert len(early) == EARLY_STEPS // one_in + EARLY_WINDOW_STEPS * (one_in > 4)
    assert {20, 24} <= set(early)
    assert early[:EARLY_WINDOW_STEPS] == list(range(EARLY_WINDOW_STEPS))


@pytest.mark.parametrize("one_in", ONE_IN)
def test_what_is_recorded_changes_only_where_a_window_begins(one_in):
    """Hooks would be left in, or out, for a part of a window on all ranks."""
    for step in range(1, 1_000):
        if is_recorded(step, one_in) != is_recorded(step - 1, one_in):
            assert begins_window(step)


@given(st.integers(0, 10**9))
def test_the_next_window_begins_there_and_soon(step):
    """An order would begin in the middle of a window, or wait for one while a job is over its budget."""
    first = next_window(step)
    assert step <= first < step + WINDOW_STEPS
    assert begins_window(first)


@pytest.mark.parametrize("one_in", ONE_IN[1:])
def test_what_is_kept_in_full_lies_within_a_window(one_in):
    """The only step with all its records would be the one that pays for putting hooks in."""
    recorded = [step for step in range(100, 10_000, 100) if is_recorded(step, one_in)]
    assert len(recorded) >= 99 // max(1, one_in // 4)
    for step in recorded:
        assert all(is_recorded(near, one_in) for near in range(step - 3, step + 4))


@pytest.mark.parametrize(
    ("times_over", "one_in"), [(0.5, 1), (1.0, 1), (1.01, 2), (2.0, 2), (5.0, 8), (16.0, 16)]
)
def test_the_part_that_is_recorded_is_within_the_budget(times_over, one_in):
    """A rank would be over its budget for good, or record less than it may."""
    assert least_one_in(times_over) == one_in


def test_what_is_far_too_dear_cannot_be_sampled():
    """A probe that takes half of the time would go on."""
    assert least_one_in(16.1) is None
