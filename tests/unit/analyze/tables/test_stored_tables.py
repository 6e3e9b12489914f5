"""Tables on disk: the rows of one rank at a time, the same rows as in memory."""

import os

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.tables import trace_of

from meshscope.analyze.account.kernels.breakdown import device_breakdown
from meshscope.analyze.tables.stored_tables import Tables, open_stored, write_table
from meshscope.probe.schema.errors import RunDirectoryError

ROWS = [
    {"rank": rank, "start_ns": 10 * at + rank, "dur_ns": 5, "category": kind, "launch_ns": launch}
    for rank in (0, 3)
    for at, (kind, launch) in enumerate(
        [("compute", 1_700_000_000_123_456_789), ("communication", None), ("memcpy", 7)]
    )
]


@pytest.fixture
def in_memory():
    """Return a capture whose kernels are in memory."""
    return trace_of(kernel=ROWS, step=[{"rank": rank, "dur_ns": 99} for rank in (0, 3)])


@pytest.fixture
def on_disk(in_memory, tmp_path):
    """Return the same capture with its kernels on disk, in files of two row groups."""
    files = {}
    for rank in in_memory.ranks:
        rows = in_memory.rank_table("kernel", rank)
        files[rank] = tmp_path / f"{rank}.parquet"
        write_table(files[rank], "kernel", [rows.slice(0, 2), rows.slice(2)])
    return in_memory.with_tables({"kernel": open_stored("kernel", files)})


def test_disk_and_memory_give_the_same(in_memory, on_disk):
    """A large capture would be analysed with other rows than a small one."""
    assert on_disk.row_count("kernel") == in_memory.row_count("kernel") == 6
    assert on_disk.tables["kernel"].equals(in_memory.tables["kernel"])
    for rank in (0, 3, 9):
        one, other = (trace.rank_frame("kernel", rank) for trace in (on_disk, in_memory))
        pd.testing.assert_frame_equal(one, other.reset_index(drop=True), check_categorical=False)
    pd.testing.assert_frame_equal(device_breakdown(on_disk), device_breakdown(in_memory))


def test_columns_can_be_chosen(in_memory, on_disk):
    """Every analysis would read all columns of all kernels."""
    for trace in (in_memory, on_disk):
        assert trace.rank_table("kernel", 3, ["dur_ns", "rank"]).column_names == ["dur_ns", "rank"]
        assert list(trace.rank_frame("kernel", 3, ["category"])) == ["category"]


def test_a_change_reaches_every_reader_and_the_files_stay(in_memory, on_disk):
    """A clock would be corrected in one analysis and not in the next, or twice."""

    def later(rank: int, rows: pa.Table) -> pa.Table:
        place = rows.column_names.index("start_ns")
        return rows.set_column(place, rows.schema.field(place), pc.add(rows["start_ns"], rank))

    for trace in (in_memory, on_disk):
        changed = trace.with_changed_ranks("kernel", later).with_changed_ranks("kernel", later)
        assert changed.rank_frame("kernel", 3, ["start_ns"])["start_ns"].tolist() == [9, 19, 29]
        assert changed.frame("kernel")["start_ns"].tolist() == [0, 10, 20, 9, 19, 29]
        assert trace.frame("kernel")["start_ns"].tolist() == [0, 10, 20, 3, 13, 23]


def test_replacing_one_table_reads_no_other(on_disk):
    """Every step of loading would read all kernels into memory."""
    os.unlink(on_disk.stored("kernel").files[0])
    step = on_disk.tables["step"].slice(0, 1)
    changed = on_disk.with_tables({"step": step})
    assert changed.row_count("step") == 1
    assert changed.stored("kernel") is on_disk.stored("kernel")
    with pytest.raises(RunDirectoryError, match="damaged"):
        changed.rank_table("kernel", 0)


def test_a_torn_file_is_found_when_it_is_opened(on_disk):
    """The damage would show in the middle of an analysis, or as missing rows."""
    file = on_disk.stored("kernel").files[3]
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(RunDirectoryError, match=r"table .* is damaged"):
        open_stored("kernel", {3: file})


def test_tables_are_listed_in_the_order_of_the_reference(on_disk):
    """Tables on disk would be missing from exports and from what was understood."""
    assert list(on_disk.tables) == ["step", "kernel"]
    assert len(on_disk.tables) == 2
    assert isinstance(on_disk.tables, Tables)
