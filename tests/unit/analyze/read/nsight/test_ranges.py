"""Which NVTX range is the innermost around an instant."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.read.nsight.ranges import Ranges, innermost


def ranges_of(rows):
    """Return ranges of (thread, start, end)."""
    thread, start, end = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    zeros = np.zeros(len(rows), dtype=np.int64)
    return Ranges(
        start=start, end=end, thread=thread, name=zeros, nests=zeros == 0, row=np.arange(len(rows))
    )


def nested(draw_lengths, start=0, depth=0):
    """Yield ranges that nest: a list of numbers becomes siblings, with children in them."""
    for length in draw_lengths:
        yield start, start + length
        if length > 3 and depth < 3:
            yield from nested([length // 2, length // 4], start, depth + 1)
        start += length


@given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 20), max_size=6)), max_size=3),
    st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 130)), max_size=20),
    st.randoms(use_true_random=False),
)
def test_the_innermost_range_is_the_shortest_that_holds_the_instant(threads, asked, random):
    """A kernel would be given to another operator than the one that launched it."""
    rows = [
        (thread, start, end)
        for thread, lengths in dict(threads).items()
        for start, end in nested(lengths)
    ]
    if not rows:
        return
    random.shuffle(rows)
    times = np.array([time for _, time in asked], dtype=np.int64)
    on = np.array([thread for thread, _ in asked], dtype=np.int64)
    found = innermost(ranges_of(rows), times, on).tolist()
    for (thread, time), place in zip(asked, found, strict=True):
        around = [e - s for t, s, e in rows if t == thread and s <= time < e]
        if place < 0:
            assert not around
        else:
            t, start, end = rows[place]
            assert t == thread
            assert start <= time < end
            assert end - start == min(around)
