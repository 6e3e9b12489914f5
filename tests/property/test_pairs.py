"""Begin and end events are paired as a stack per thread would pair them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.read.kineto.chrome_pairs import pair_positions


def by_stack(events):
    """Return the pairs that a stack per thread gives."""
    stacks, pairs = {}, set()
    for i in sorted(range(len(events)), key=lambda i: events[i][1]):
        thread, _, is_begin = events[i]
        stack = stacks.setdefault(thread, [])
        if is_begin:
            stack.append(i)
        elif stack:
            pairs.add((stack.pop(), i))
    return pairs


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.booleans()), max_size=24))
def test_pairs_are_those_of_a_stack_per_thread(events):
    """An end would close another event than the last open one of its thread."""
    columns = zip(*events, strict=True) if events else ([], [], [])
    thread, time, is_begin = columns
    begin, end = pair_positions(
        np.array(thread, dtype=np.int64),
        np.array(time, dtype=np.int64),
        np.array(is_begin, dtype=bool),
    )
    assert set(zip(begin.tolist(), end.tolist(), strict=True)) == by_stack(events)
