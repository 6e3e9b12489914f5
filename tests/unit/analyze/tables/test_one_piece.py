"""A table of several files in one piece: the same rows as file by file, each column at one place."""

import shutil
import weakref

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.load.load import load_trace
from meshscope.analyze.synthetic import SyntheticJob, make_simulation, record, write_run
from meshscope.analyze.tables.one_piece import read_in_one_piece
from meshscope.analyze.tables.stored_tables import Tables, read_tables
from meshscope.probe.schema.errors import RunDirectoryError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

DTYPES = {"rank": "int32", "end_ns": "int64", "kind": "category", "share": "float64"}


@pytest.fixture
def files(tmp_path):
    """Return three files: of several row groups, without a column, and with names as plain text."""
    tables = [
        {"rank": [0, 0, 1], "end_ns": [5, None, 1 << 60], "kind": ["b", None, "a"]},
        {"rank": [2, 2], "kind": ["c", "a"], "share": [None, 0.5]},
        {"rank": [3], "end_ns": [7], "kind": ["b"], "share": [0.25]},
    ]
    found = []
    for number, columns in enumerate(tables):
        table = pa.table(
            {name: pa.array(own, kind_of(name, number)) for name, own in columns.items()}
        )
        found.append(tmp_path / f"{number}.parquet")
        pq.write_table(table, found[-1], row_group_size=2)
    return found


def kind_of(name, number):
    """Return the type of a column in one of the files."""
    names = pa.string() if number == 2 else pa.dictionary(pa.int32(), pa.string())
    return {"rank": pa.int32(), "end_ns": pa.int64(), "kind": names, "share": pa.float64()}[name]


def test_rows_are_those_of_the_files(files):
    """Fails when a rank gets the times or the names of another one, or an unknown end becomes a known one."""
    table = read_in_one_piece(files, DTYPES)
    assert table.to_pydict() == {
        "rank": [0, 0, 1, 2, 2, 3],
        "end_ns": [5, None, 1 << 60, None, None, 7],
        "kind": ["b", None, "a", "c", "a", "b"],
        "share": [None, None, None, None, 0.5, 0.25],
    }


def test_each_column_is_at_one_place(files):
    """Fails when what comes after a table of all ranks cannot use its memory: a fifth more in all."""
    table = read_in_one_piece(files, DTYPES)
    assert {table[name].num_chunks for name in DTYPES} == {1}


@pytest.fixture(scope="module")
def segmented(tmp_path_factory):
    """Return a run whose tables are in segments."""
    job = SyntheticJob(layout=ParallelLayout(tp=1, pp=2, dp=130), microbatches=1, steps=2)
    return write_run(job, record(make_simulation(job)), None, tmp_path_factory.mktemp("runs"))


def test_a_damaged_segment_is_named(segmented, tmp_path):
    """Fails when one broken file of thousands is a traceback, or nobody learns which one it is."""
    whole = sorted((segmented / "tables" / "p2p").glob("*.parquet"))
    broken = tmp_path / "p2p" / "ranks=00256-00511.parquet"
    broken.parent.mkdir()
    broken.write_bytes(whole[1].read_bytes()[:-40])
    with pytest.raises(RunDirectoryError) as refused:
        read_tables(TABLES["p2p"], [whole[0], broken])
    assert str(broken) in str(refused.value.where)


def test_matched_communication_does_not_keep_its_tables(segmented):
    """Fails when the tables of thousands of ranks stay beside the events made of them: a fifth of all memory."""
    trace = load_trace(segmented)
    before = {name: trace.tables[name] for name in ("collective", "p2p")}
    held = {name: weakref.ref(table) for name, table in before.items()}
    rows = {name: table.to_pydict() for name, table in before.items()}
    del before
    communication_events(trace, step_windows(trace))
    assert [own() for own in held.values()] == [None, None]
    assert trace.row_count("p2p") == len(rows["p2p"]["rank"])
    assert {name: trace.tables[name].to_pydict() for name in rows} == rows


def test_a_run_that_is_compacted_meanwhile_is_said_to_be(segmented, tmp_path):
    """Fails when a run that another program compacts while it is analysed is called damaged."""
    run = tmp_path / "run"
    shutil.copytree(segmented, run)
    trace = load_trace(run)
    communication_events(trace, step_windows(trace))
    for file in (run / "tables" / "p2p").iterdir():
        file.unlink()
    with pytest.raises(RunDirectoryError) as refused:
        trace.frame("p2p")
    assert refused.value.said["what"].code == "refused.gone_while_read"


def test_a_changed_table_is_not_let_go():
    """Fails when a corrected clock is lost, because the table is read again as it was."""
    first, second = pa.table({"rank": [1]}), pa.table({"rank": [2, 3]})
    tables = Tables({"span": first, "p2p": first}, again={"span": lambda: first})
    changed = tables.with_changes({"span": second})
    for one in (tables, changed):
        one.let_go("span")
        one.let_go("p2p")
    assert (tables["span"], tables["p2p"]) == (first, first)
    assert (changed["span"], changed.row_count("span")) == (second, 2)
