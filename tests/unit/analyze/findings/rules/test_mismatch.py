"""Lines of operations that differ: where ranks stand in them now, else where the first of their like was issued."""

import pyarrow as pa
import pytest
from tests.tables import trace_of

from meshscope.analyze.findings.rules.mismatch import _line, mismatch_findings
from meshscope.analyze.wording.message import message
from meshscope.probe.schema.standstill_tables import STANDING
from meshscope.probe.schema.tables import TABLES

C10D = "/v/site-packages/torch/distributed/distributed_c10d.py"
GRAPH = "/v/site-packages/torch/autograd/graph.py"
LOAD = "/job/data.py"


def job(*, later=(), places=(("_engine_run_backward", GRAPH), ("barrier", C10D))):
    """Return a capture in which rank 2 issued a barrier in place of a reduction of 0 and 1.

    Args:
        later: Ranks that issued another operation after that.
        places: The function and file in which 0 and 1 stand, and in which 2 stands.
    """
    row = {"group_id": "g", "start_ns": 9, "end_ns": None, "source": "host_issue"}
    kinds = {0: "all_reduce", 1: "all_reduce", 2: "barrier"}
    rows = [
        {**row, "rank": rank, "seq": seq, "kind": kind, "event_id": seq}
        for rank, kind in kinds.items()
        for seq in range(2 if rank in later else 1)
    ]
    stood = [
        {
            "rank": rank, "depth": depth, "function": function, "file": file, "line": line,
            "goes_on": False, "moment": "standstill", "time_ns": 9,
        }
        for rank in kinds
        for own, line in ((places[rank == 2], 40 if rank == 2 else 25),)
        for depth, (function, file) in enumerate((own, ("main", "/job/train.py")))
    ]  # fmt: skip
    like = {
        "group_id": "g",
        "peer": -1,
        "dtype": "float32",
        "size_bytes": 1024,
        "function": "setup",
    }
    trace = trace_of(
        ranks=(0, 1, 2),
        group=[{"group_id": "g", "ranks": [0, 1, 2]}],
        collective=rows,
        progress=[
            {"rank": rank, "group_id": "g", "issued_seq": int(rank in later)} for rank in kinds
        ],
    )
    places_of_likes = [
        {**like, "rank": rank, "kind": kind, "file": "/job/train.py", "line": 3}
        for rank, kind in kinds.items()
    ]
    return trace.with_tables(
        {
            spec.name: spec.conform(pa.Table.from_pylist(rows))
            for spec, rows in ((STANDING, stood), (TABLES["call_place"], places_of_likes))
        }
    )


@pytest.mark.parametrize(
    ("facts", "lines"),
    [
        ({}, ["at main (train.py:40)", "at main (train.py:25)"]),
        ({"later": (0, 1)}, ["at main (train.py:40)", "first at /job/train.py:3 in setup"]),
        (
            {"places": (("load", LOAD), ("barrier", C10D))},
            ["at main (train.py:40)", "first at /job/train.py:3 in setup"],
        ),
    ],
    ids=["all stand in it", "two went on to another", "two stand elsewhere"],
)
def test_the_line_is_that_of_this_operation_where_ranks_stand_in_it(facts, lines):
    """Fails when the line of a start-up exchange of the same size is shown for the one that hangs."""
    (finding,) = mismatch_findings(job(**facts), ())
    assert finding.where["ranks"] == [2]
    for fact, line in zip(finding.evidence[:2], lines, strict=True):
        assert str(fact).endswith(line)


def test_one_line_is_one_however_it_is_known():
    """Fails when the reader is asked to compare a line with itself."""
    stood = message("mismatch.issued_at", ranks=(0,), issue="", place="main (/job/train.py:3)")
    noted = message(
        "mismatch.issued_first_at", ranks=(0,), issue="", file="/job/train.py", line=3, function="f"
    )
    assert _line(stood) == _line(noted) == "train.py:3"
    assert _line(message("mismatch.issued", ranks=(0,), issue="")) == ""
