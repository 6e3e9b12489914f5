"""Interval algebra on cases whose answers can be counted by hand."""

import numpy as np
import pytest

from meshscope.analyze.tables import intervals as iv


def make(*rows):
    """Return a set of intervals."""
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


def test_union_merges_what_overlaps_or_touches():
    """Touching intervals left apart would be counted as two and break every gap."""
    assert iv.union(make((5, 9), (0, 3), (3, 4), (6, 7))).tolist() == [[0, 4], [5, 9]]


def test_empty_and_reversed_intervals_count_for_nothing():
    """A zero or negative duration in a trace would add or remove time."""
    assert iv.union(make((4, 4), (9, 2))).tolist() == []
    assert iv.total_length(make((4, 4), (9, 2), (0, 1))) == 1


@pytest.mark.parametrize("operation", [iv.intersect, iv.subtract])
def test_operations_on_no_intervals(operation):
    """A rank without any event of one class would crash the account."""
    assert operation(make(), make()).tolist() == []
    assert operation(make(), make((0, 5))).tolist() == []


def test_intersect_and_subtract_split_one_set_by_another():
    """Overlapped and exposed time would be exchanged or lost."""
    first, second = make((0, 10), (20, 30)), make((5, 22), (24, 26))
    assert iv.intersect(first, second).tolist() == [[5, 10], [20, 22], [24, 26]]
    assert iv.subtract(first, second).tolist() == [[0, 5], [22, 24], [26, 30]]


def test_covered_length_per_query():
    """The exposed part of one collective would be wrong when it spans a gap."""
    merged = make((0, 4), (5, 9))
    assert iv.covered_length(merged, [3, 0, 4, -5], [6, 10, 5, -1]).tolist() == [2, 8, 0, 0]
    assert iv.covered_length(make(), [3], [6]).tolist() == [0]


def test_sweep_gives_each_instant_to_the_highest_priority():
    """Fails when the worked example of the docstring is wrong: compute hides communication, gaps have no owner."""
    segments = iv.sweep_priority(make((1, 9), (3, 5), (6, 9)), [1, 0, 0], (0, 10))
    found = list(zip(*(column.tolist() for column in segments), strict=True))
    assert found == [(0, 1, -1), (1, 3, 0), (3, 5, 1), (5, 6, 0), (6, 9, 2), (9, 10, -1)]


def test_sweep_among_equals_the_last_to_end_wins():
    """Two overlapping collectives of one class would be charged to the one that was over first."""
    segments = iv.sweep_priority(make((0, 6), (2, 9), (2, 4)), [3, 3, 3], (0, 9))
    assert segments.owner.tolist() == [0, 1]
    assert segments.length.tolist() == [2, 7]


def test_sweep_of_an_empty_window_has_no_segments():
    """A step of no length would produce a segment of negative length."""
    segments = iv.sweep_priority(make((0, 6)), [0], (5, 5))
    assert len(segments.start) == len(segments.end) == len(segments.owner) == 0
