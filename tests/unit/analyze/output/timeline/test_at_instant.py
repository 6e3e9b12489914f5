"""What a rank did at an instant of a step, and whom it waited for."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from meshscope.analyze import Trace
from meshscope.analyze.align.clocks import alignment
from meshscope.analyze.output.timeline.at_instant import (
    slice_at,
    step_transfers,
    transfer_at,
    waiting_until,
)
from meshscope.analyze.output.timeline.categories import Category
from meshscope.analyze.output.timeline.slices import (
    of_ranks,
    step_slices,
    with_pinned,
    without_categories,
)
from meshscope.analyze.wording.message import message
from meshscope.probe.schema.tables import TABLES

BUSY = {"step": 1, "stage": 0, "chunk": 0, "microbatch": 5, "cpu_ns": None, "kind": "forward"}
REDUCE = {
    "step": 1,
    "group_id": "dp",
    "axis": "dp",
    "kind": "all_reduce",
    "seq": 0,
    "size_bytes": 64,
    "dtype": None,
    "source": "imported",
    "event_id": 1,
}
WORK_NS = {0: 300, 1: 700, 2: 900}
END_NS = 1000
"""All leave the reduction then; the last one came at 900, so the transfer took 100."""


@pytest.fixture
def trace():
    """Return a job whose clocks agree."""
    return job()


def job(ahead_ns=0):
    """Return three ranks of one step that compute for a while, and then reduce; rank 1's clock is ahead."""
    rows = {"step": [], "span": [], "collective": []}
    for rank, work in WORK_NS.items():
        begin = ahead_ns * (rank == 1)
        rows["step"].append(
            {"rank": rank, "step": 1, "start_ns": begin, "dur_ns": END_NS, "tokens": None}
        )
        rows["span"].append({"rank": rank, **BUSY, "start_ns": begin, "dur_ns": work})
        stamps = {
            "issue_ns": begin + work,
            "start_ns": begin + work,
            "end_ns": begin + END_NS,
        }
        rows["collective"].append({"rank": rank, **REDUCE, **stamps})
    tables = {name: TABLES[name].conform(pa.Table.from_pylist(own)) for name, own in rows.items()}
    return Trace(
        path=Path("run"),
        run={},
        origin="foreign",
        ranks=tuple(WORK_NS),
        layout=None,
        tables=tables,
    )


def test_a_wait_names_its_length_and_who_came_last(trace):
    """Fails when a click on a wait tells another length than the account, or another culprit."""
    transfers = step_transfers(trace, 1)
    early = transfer_at(transfers, 0, 500)
    assert (early.kind, early.axis, early.group_id, early.size_bytes) == (
        "all_reduce",
        "dp",
        "dp",
        64,
    )
    assert early.ranks == (0, 1, 2)
    assert (early.waited_ns, early.wire_ns, early.waited_for) == (600, 100, 2)
    assert (early.came_ns, early.until_ns) == (900, 900)
    last = transfer_at(transfers, 2, 950)
    assert (last.waited_ns, last.waited_for) == (0, None)
    assert (last.came_ns, last.until_ns) == (None, None)


def test_clocks_that_differ_do_not_change_who_came_last():
    """Fails when a rank whose clock is ahead is named in place of the one that all waited for."""
    apart = replace(job(ahead_ns=250), limits=(message(alignment._NOT_COMPARED),))
    found = transfer_at(step_transfers(apart, 1), 0, 500)
    assert (found.waited_ns, found.waited_for) == (600, 2)


def test_where_a_rank_computes_it_is_in_no_transfer(trace):
    """Fails when a click on a computation tells of an operation beside it."""
    assert transfer_at(step_transfers(trace, 1), 2, 500) is None


def test_a_step_that_cannot_be_analysed_has_no_transfers(trace):
    """Fails when the page breaks on a step that only one rank recorded."""
    assert step_transfers(trace, 7) is None


def test_the_slice_under_a_pointer(trace):
    """Fails when a row or a time is told to be another rank's or another slice's."""
    drawn = step_slices(trace, 1)
    found = slice_at(drawn, 1, 699)
    assert (found["rank"], found["text"], found["microbatch"]) == (
        1,
        "forward, stage 0, microbatch 5",
        5,
    )
    assert slice_at(drawn, 1, 700)["text"].startswith("all-reduce")
    assert slice_at(drawn, 1, END_NS) is None
    assert slice_at(drawn, 9, 10) is None


def test_pinned_ranks_come_first_and_once(trace):
    """Fails when a pinned rank is shown twice, loses slices, or takes those of another row."""
    drawn = step_slices(trace, 1)
    found = with_pinned(drawn, of_ranks(drawn, [2, 8], ()))
    assert found.ranks == (2, 0, 1)
    assert found.labels[0].endswith("rank 2")
    assert (found.slices["rank"] == found.slices["row"].map(dict(enumerate(found.ranks)))).all()
    assert len(found.slices) == len(drawn.slices)
    assert with_pinned(drawn, of_ranks(drawn, [8], ())) is drawn


def test_an_operation_without_a_known_end_leaves_the_others_as_they_are(trace):
    """Fails when one end that nobody saw takes the hatching from all waits."""
    table = trace.tables["collective"]
    ends = pa.array([None, END_NS, END_NS], table.schema.field("end_ns").type)
    place = table.column_names.index("end_ns")
    cut = replace(
        trace, tables={**trace.tables, "collective": table.set_column(place, "end_ns", ends)}
    )
    drawn = step_slices(trace, 1)
    until = waiting_until(drawn.slices, step_transfers(cut, 1), drawn.origin_ns)
    waits = until - drawn.slices["start_ns"].to_numpy()
    is_reduce = drawn.slices["text"].str.startswith("all-reduce").to_numpy()
    assert waits[is_reduce].tolist() == [0, 200, 0]
    assert not waits[~is_reduce].any()


def test_what_is_left_out_leaves_the_rows_as_they_are(trace):
    """Fails when a class that is left out takes another with it, or moves the rows."""
    drawn = step_slices(trace, 1)
    found = without_categories(drawn, [Category.COMM_DP])
    assert found.ranks == drawn.ranks
    assert set(found.slices["category"]) == {Category.FORWARD}
    assert len(found.slices) == len(WORK_NS)
    assert without_categories(drawn, []) is drawn


def test_waiting_ends_where_the_transfer_begins(trace):
    """Fails when a figure shows a rank that waits as one that transfers, or one that computes as waiting."""
    drawn = step_slices(trace, 1)
    until = waiting_until(drawn.slices, step_transfers(trace, 1), drawn.origin_ns)
    ends = {
        (row["rank"], row["text"].split()[0]): int(end - row["start_ns"])
        for (_, row), end in zip(drawn.slices.iterrows(), until, strict=True)
    }
    assert ends == {
        (0, "forward,"): 0,
        (1, "forward,"): 0,
        (2, "forward,"): 0,
        (0, "all-reduce"): 600,
        (1, "all-reduce"): 200,
        (2, "all-reduce"): 0,
    }
