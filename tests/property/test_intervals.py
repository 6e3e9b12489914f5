"""Interval algebra against a brute force that looks at every single instant."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshscope.analyze.tables import intervals as iv

LIMIT = 24
BOUND = st.integers(0, LIMIT)
SETS = st.lists(st.tuples(BOUND, BOUND), max_size=12).map(
    lambda rows: np.array(rows, dtype=np.int64).reshape(-1, 2)
)


def instants(intervals):
    """Return every instant that some interval covers."""
    return {t for start, end in intervals.tolist() for t in range(start, end)}


def is_merged(intervals):
    """Say whether a set is sorted, disjoint and without touching neighbours."""
    return bool(
        (intervals[:, 1] > intervals[:, 0]).all() and (intervals[1:, 0] > intervals[:-1, 1]).all()
    )


@given(SETS)
def test_union_covers_the_same_instants(intervals):
    """Busy time would differ from what the events cover."""
    merged = iv.union(intervals)
    assert is_merged(merged)
    assert instants(merged) == instants(intervals)
    assert iv.total_length(intervals) == len(instants(intervals))


@given(SETS, SETS)
def test_intersect_and_subtract_partition_the_first_set(first, second):
    """Exposed plus overlapped communication would not add up to communication."""
    both, only = iv.intersect(first, second), iv.subtract(first, second)
    assert is_merged(both)
    assert is_merged(only)
    assert instants(both) == instants(first) & instants(second)
    assert instants(only) == instants(first) - instants(second)


@given(SETS, SETS)
def test_covered_length_counts_the_covered_instants(intervals, queries):
    """The overlapped share of single events would be wrong."""
    covered = iv.covered_length(iv.union(intervals), queries[:, 0], queries[:, 1])
    expected = [len(set(range(a, b)) & instants(intervals)) for a, b in queries.tolist()]
    assert covered.tolist() == expected


def winner_at(instant, intervals, priority):
    """Return the index of the interval that owns one instant."""
    active = [
        (priority[i], -end, start, i)
        for i, (start, end) in enumerate(intervals)
        if start <= instant < end
    ]
    return min(active)[3] if active else iv.NO_OWNER


@settings(max_examples=200)
@given(SETS, BOUND, BOUND, st.data())
def test_sweep_equals_the_brute_force(intervals, start, end, draw):
    """An instant of the step would be charged to the wrong class, twice, or not at all."""
    size = len(intervals)
    priority = draw.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    segments = iv.sweep_priority(intervals, priority, (start, end))
    owner = [
        who
        for a, b, who in zip(*(column.tolist() for column in segments), strict=True)
        for _ in range(a, b)
    ]
    assert owner == [winner_at(t, intervals.tolist(), priority) for t in range(start, end)]
    assert (segments.owner[1:] != segments.owner[:-1]).all()
    assert (segments.end[:-1] == segments.start[1:]).all()
