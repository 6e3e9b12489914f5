"""How a job ended, rank by rank: who is blamed, who waits, who ended first."""

from signal import SIGKILL, SIGTERM

import pyarrow as pa
import pytest
from tests.tables import trace_of

from meshscope.analyze.findings.rules.hang import hang_findings
from meshscope.analyze.output.json.standstill import standstill_to_json
from meshscope.probe.schema.standstill_tables import PROGRESS

SECOND = 10**9
BEGAN = 100 * SECOND
"""When ranks 0 and 2 began to wait for rank 1."""
STEP_NS = SECOND / 10


def broken_off(*, ended=None, alive=None, statuses=None, places=True):
    """Return three ranks of one group, of which rank 1 is one collective behind.

    Args:
        ended: When each process ended, s after ``BEGAN``.
        alive: The same for their last signs of life.
        statuses: How each process ended, as ``wait`` tells it.
        places: Whether the call sites were recorded.
    """
    last = {0: 5, 1: 4, 2: 5}
    rows = [
        {
            "rank": rank, "group_id": "a", "seq": seq, "event_id": seq, "kind": "all_reduce",
            "issue_ns": BEGAN - (5 - seq) * SECOND, "start_ns": BEGAN - (5 - seq) * SECOND,
            "end_ns": BEGAN - (5 - seq) * SECOND + 1 if seq < 5 else None, "source": "host_issue",
        }
        for rank, count in last.items()
        for seq in range(1, count + 1)
    ]  # fmt: skip

    def at(times, rank):
        return None if times is None else BEGAN + int(times[rank] * SECOND)

    return trace_of(
        ranks=(0, 1, 2),
        group=[{"group_id": "a", "ranks": [0, 1, 2]}],
        progress=[
            {
                "rank": rank, "group_id": "a", "issued_seq": count, "completed_seq": None,
                "ended_ns": at(ended, rank), "alive_ns": at(alive, rank),
                "wait_status": (statuses or {}).get(rank),
            }
            for rank, count in last.items()
        ],
        collective=rows,
        collective_call=[
            {"rank": rank, "group_id": "a", "seq": 5, "place": "train.py:12"} for rank in (0, 2)
        ]
        if places
        else [],
        standing=[
            {"rank": 1, "depth": 0, "function": "load", "file": "/job/data.py", "line": 33,
             "goes_on": False, "time_ns": BEGAN},
        ],
    )  # fmt: skip


def ended(trace, **facts):
    """Return what is said of a capture."""
    return standstill_to_json(trace, tuple(hang_findings(trace, STEP_NS)), **facts)


def test_who_did_not_arrive_is_labelled_and_comes_first():
    """Fails when the rank that others wait for is a row like any other, or its line is not shown."""
    found = ended(broken_off(alive={0: 30, 1: 30, 2: 30}))
    assert (found["state"], found["claim"]) == (
        "hang",
        "Rank 1 did not arrive: 2 ranks blocked in communication",
    )
    culprit, *others = found["ranks"]
    assert (culprit["rank"], culprit["role"], culprit["is_culprit"]) == (1, "did not arrive", True)
    assert culprit["function"] == "load (data.py:33)"
    assert culprit["operation"] is None
    assert culprit["last_issued"] == "all_reduce 4 of group a"
    assert [row["role"] for row in others] == ["waits", "waits"]
    assert all(row["places"] == ["train.py:12"] for row in others)
    assert all(row["waited_ns"] == 30 * SECOND for row in others)


def test_the_open_operation_names_both_sides():
    """Fails when nobody can see who is missing in what, or since when."""
    (found,) = ended(broken_off(alive={0: 30, 1: 30, 2: 30}))["operations"]
    assert (found["waiting"], found["missing"]) == ([0, 2], [1])
    assert found["operation"] == "all_reduce 5 of group a"
    assert found["places"] == ["train.py:12"]
    assert found["before_last_record_ns"] == 0
    assert found["waited_ns"] == 30 * SECOND


def test_who_ended_first_is_labelled():
    """Fails when a death is shown as a hang, or the victims of the launcher as culprits."""
    statuses = {0: SIGTERM, 1: SIGKILL, 2: SIGTERM}
    found = ended(broken_off(ended={0: 0.5, 1: 0.2, 2: 0.6}, statuses=statuses))
    assert found["state"] == "crash"
    rows = {row["rank"]: row for row in found["ranks"]}
    assert (rows[1]["role"], rows[1]["ended_by"], rows[1]["ended_after_ns"]) == (
        "ended first",
        "SIGKILL",
        0,
    )
    assert (rows[2]["ended_by"], rows[2]["ended_after_ns"]) == ("SIGTERM", 4 * SECOND // 10)
    assert [row["rank"] for row in found["ranks"] if row["is_culprit"]] == [1]


def test_nobody_is_blamed_in_a_job_at_work():
    """Fails when the rank that happens to be the last of a running job is called a culprit."""
    found = ended(broken_off(alive={0: 0.1, 1: 0.1, 2: 0.1}), is_running=True)
    assert found["state"] == "running"
    assert not found["findings"]
    assert not any(row["is_culprit"] for row in found["ranks"])
    assert ended(broken_off(alive={0: 0.1, 1: 0.1, 2: 0.1}))["state"] == "broke_off"


@pytest.mark.parametrize(("origin", "state"), [("meshscope", "in_order"), ("kineto", "unknown")])
def test_a_capture_without_an_end_is_no_all_clear(origin, state):
    """Fails when a format that cannot show a hang says that there was none."""
    trace = trace_of(step=[{"rank": 0, "dur_ns": 10}], origin=origin)
    found = standstill_to_json(trace, ())
    assert found["state"] == state
    assert not found["ranks"]


def test_who_recorded_nothing_at_the_end_is_not_said_to_be_in_nothing():
    """A rank in a step that was left out would look as if it waited for nobody."""
    trace = broken_off(statuses=dict.fromkeys(range(3), SIGKILL))
    progress = trace.frame("progress").assign(issued_seq=None)
    table = PROGRESS.conform(pa.Table.from_pandas(progress, preserve_index=False))
    ranks = standstill_to_json(trace.with_tables({"progress": table}), [])["ranks"]
    assert {(row["role"], row["is_unknown"], row["operation"]) for row in ranks} == {
        ("not recorded", True, None)
    }
    known = standstill_to_json(trace, [])["ranks"]
    assert not any(row["is_unknown"] for row in known)


def test_what_a_rank_noted_is_its_last_operation():
    """A page would call one of a window long before the last that is known."""
    noted = [
        {
            "rank": 0, "group_id": "a", "seq": seq, "kind": "broadcast", "size_bytes": 4, "time_ns": BEGAN,
            "is_open": True, "place": place,
        }
        for seq, place in ((7, None), (8, "step (train.py:9)"))
    ]  # fmt: skip
    extra = trace_of(noted_collective=noted).tables["noted_collective"]
    progress = [
        {"rank": rank, "group_id": "a", "issued_seq": None, "completed_seq": None}
        for rank in range(3)
    ]
    unknown = trace_of(progress=progress).tables["progress"]
    trace = broken_off().with_tables({"noted_collective": extra, "progress": unknown})
    rows = {row["rank"]: row for row in standstill_to_json(trace, [])["ranks"]}
    assert rows[0]["last_issued"] == "broadcast 8 of group a"
    assert rows[0]["places"] == ["step (train.py:9)"]
    assert rows[2]["last_issued"] == "all_reduce 5 of group a"
    assert rows[2]["places"] == []
