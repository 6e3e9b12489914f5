"""Which rank an attempt of a job ended by."""

from signal import SIGKILL, SIGTERM

import pytest

from meshscope.probe.reader.part_times import failed_first
from meshscope.probe.reader.rank_records import LastSeen, RankRecords

MS = 1_000_000
ERROR = 1 << 8


def end(rank, at_ms, status, *, host="a", ahead_ms=0):
    """Return the part of a rank that ended then; the monotonic clock of its host is ahead by so much."""
    at_ns = None if at_ms is None else (at_ms + ahead_ms) * MS
    pair = [ahead_ms * MS, 0, 60]
    found = RankRecords(rank=rank, manifest={"boot_id": host, "clock_pairs": [pair]})
    found.last_seen = LastSeen(ended_ns=at_ns, wait_status=status)
    return found


@pytest.mark.parametrize(
    ("others", "reported"),
    [
        ([end(1, 900, SIGTERM)], 0),
        ([end(1, 501, ERROR)], 0),
        ([end(1, 499, ERROR)], 1),
        ([end(1, 400, SIGTERM)], None),  # Rank 0 did not obey, and was killed last.
        ([end(1, 400, 0)], None),
        ([end(1, 400, None)], None),
        ([end(1, None, None)], None),
        ([end(1, 600, SIGTERM, host="b", ahead_ms=-10_000)], 0),
        ([end(1, 510, SIGTERM, host="b", ahead_ms=70_000)], None),
    ],
)
def test_the_rank_that_ended_first_by_itself_ended_the_attempt(others, reported):
    """Fails when a rank is said to have ended first that was killed last, or by another machine's uptime."""
    found = failed_first([end(0, 500, SIGKILL), *others])
    assert (None if found is None else found.rank) == reported


def test_a_part_without_a_clock_has_no_end_to_compare():
    """Fails when a damaged manifest ends in a traceback, or its rank comes last for it."""
    damaged = RankRecords(rank=1, manifest={"clock_pairs": "x"}, last_seen=LastSeen(ended_ns=1))
    assert failed_first([end(0, 500, SIGKILL), damaged]) is None
    assert failed_first([]) is None
