"""Who died first is told from who gave up, and from who was ended with the others."""

from signal import SIGKILL, SIGSEGV, SIGTERM

import pytest
from tests.tables import trace_of

from meshscope.analyze.hangs.ended import died_first
from meshscope.analyze.hangs.hang import wait_graph
from meshscope.analyze.rules.hang import hang_findings

SECOND = 10**9
BEGAN = 100 * SECOND
"""When rank 0 began to wait for rank 1."""


def broken_off(ended, *, alive=None, closed=(), waits=True, statuses=None):
    """Return a capture of two ranks in one group, of which rank 1 is one collective behind.

    Args:
        ended: When each process ended, s after ``BEGAN``; None: not known.
        alive: The same for their last signs of life.
        closed: Ranks that closed their captures.
        waits: Whether rank 0 has issued what rank 1 has not.
        statuses: How each process ended, as ``wait`` tells it.
    """
    last = {0: 5 if waits else 4, 1: 4}
    rows = [
        {
            "rank": rank, "group_id": "a", "seq": seq, "event_id": seq, "source": "host_issue",
            "start_ns": BEGAN, "end_ns": BEGAN + 1 if seq < 5 else None,
        }
        for rank in (0, 1)
        for seq in range(1, last[rank] + 1)
    ]  # fmt: skip
    at = {
        name: {
            rank: None if after is None else BEGAN + int(after * SECOND)
            for rank, after in (times or {}).items()
        }
        for name, times in (("ended_ns", ended), ("alive_ns", alive))
    }
    return trace_of(
        ranks=(0, 1),
        group=[{"group_id": "a", "ranks": [0, 1]}],
        progress=[
            {
                "rank": rank, "group_id": "a", "issued_seq": last[rank],
                "completed_seq": 4 if rank in closed else None,
                **{name: times.get(rank) for name, times in at.items()},
                "wait_status": (statuses or {}).get(rank),
            }
            for rank in (0, 1)
        ],
        collective=rows,
    )  # fmt: skip


def findings(trace):
    """Return kind, ranks and severity of what is said, with steps of 100 ms."""
    return [(f.kind, f.where["ranks"], f.severity) for f in hang_findings(trace, SECOND / 10)]


@pytest.mark.parametrize("closed", [(), (1,)])
def test_a_rank_that_ends_before_the_one_that_waits_for_it_crashed(closed):
    """A crash would be reported as a hang, and somebody look for a lock."""
    trace = broken_off({0: 0.5, 1: 0.2}, closed=closed)
    assert findings(trace) == [("crash", [1], "critical")]
    evidence = next(hang_findings(trace, SECOND / 10)).evidence
    assert evidence[0].startswith("at least 0.30 s later")
    assert ("no close mark" in evidence[1]) == (not closed)
    assert evidence[2].startswith("rank 1: rank 0 waited for it")


def test_a_rank_that_was_waited_for_long_before_it_ended_was_hung():
    """A hang that the launcher ended would be called a crash."""
    assert findings(broken_off({0: 30.4, 1: 30.2})) == [("hang", [1], "critical")]


def test_a_rank_that_gave_up_waiting_did_not_crash():
    """The victim of a hang whose time-out came first would be blamed."""
    assert findings(broken_off({0: 30.0, 1: 30.5})) == [("hang", [1], "critical")]


def test_processes_that_are_ended_together_did_not_crash():
    """A job that was killed at work would have a culprit: whoever was first by a millisecond."""
    assert findings(broken_off({0: 0.201, 1: 0.2})) == [("hang", [1], "info")]


def test_a_job_that_stood_still_and_was_killed_has_no_crashed_rank():
    """Fails when the first of two that a launcher killed 60 ms apart, after a minute of silence, is to blame."""
    (finding,) = hang_findings(broken_off({0: 59.06, 1: 59.0}, waits=False), SECOND / 10)
    assert (finding.kind, finding.where["ranks"]) == ("hang", [0, 1])
    assert "the last 59.0 s, as long as 590 steps" in finding.claim
    assert "ended within 0.06 s" in finding.evidence[0]


@pytest.mark.parametrize("ended", [{0: 62.0, 1: 59.0}, {0: 4.5, 1: 4.4}], ids=["apart", "soon"])
def test_a_death_that_the_others_outlived_is_still_one(ended):
    """Fails when a rank that died seconds before the others, or after a short silence, is not named."""
    trace = broken_off(ended, waits=False)
    assert findings(trace) == [("crash", [1], "critical")]


