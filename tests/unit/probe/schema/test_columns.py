"""Tables of any origin against their declared columns."""

import datetime
from contextlib import suppress
from decimal import Decimal

import pyarrow as pa
import pytest

from meshscope.probe.schema.columns import Column, TableSpec
from meshscope.probe.schema.errors import SchemaError
from meshscope.probe.schema.tables import TABLES

FOREIGN = {
    "nulls": pa.nulls(1),
    "bytes": pa.array([b"\xff"]),
    "date": pa.array([datetime.date(2026, 1, 2)]),
    "decimal": pa.array([Decimal("1.5")]),
    "duration": pa.array([datetime.timedelta(1)]),
    "infinity": pa.array([float("inf")]),
    "keys": pa.array([1]).dictionary_encode(),
    "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
    "runs": pa.RunEndEncodedArray.from_arrays([1], pa.array([1])),
    "struct": pa.array([{"a": 1}]),
    "text": pa.array(["a"]),
    "texts": pa.array([["a"]]),
    "union": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
    "wide": pa.array([2**63], pa.uint64()),
}


@pytest.mark.parametrize("dtype", ["int32", "float64", "string", "category", "bool", "list<int32>"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_column_of_a_foreign_type_fits_or_is_named(kind, dtype):
    """Fails when a column of another tool's file ends in a traceback, or keeps its type."""
    spec = TableSpec("t", "a row", (Column("x", dtype, "id", "anything", nullable=True),))
    with suppress(SchemaError):
        assert spec.conform(pa.table({"x": FOREIGN[kind]})).schema == spec.arrow_schema()


def test_a_map_is_no_list():
    """Fails when the one type whose refusal has an error of its own is not refused in our words."""
    spec = TableSpec("t", "a row", (Column("x", "list<int32>", "id", "anything"),))
    with pytest.raises(SchemaError, match=r"t\.x: is not list<int32>"):
        spec.conform(pa.table({"x": FOREIGN["map"]}))


def test_instants_are_distinguished_from_lengths():
    """Fails when a new column of nanoseconds would move with a clock that is corrected, or stay behind."""
    columns = {c.name: c.is_instant for table in TABLES.values() for c in table.columns}
    in_ns = {c.name for table in TABLES.values() for c in table.columns if c.unit == "ns"}
    instants = {name for name in in_ns if columns[name]}
    assert instants == {
        *("start_ns", "end_ns", "issue_ns", "wait_start_ns", "wait_end_ns", "launch_ns", "time_ns"),
        *("device_start_ns", "alive_ns", "ended_ns", "start_unix_ns", "end_unix_ns"),
    }
    assert in_ns - instants == {
        *("dur_ns", "min_dur_ns", "max_dur_ns", "wait_ns", "min_wait_ns", "max_wait_ns"),
        *("cpu_ns", "cost_ns", "queued_ns", "device_dur_ns", "offset_ns", "error_ns"),
    }
