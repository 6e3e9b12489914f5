"""Ranks that neither ended nor recorded anything, while the others had ended in order."""

from signal import SIGINT, SIGKILL

import pytest
from tests.tables import trace_of

from meshscope.analyze.findings.rules.ended import ends_of

S = 1_000_000_000
STEP_NS = S // 10
C10D = "/v/torch/distributed/distributed_c10d.py"


def job(*, silent_s=20, rank_2=(SIGINT, "KeyboardInterrupt"), gc=False, pass_ends=False):
    """Return a job of three ranks of which rank 2 ended late and the others in order, after 30 steps.

    Args:
        silent_s: How long after its last step rank 2 ended.
        rank_2: Its wait status and exception.
        gc: Whether garbage was collected on rank 2 until it ended.
        pass_ends: Whether its last pass was closed only when it ended.
    """
    steps = {0: 30, 1: 30, 2: 20}
    left_ns = 20 * STEP_NS
    ended = {0: 32 * STEP_NS, 1: 33 * STEP_NS, 2: left_ns + silent_s * S}
    late = {"rank": 2, "step": 20, "start_ns": left_ns}
    spans = [{**late, "kind": "gc", "dur_ns": silent_s * S}] if gc else []
    spans += [{**late, "kind": "forward", "dur_ns": silent_s * S}] if pass_ends else []
    ends = {0: (0, None), 1: (0, None), 2: rank_2}
    return trace_of(
        ranks=(0, 1, 2),
        step=[
            {"rank": rank, "step": step, "start_ns": step * STEP_NS, "dur_ns": STEP_NS}
            for rank, count in steps.items()
            for step in range(count)
        ],
        span=spans,
        progress=[
            {
                "rank": rank,
                "group_id": "g",
                "issued_seq": 0,
                "completed_seq": 0 if status == 0 else None,
                "alive_ns": ended[rank],
                "ended_ns": ended[rank],
                "wait_status": status,
                "ended_by": exception,
            }
            for rank, (status, exception) in ends.items()
        ],
        standing=[{"rank": 2, "function": "save", "file": "/job/ck.py", "line": 7, "time_ns": S}],
    )


@pytest.mark.parametrize(
    "facts",
    [{}, {"gc": True}, {"pass_ends": True}, {"rank_2": (SIGKILL, None)}],
    ids=["plain", "garbage collected", "a pass closed by Ctrl-C", "killed"],
)
def test_who_hangs_while_the_others_end_in_order_is_named(facts):
    """Fails when Ctrl-C is the first word on a job whose rank 2 hung in a checkpoint, as garbage or its end was recorded."""
    (found,) = ends_of(job(**facts))
    assert (found.kind, found.severity, found.where["ranks"]) == ("hang", "critical", [2])
    assert str(found.claim) == (
        "Rank 2 did not end: no records in the last 20.0 s. Ranks 0 and 1 had ended normally"
    )
    said = list(map(str, found.evidence))
    assert said[0] == "Rank 2 hung in save (ck.py:7)"
    assert said[1].startswith("Ranks 0 and 1 finished 30 steps and ended; the others finished 20")


@pytest.mark.parametrize(
    "facts",
    [{"silent_s": 3}, {"rank_2": (256, "ValueError")}, {"rank_2": (0, None)}],
    ids=["not for long", "an error", "in order, late"],
)
def test_who_ends_late_did_not_hang(facts):
    """Fails when a rank that saves for a moment, fails, or is slow to end is said to have hung."""
    assert all(found.kind != "hang" for found in ends_of(job(**facts)))
