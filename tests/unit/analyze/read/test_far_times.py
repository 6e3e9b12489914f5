"""Events that lie, or reach, where nothing else of their file is."""

import numpy as np
import pytest

from meshscope.analyze.read.far_times import Extents, Window, are_overrun, most_at_once

DAY = 86_400_000_000_000


def extents(*events):
    """Return the extents of events of start and length."""
    found = Extents()
    for start, dur in events:
        found.add(np.array([start]), np.array([dur]))
    return found


def test_most_events_make_the_window_wherever_the_others_lie():
    """Fails when one stamp of zero decides where a file is."""
    found = extents((0, 5), (50 * DAY, 5), (50 * DAY + 9, 5), (50 * DAY + 99, 5))
    assert found.window() == Window(50 * DAY, 50 * DAY + 99)
    assert found.doubtful_window() == found.window()
    assert Extents().window() is None


def test_a_capture_of_several_days_is_one_window():
    """Fails when a long capture with pauses of hours loses a part of itself."""
    events = [(hour * DAY // 24, 5) for hour in range(0, 96, 6)]
    found = extents(*events)
    assert found.window() == Window(0, events[-1][0])
    assert found.doubtful_window() is None


@pytest.mark.parametrize("dur", [2 * DAY, 1 << 61])
def test_an_end_days_behind_all_starts_is_far(dur):
    """Fails when a length that nothing can have is added up."""
    found = extents((0, 5), (9, dur), (99, 5))
    window = found.doubtful_window()
    assert window.are_far(np.array([0, 9]), np.array([5, dur])).tolist() == [False, True]


def test_what_its_stream_goes_on_within_is_too_long():
    """Fails when a kernel counts although others of its stream begin before its end."""
    start, dur = np.array([0, 10, 20, 30]), np.array([100, 100, 5, 100])
    stream, long = np.array([7, 8, 7, 7]), dur > 50
    assert are_overrun(start, dur, stream, long).tolist() == [True, False, False, False]


def test_how_many_ran_at_once():
    """Fails when lengths of another unit than the starts are believed."""
    start = np.arange(100) * 10
    assert most_at_once(start, np.full(100, 8), np.zeros(100)) == 1
    assert most_at_once(start, np.full(100, 8000), np.zeros(100)) == 89
    assert most_at_once(start[:0], start[:0], start[:0]) == 0
