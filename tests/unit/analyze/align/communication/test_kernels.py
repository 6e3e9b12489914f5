"""The axis of a communication kernel by the operation that was issued before its launch."""

import pandas as pd
import pytest
from tests.tables import trace_of

from meshscope.analyze.align.communication.kernels import axis_by_launch


def trace(*issued):
    """Return a capture with collectives of the given issues and axes."""
    rows = [{"start_ns": at, "end_ns": at + 1, "axis": axis} for at, axis in issued]
    return trace_of(step=[{"start_ns": 0, "dur_ns": 100}], collective=rows)


@pytest.mark.parametrize(
    ("issued", "launches", "axes"),
    [
        ([(10, "dp"), (20, "tp")], [12, 22], ["dp", "tp"]),
        ([(10, "dp"), (20, "tp")], [22, 12], ["tp", "dp"]),
        ([(10, "pp"), (20, "pp")], [22], ["pp"]),
        ([(10, "dp"), (20, "tp")], [22], ["other"]),
        ([(10, "dp")], [12, 14], ["other", "other"]),
        ([(10, "dp"), (20, "tp")], [12, 14, 22], ["other", "other", "tp"]),
        ([(10, "dp")], [5], ["other"]),
        ([(10, "dp")], [None, 12], ["other", "dp"]),
        ([], [5], ["other"]),
        ([(10, "dp")], [], []),
    ],
    ids=["own", "unsorted", "coalesced", "two axes", "unrecorded", "one unrecorded", "before",
         "no launch", "nothing issued", "no kernel"],
)  # fmt: skip
def test_an_axis_is_reported_only_where_it_is_certain(issued, launches, axes):
    """Fails if a kernel is given the axis of an operation that may not be its own."""
    launch_ns = pd.Series(launches, dtype="Int64")
    assert axis_by_launch(trace(*issued), 0, launch_ns).tolist() == axes
