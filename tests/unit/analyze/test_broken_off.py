"""How far the ranks of a killed run of ours came."""

import pyarrow as pa
from tests.tables import trace_of

from meshscope.analyze.broken_off import progress_at_the_end

CLOSED, KILLED = {"closed_unix_ns": 5}, {"closed_unix_ns": None}


def progress(rows, manifests, ranks=(0, 1)):
    """Return issued and completed numbers by rank and group."""
    group = [{"group_id": name, "ranks": list(ranks)} for name in ("a", "b")]
    collective = [
        {"rank": rank, "group_id": name, "seq": seq, "start_ns": 0, "end_ns": None}
        for rank, name, seq in rows
    ]
    tables = trace_of(group=group, collective=collective).tables
    empty = pa.table({})
    found = progress_at_the_end(tables.get("collective", empty), tables["group"], manifests)
    return {
        (row["rank"], row["group_id"]): (row["issued_seq"], row["completed_seq"])
        for row in found.to_pylist()
    }


def test_a_run_that_ended_in_order_has_none():
    """Healthy runs would be searched for hangs."""
    assert progress([(0, "a", 4), (1, "a", 3)], {0: CLOSED, 1: CLOSED}) == {}
    assert progress([], {0: KILLED}) == {}


def test_the_last_number_of_each_rank_and_group():
    """A rank would look behind, or ahead, of where it was."""
    rows = [(0, "a", 3), (0, "a", 4), (1, "a", 3), (0, "b", 1), (1, "b", 2)]
    found = progress(rows, {0: KILLED, 1: CLOSED})
    assert found == {
        (0, "a"): (4, None),
        (1, "a"): (3, 3),
        (0, "b"): (1, None),
        (1, "b"): (2, 2),
    }


def test_a_member_without_rows_is_behind_only_where_nothing_can_be_lost():
    """A rank whose old records were dropped would be blamed, or one that never came be missed."""
    found = progress([(0, "a", 0), (0, "b", 8), (0, "b", 9)], {0: KILLED, 1: KILLED}, (0, 1, 2))
    assert found == {(0, "a"): (0, None), (1, "a"): (-1, None), (0, "b"): (9, None)}
