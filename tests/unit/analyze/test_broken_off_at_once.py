"""Jobs that broke off before their first step: who did not come, where all stood, and for how long."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.probe.schema.terms import Severity

S = 1_000_000_000
JOIN = {"function": "init_process_group", "file": "/env/site-packages/torch/c10d.py", "line": 7}
READ = {"function": "read", "file": "/job/train.py", "line": 12}


def broken_off(ended_s, *, begun_ns=0, numbers=None, attempt=None, **tables):
    """Return the findings of a hang of two ranks that began to record at 0 s and were ended together."""
    begun = {"level": "collectives", "start_ns": begun_ns, "steps": 0, "dur_ns": 0}
    ends = {"alive_ns": ended_s * S, "ended_ns": ended_s * S, "wait_status": 15}
    of_group = numbers or {rank: {"group_id": ""} for rank in range(2)}
    standing = {"depth": 0, "goes_on": False, "time_ns": 5 * S}
    trace = trace_of(
        recording=[{"rank": rank, **begun} for rank in range(2)],
        progress=[{"rank": rank, **ends, **of_group[rank]} for rank in range(2)],
        standing=[{"rank": rank, **standing, **at} for rank, at in enumerate((JOIN, READ))],
        attempt=attempt or [{"attempt": 1, "first_step": 0, "last_step": None}],
        ranks=(0, 1),
        **tables,
    )
    return [found for found in diagnose(trace).findings if found.kind == "hang"]


@pytest.mark.parametrize(
    ("ended_s", "severity"), [(9, None), (30, Severity.WARNING), (61, Severity.CRITICAL)]
)
def test_a_job_that_never_came_to_communicate_tells_where_its_ranks_stood(ended_s, severity):
    """Fails when a job that hangs in its start ends in an error, or is said to have recorded nothing."""
    found = broken_off(ended_s)
    assert [one.severity for one in found] == [severity] * (severity is not None)
    for one in found:
        assert str(one.claim) == (
            f"The job hung: no rank recorded anything in the last {ended_s:.1f} s, "
            "before the first step ended"
        )
        assert any(str(fact) == "Rank 1 hung in read (train.py:12)" for fact in one.evidence)


def test_who_did_not_come_to_the_first_collective_is_named_with_how_long_others_waited():
    """Fails when "for an unknown time" stands above evidence that says it."""
    first = {"rank": 0, "group_id": "g", "seq": 0, "start_ns": S, "end_ns": None}
    (found,) = broken_off(
        31,
        collective=[{**first, "source": "host_issue"}],
        group=[{"group_id": "g", "ranks": [0, 1]}],
        numbers={0: {"group_id": "g", "issued_seq": 0}, 1: {"group_id": "g", "issued_seq": -1}},
    )
    assert found.where["ranks"] == [1]
    assert found.severity is Severity.WARNING
    assert str(found.claim) == "1 rank had waited 30.0 s for rank 1 when the capture ended"
    assert not any(fact.code == "hang.waited" for fact in found.evidence)


def test_what_was_open_when_the_attempt_before_broke_off_is_no_hang_of_this_one():
    """Fails when a restarted job that stands still is said to wait for a rank in what it did before."""
    before = {"rank": 0, "group_id": "g", "seq": 4, "start_ns": S, "end_ns": None, "step": 3}
    steps = [
        {"rank": rank, "step": step, "start_ns": 10 * step, "dur_ns": 10}
        for rank in range(2)
        for step in range(3)
    ]
    attempts = [
        {"attempt": 1, "first_step": 0, "last_step": 2},
        {"attempt": 2, "first_step": 3, "last_step": None},
    ]
    (found,) = broken_off(
        90,
        begun_ns=20 * S,
        collective=[{**before, "source": "host_issue"}],
        group=[{"group_id": "g", "ranks": [0, 1]}],
        step=steps,
        attempt=attempts,
        numbers={rank: {"group_id": "g", "issued_seq": 4 - rank} for rank in range(2)},
    )
    assert found.claim.code == "attempt.before_first_step_of"
    assert found.claim.values["attempt"] == 2
    assert found.claim.values["what"].code == "hang.job"
