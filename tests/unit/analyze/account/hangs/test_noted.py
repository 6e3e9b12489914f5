"""The end of a run by what ranks noted of operations that were not recorded."""

from tests.tables import trace_of

from meshscope.analyze.account.hangs.mismatch import mismatches
from meshscope.analyze.account.hangs.noted import as_dumped

RECORDED = {
    "group_id": "g",
    "seq": 9 << 20,
    "kind": "broadcast",
    "size_bytes": 8,
    "step": 3,
    "start_ns": 1,
    "end_ns": 2,
}


def noted(rank, *sizes, first=4, open_from=None):
    """Return the noted reductions of a rank."""
    return [
        {
            "rank": rank,
            "group_id": "g",
            "seq": first + at,
            "kind": "all_reduce",
            "size_bytes": size,
            "dtype": "Float",
            "is_open": open_from is not None and first + at >= open_from,
            "time_ns": 100,
            "place": None,
        }
        for at, size in enumerate(sizes)
    ]


def of(*ranks):
    """Return a trace with notes, in which a broadcast was recorded before."""
    rows = [row for own in ranks for row in own]
    before = [{"rank": rank, **RECORDED} for rank in (0, 1)]
    progress = [{"rank": rank, "group_id": "g", "issued_seq": None} for rank in (0, 1)]
    groups = [{"group_id": "g", "ranks": [0, 1, 2], "axis": "dp"}]
    return trace_of(noted_collective=rows, collective=before, progress=progress, group=groups)


def test_noted_operations_are_compared_and_not_held_against_recorded_ones():
    """Backends count otherwise than records are numbered: each rank would differ from itself."""
    dumped = as_dumped(of(noted(0, 16, 64, open_from=5), noted(1, 16, 32), noted(2, 16, 64)))
    (found,) = mismatches(dumped)
    assert (found.what, found.seq, set(found.different)) == ("size", 5, {1})
    assert found.different[1].size_bytes == 32


def test_operations_that_ended_are_no_cause():
    """Ranks that a launcher ended while they went on would be said to differ."""
    dumped = as_dumped(of(noted(0, 16, 64), noted(1, 16, 32)))
    assert mismatches(dumped) == []


def test_progress_is_to_before_the_first_open_one():
    """An operation in which all stand would count as complete."""
    dumped = as_dumped(of(noted(0, 16, 64, 4, open_from=5), noted(1, 16)))
    rows = dumped.frame("progress")[["rank", "issued_seq", "completed_seq"]]
    assert rows.to_numpy().tolist() == [[0, 6, 4], [1, 4, 4]]


def test_one_rank_alone_is_compared_with_nobody():
    """Fails when a job whose other ranks are dead gets a trace of one rank."""
    assert as_dumped(of(noted(0, 16, 64))) is None
