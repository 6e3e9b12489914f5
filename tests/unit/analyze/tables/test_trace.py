"""Frames of a capture: declared columns, exact integers."""

import pyarrow as pa
import pytest
from tests.tables import trace_of

from meshscope.probe.schema.tables import TABLES


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_table_that_is_not_there_is_empty_with_its_columns(name):
    """Every analysis would have to ask which tables a capture has."""
    frame = trace_of().frame(name)
    assert len(frame) == 0
    assert tuple(frame.columns) == TABLES[name].column_names()


def test_times_of_unix_size_beside_unknown_ones_stay_exact():
    """Nanoseconds would be rounded to hundreds by a float column."""
    exact = 1_700_000_000_123_456_789
    rows = [{"start_ns": exact, "end_ns": None}, {"start_ns": exact, "end_ns": exact + 1}]
    frame = trace_of(collective=rows).frame("collective")
    assert int(frame["end_ns"][1]) == exact + 1
    assert frame["end_ns"].isna().tolist() == [True, False]


def test_a_frame_is_made_once():
    """Each analysis would convert all tables again."""
    trace = trace_of(span=[{"kind": "forward", "start_ns": 0, "dur_ns": 1}])
    assert trace.frame("span") is trace.frame("span")
    assert isinstance(trace.tables["span"], pa.Table)
