"""The part of a transfer's time that no size explains, by algebra."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.align.communication.fixed_time import fixed_times


def transfers(rows):
    """Return transfers from (kind, size, wire)."""
    frame = pd.DataFrame(rows, columns=["kind", "size_bytes", "wire_ns"])
    return frame.assign(axis="dp", members=4)


@given(
    fixed=st.floats(10.0, 1e6),
    byte_ns=st.floats(1e-3, 10.0),
    sizes=st.lists(st.integers(1, 1 << 30), min_size=2, max_size=6, unique=True),
)
def test_a_line_gives_back_its_fixed_time(fixed, byte_ns, sizes):
    """Fails when latency is taken for bandwidth, so that a narrower type would return too much."""
    table = fixed_times(
        transfers([("all_reduce", s, fixed + byte_ns * s) for s in sizes for _ in range(3)])
    )
    row = table.iloc[0]
    assert row["low_ns"] <= row["fixed_ns"] <= row["high_ns"]
    assert row["low_ns"] <= fixed * (1 + 1e-6) + 1e-6
    assert row["high_ns"] >= min(fixed, fixed + byte_ns * min(sizes)) * (1 - 1e-6)


def test_one_size_leaves_it_open():
    """Fails when a fixed time is made up where all operations are equal."""
    row = fixed_times(transfers([("all_reduce", 1000, 50.0)] * 4)).iloc[0]
    assert (row["low_ns"], row["high_ns"]) == (0.0, 50.0)
    assert not row["is_fitted"]


def test_small_operations_of_other_kinds_bound_it():
    """Fails when an all-reduce may have a longer fixed time than two of the smallest operations."""
    rows = [("all_reduce", 1000, 50.0)] * 4 + [("broadcast", 8, 3.0)] * 4
    table = fixed_times(transfers(rows))
    high = dict(zip(table.index.get_level_values("kind"), table["high_ns"], strict=True))
    assert high["all_reduce"] == 6.0


def test_what_queues_is_no_fixed_time():
    """Fails when small operations that wait behind large ones make all time look fixed."""
    small = [("all_reduce", 4, 10.0)] * 5 + [("all_reduce", 4, 900.0)] * 5
    large = [("all_reduce", 10_000, 1010.0)] * 10
    assert fixed_times(transfers(small + large)).iloc[0]["fixed_ns"] == pytest.approx(10, rel=0.05)
    assert np.isfinite(fixed_times(transfers(small)).iloc[0]["fixed_ns"])
