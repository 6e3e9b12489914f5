"""Chains of gradient buckets against a simulation operation by operation."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.explain.whatif.buckets import chain_ends


def chain(start, size, fixed, byte_ns, begin=0.0):
    """Return one chain of operations that take fixed + byte_ns x size each."""
    size = np.array(size)
    return pd.DataFrame(
        {
            "chain": 0,
            "size_bytes": size,
            "start_ns": np.array(start, np.float64),
            "begin_ns": begin,
            "wire_ns": fixed + byte_ns * size,
            "fixed_ns": float(fixed),
        }
    )


def in_turn(ready, taken):
    """Return when operations end that run one after the other."""
    end = 0.0
    for begin, length in zip(ready, taken, strict=True):
        end = max(end, begin) + length
    return end


def test_one_bucket_saves_fixed_times_and_begins_late():
    """Fails when merging is free of the wait for the last gradient, or saves no latency."""
    rows = chain([10, 20, 30, 40], [100] * 4, fixed=2, byte_ns=0.05)
    now, then, buckets = chain_ends(rows, None)
    assert now[0] == pytest.approx(in_turn([10, 20, 30, 40], [7] * 4)) == 47
    assert (then[0], buckets[0]) == (40 + 2 + 20, 1)


def test_latency_alone_is_shared_by_fewer_operations():
    """Fails when few large operations are not preferred where all are issued at once."""
    rows = chain([40] * 4, [100] * 4, fixed=10, byte_ns=0.01, begin=40.0)
    now, then, _ = chain_ends(rows, None)
    assert (now[0], then[0]) == (40 + 44, 40 + 14)


@given(
    gaps=st.lists(st.floats(0.1, 50.0), min_size=1, max_size=6),
    fixed=st.floats(0.0, 20.0),
    number=st.integers(1, 12),
)
def test_equal_buckets_by_simulation(gaps, fixed, number):
    """Fails when the formula of the chain is not what operations in turn take."""
    start = np.cumsum(gaps)
    rows = chain(start, [120] * len(start), fixed=fixed, byte_ns=0.1)
    total = 120 * len(start)
    now, then, buckets = chain_ends(rows, total / number + 1e-6)
    assert now[0] == pytest.approx(in_turn(start, [fixed + 12] * len(start)))
    shares = np.arange(1, number + 1) / number
    ready = np.interp(shares, np.arange(len(start) + 1) / len(start), np.append(0.0, start))
    assert buckets[0] == number
    assert then[0] == pytest.approx(in_turn(ready, [fixed + 0.1 * total / number] * number))
