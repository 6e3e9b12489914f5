"""Circles of waiting: which message was never issued, or who stands at another line, is said first."""

import pyarrow as pa
import pytest
from tests.tables import trace_of

from meshscope.analyze.findings.rules.hang import hang_findings
from meshscope.probe.schema.standstill_tables import STANDING


def circle(lines=()):
    """Return a dump in which rank 0 waits in a reduction of all, 1 and 2 for a message of the rank before them."""
    receive = {"group_id": "p", "start_ns": 10, "end_ns": None, "seq": 0, "direction": "recv"}
    trace = trace_of(
        origin="flight_recorder",
        ranks=(0, 1, 2),
        group=[{"group_id": "p", "ranks": [0, 1, 2]}],
        progress=[
            {"rank": rank, "group_id": "p", "issued_seq": rank == 0, "completed_seq": 0}
            for rank in range(3)
        ],
        collective=[
            {"rank": 0, "group_id": "p", "seq": 1, "start_ns": 10, "end_ns": None, "event_id": 1}
        ],
        p2p=[{**receive, "rank": rank, "peer": rank - 1, "event_id": 1} for rank in (1, 2)],
    )
    rows = [
        {
            "rank": rank, "depth": depth, "function": "f", "file": file, "line": line,
            "goes_on": False, "moment": "standstill", "time_ns": 9,
        }
        for rank, own in enumerate(lines)
        for depth, (file, line) in enumerate((("/v/site-packages/torch/c.py", 1), ("/job/a.py", own)))
    ]  # fmt: skip
    standing = STANDING.conform(pa.Table.from_pylist(rows)) if rows else STANDING.empty()
    return trace.with_tables({"standing": standing})


def test_the_message_that_holds_up_the_others_is_named():
    """Fails when the reader of a deadlock has to find out which of many waits was the first."""
    finding = next(hang_findings(circle()))
    said = "Deadlock: rank 1 waited for transfer 0->1, which rank 0 never issued"
    assert str(finding.claim) == said
    assert "Check transfer 0->1: rank 0 never issued the other end" in str(finding.remedy)


@pytest.mark.parametrize(("lines", "is_apart"), [((7, 9, 9), True), ((7, 8, 9), False)])
def test_who_stands_at_another_line_than_the_rest_is_named(lines, is_apart):
    """Fails when one rank of many made other groups, and all are said to be in a circle."""
    trace = circle(lines).with_tables({"p2p": circle().tables["p2p"].slice(0, 0)})
    trace = trace.with_tables(_reductions(trace))
    claim = str(next(hang_findings(trace)).claim)
    assert (
        claim == "Deadlock: rank 0 waited at f (a.py:7), ranks 1 and 2 at f (a.py:9)"
    ) is is_apart


def _reductions(trace):
    """Return tables of a circle of reductions in groups of two."""
    groups = {"a": (0, 1), "b": (1, 2), "c": (0, 2)}
    opened = {0: "a", 1: "b", 2: "c"}
    found = trace_of(
        ranks=(0, 1, 2),
        group=[{"group_id": name, "ranks": list(ranks)} for name, ranks in groups.items()],
        progress=[
            {"rank": rank, "group_id": name, "issued_seq": opened[rank] == name, "completed_seq": 0}
            for name, ranks in groups.items()
            for rank in ranks
        ],
        collective=[
            {"rank": rank, "group_id": name, "seq": 1, "start_ns": 9, "end_ns": None, "event_id": 1}
            for rank, name in opened.items()
        ],
    )
    return {name: found.tables[name] for name in ("group", "progress", "collective")}


def test_who_has_swapped_two_groups_is_named_by_the_lines_of_a_dump():
    """Fails when the dumps of a job in which one rank swaps two groups name all of its ranks, and not that one."""
    first = {0: "a", 1: "a", 2: "b"}
    rows = [
        {"rank": rank, "group_id": group, "seq": 1, "start_ns": 10, "end_ns": None}
        for rank, group in first.items()
    ]
    trace = trace_of(
        origin="flight_recorder",
        ranks=(0, 1, 2),
        group=[{"group_id": group, "ranks": [0, 1, 2]} for group in "ab"],
        progress=[
            {"rank": rank, "group_id": group, "issued_seq": group == own, "completed_seq": 0}
            for rank, own in first.items()
            for group in "ab"
        ],
        collective=rows,
        collective_call=[
            {"rank": row["rank"], "group_id": row["group_id"], "seq": 1,
             "place": f"step (t.py:{7 if row['group_id'] == 'b' else 9})"}
            for row in rows
        ],
    )  # fmt: skip
    claim = str(next(hang_findings(trace)).claim)
    assert claim == "Deadlock: rank 2 waited at step (t.py:7), ranks 0 and 1 at step (t.py:9)"