def test_ends_after_a_long_wait_are_told():
    """Fails when a hang does not say that its processes were killed together."""
    (finding,) = hang_findings(broken_off({0: 59.06, 1: 59.0}), SECOND / 10)
    assert finding.where["ranks"] == [1]
    assert "in the last 59.0 s; all processes then ended within 0.06 s" in finding.evidence[-1]


def test_of_two_that_are_seen_to_end_at_once_the_one_that_did_not_close_crashed():
    """Fails if a busy launcher, which looks too late to see who was first, hides a crash."""
    trace = broken_off({0: 0.22, 1: 0.2}, closed=(0,))
    assert [(kind, ranks) for kind, ranks, _ in findings(trace)] == [("crash", [1])]


def test_signs_of_life_tell_how_long_was_waited():
    """A hang of a job that was not started by us would stay a remark without a severity."""
    trace = broken_off({}, alive={0: 40, 1: 40})
    assert findings(trace) == [("hang", [1], "critical")]
    assert any("rank 1 was alive" in line for line in next(hang_findings(trace, 1e8)).evidence)
    silent = next(hang_findings(broken_off({}, alive={0: 40, 1: 3}), 1e8))
    assert any("no sign of life in the last 37.0 s" in line for line in silent.evidence)


def test_a_rank_that_dies_while_nobody_waits_for_it_yet_is_named():
    """A crash in the middle of a computation, after which all were ended, would leave nothing."""
    assert findings(broken_off({0: 0.5, 1: 0.2}, waits=False)) == [("crash", [1], "critical")]
    assert findings(broken_off({0: 0.5, 1: 0.2}, waits=False, closed=(1,))) == []


def test_without_the_ends_nobody_is_said_to_have_died():
    """Ends that nobody saw would be made up."""
    trace = broken_off({0: None, 1: None})
    assert died_first(trace, wait_graph(trace), None) is None


@pytest.mark.parametrize(
    ("ended", "kind"), [({0: 3, 1: 0.05}, "crash"), ({0: 41, 1: 40}, "hang")], ids=["crash", "hang"]
)
def test_what_the_device_reported_is_evidence(ended, kind):
    """Fails when somebody reads logs for an exception while the driver said that the device died."""
    devices = trace_of(
        rank_device=[{"rank": rank, "uuid": f"GPU-{rank}"} for rank in (0, 1)],
        device_event=[{"uuid": "GPU-1", "code": 79}, {"uuid": "GPU-0", "code": 45}],
    )
    trace = broken_off(ended).with_tables(
        {name: devices.tables[name] for name in ("rank_device", "device_event")}
    )
    (finding,) = hang_findings(trace, SECOND / 10)
    assert finding.kind == kind
    said = [line for line in finding.evidence if "device of rank" in line]
    assert said == ["the device of rank 1 (GPU-1) reported Xid 79 (a device that fell off the bus)"]


SOON = {1: 0.2, 0: 0.245}
"""Rank 0 ends 45 ms after rank 1: a launcher that looked just then, or one that killed both."""


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (1 << 62, f"it ended with wait status {1 << 62}"),
        (70 << 8, "it ended with exit code 70"),
        (SIGKILL, "it was ended by SIGKILL"),
        (SIGSEGV | 0x80, "it was ended by SIGSEGV"),
    ],
)
@pytest.mark.parametrize("of_other", [SIGTERM, None])
def test_a_rank_that_ended_otherwise_than_the_launcher_ends_ranks_crashed(status, words, of_other):
    """A crash that the launcher noticed at once would be called a hang, in one of two."""
    trace = broken_off(SOON, statuses={1: status, 0: of_other})
    assert findings(trace) == [("crash", [1], "critical")]
    evidence = next(hang_findings(trace, SECOND / 10)).evidence
    assert any(text.startswith(words) for text in evidence)


@pytest.mark.parametrize(
    ("ended", "statuses"),
    [
        (SOON, {}),
        (SOON, {1: SIGTERM, 0: SIGTERM}),
        (SOON, {1: SIGTERM}),
        (SOON, {1: SIGKILL, 0: SIGKILL}),
        (SOON, {0: 1 << 8, 1: SIGTERM}),
        ({1: 0.2, 0: 0.205}, {1: SIGKILL}),
    ],
)
def test_ranks_that_were_killed_together_did_not_crash(ended, statuses):
    """The rank that happened to be killed first would be blamed for the end of the job."""
    assert findings(broken_off(ended, statuses=statuses)) == [("hang", [1], "info")]
