"""Who died first is distinguished from who gave up, and from who was ended with the others."""

from signal import SIGINT, SIGKILL, SIGSEGV, SIGTERM

import pyarrow as pa
import pytest
from tests.tables import trace_of

from meshscope.analyze.account.hangs.ended import died_first
from meshscope.analyze.findings.rules.hang import hang_findings
from meshscope.probe.schema.standstill_tables import PROGRESS

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
    assert evidence[0].code == "crash.lead"
    assert evidence[0].values["lead_ns"] == 3 * SECOND // 10
    assert evidence[1].code == ("crash.closed" if closed else "crash.not_closed")
    assert str(evidence[2]).startswith("Rank 0 waited for rank 1 in ")


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
    assert str(finding.claim) == "The job hung: no rank recorded anything in the last 59.0 s"
    steps, together = finding.evidence[:2]
    assert (steps.code, steps.values) == ("hang.job_steps", {"steps": 590})
    assert together.values["between_ns"] == 6 * SECOND // 100


@pytest.mark.parametrize("ended", [{0: 62.0, 1: 59.0}, {0: 4.5, 1: 4.4}], ids=["apart", "soon"])
def test_a_death_that_the_others_outlived_is_still_one(ended):
    """Fails when a rank that died seconds before the others, or after a short silence, is not named."""
    trace = broken_off(ended, waits=False)
    assert findings(trace) == [("crash", [1], "critical")]


def test_ends_after_a_long_wait_are_reported():
    """Fails when a hang does not say that its processes were killed together."""
    (finding,) = hang_findings(broken_off({0: 59.06, 1: 59.0}), SECOND / 10)
    assert finding.where["ranks"] == [1]
    silent, together = finding.evidence[-2:]
    assert silent.values["silent_ns"] == 59 * SECOND - 1
    assert together.values["between_ns"] == 6 * SECOND // 100


def test_of_two_that_are_seen_to_end_at_once_the_one_that_did_not_close_crashed():
    """Fails if a busy launcher, which looks too late to see who was first, hides a crash."""
    trace = broken_off({0: 0.22, 1: 0.2}, closed=(0,))
    assert [(kind, ranks) for kind, ranks, _ in findings(trace)] == [("crash", [1])]


def test_signs_of_life_tell_how_long_was_waited():
    """A hang of a job that was not started by us would stay a remark without a severity."""
    trace = broken_off({}, alive={0: 40, 1: 40})
    assert findings(trace) == [("hang", [1], "critical")]
    evidence = next(hang_findings(trace, 1e8)).evidence
    assert [fact.values for fact in evidence if fact.code == "hang.alive"] == [{"rank": 1}]
    assert [fact.values for fact in evidence if fact.code == "hang.waited"] == [
        {"waited_ns": 40 * SECOND}
    ]
    silent = next(hang_findings(broken_off({}, alive={0: 40, 1: 3}), 1e8))
    (said,) = (fact for fact in silent.evidence if fact.code == "hang.no_sign_of_life")
    assert said.values == {"rank": 1, "silent_ns": 37 * SECOND}


def test_a_rank_that_held_the_interpreter_until_ctrl_c_was_waited_for():
    """Fails when a hang in C code, which stops the signs of life too, is forgotten once somebody presses Ctrl-C."""
    trace = broken_off(
        {0: 21.0, 1: 20.5}, alive={0: 20.0, 1: -0.5}, statuses={0: SIGINT, 1: SIGINT}
    )
    progress = trace.frame("progress").assign(ended_by="KeyboardInterrupt")
    table = PROGRESS.conform(pa.Table.from_pandas(progress, preserve_index=False))
    trace = trace.with_tables({"progress": table})
    (finding,) = hang_findings(trace, SECOND / 10)
    assert (finding.kind, finding.where["ranks"], finding.severity) == ("hang", [1], "critical")
    said = [str(one) for one in finding.evidence]
    assert "The others waited at least 20.0 s" in said
    assert any("Rank 1 gave no sign of life in the last 20.5 s" in one for one in said), said


def test_a_rank_that_dies_while_nobody_waits_for_it_yet_is_named():
    """A crash in the middle of a computation, after which all were ended, would leave nothing."""
    assert findings(broken_off({0: 0.5, 1: 0.2}, waits=False)) == [("crash", [1], "critical")]
    assert findings(broken_off({0: 0.5, 1: 0.2}, waits=False, closed=(1,))) == []


def test_without_the_ends_nobody_is_said_to_have_died():
    """Ends that nobody saw would be made up."""
    trace = broken_off({0: None, 1: None})
    assert died_first(trace, None) is None


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
    said = [str(fact) for fact in finding.evidence if fact.code == "hang.device"]
    assert said == ["The device of rank 1 (GPU-1) reported Xid 79 (a device that fell off the bus)"]


SOON = {1: 0.2, 0: 0.245}
"""Rank 0 ends 45 ms after rank 1: a launcher that looked just then, or one that killed both."""


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (1 << 62, f"wait status {1 << 62}"),
        (70 << 8, "exit code 70"),
        (SIGKILL, "SIGKILL"),
        (SIGSEGV | 0x80, "SIGSEGV"),
    ],
)
@pytest.mark.parametrize("of_other", [SIGTERM, None])
def test_a_rank_that_ended_otherwise_than_the_launcher_ends_ranks_crashed(status, how, of_other):
    """A crash that the launcher noticed at once would be called a hang, in one of two."""
    trace = broken_off(SOON, statuses={1: status, 0: of_other})
    assert findings(trace) == [("crash", [1], "critical")]
    found = next(hang_findings(trace, SECOND / 10))
    assert str(found.claim) == f"The job died: rank 1 ended first ({how})"
    assert any(fact.code == "crash.killed" for fact in found.evidence) == (status == SIGKILL)


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


@pytest.mark.parametrize(
    ("waited_s", "statuses", "kind"),
    [
        (22, {0: SIGINT, 1: SIGINT}, "hang"),
        (22, {0: 130 << 8, 1: SIGINT}, "hang"),
        (22, {0: SIGTERM, 1: SIGINT}, "hang"),
        (22, {0: SIGTERM, 1: 1 << 8}, "crash"),
        (2, {0: SIGTERM, 1: SIGINT}, "crash"),
    ],
    ids=["both", "one by its status", "only the late one", "it failed", "at work"],
)
def test_ctrl_c_in_a_first_step_that_hangs_is_no_crash_of_who_is_late(waited_s, statuses, kind):
    """Fails when a hang that somebody interrupts is reported as the death of the first process to notice."""
    alive = {0: waited_s - 1, 1: waited_s - 1}
    trace = broken_off({0: waited_s + 2, 1: waited_s}, alive=alive, statuses=statuses)
    (found, *_) = hang_findings(trace)
    assert (found.kind, found.where["ranks"]) == (kind, [1])
    if kind == "hang":
        assert found.severity == "warning"


@pytest.mark.parametrize(
    ("statuses", "kinds"),
    [
        ({0: SIGKILL, 1: SIGINT}, ["hang"]),
        ({0: SIGINT, 1: SIGINT}, ["hang"]),
        ({0: SIGKILL, 1: 1 << 8}, ["crash"]),
    ],
    ids=["a launcher kills the others late", "all notice", "it failed by itself"],
)
def test_a_start_that_hangs_and_is_interrupted_is_a_hang(statuses, kinds):
    """Fails when a job that is stuck while it makes its groups reads as stopped on purpose."""
    trace = broken_off({0: 50, 1: 20}, alive={0: 49, 1: 20}, waits=False, statuses=statuses)
    found = list(hang_findings(trace))
    assert [one.kind for one in found] == kinds
    said = " ".join(str(line) for one in found for line in one.evidence)
    assert ("Ctrl-C then ended the processes, within 30.0 s" in said) == (kinds == ["hang"])


def unwatched(ends, *, late=()):
    """Return a capture of ranks whose ends no launcher saw.

    Args:
        ends: Per rank its last sign of life and its end, s after ``BEGAN``, and exception and status that ended it.
        late: Ranks that have not issued what the others wait in since ``BEGAN``.
    """
    rows = [
        {
            "rank": rank, "group_id": "a", "seq": seq, "event_id": seq, "source": "host_issue",
            "start_ns": BEGAN, "end_ns": BEGAN + 1 if seq < 5 else None,
        }
        for rank in range(len(ends))
        for seq in range(4, 5 if rank in late else 6)
    ]  # fmt: skip
    return trace_of(
        collective=rows if late else [],
        ranks=tuple(range(len(ends))),
        group=[{"group_id": "a", "ranks": list(range(len(ends)))}],
        progress=[
            {
                "rank": rank, "group_id": "a", "issued_seq": 4 + bool(late and rank not in late),
                "completed_seq": None, "alive_ns": BEGAN + int(alive * SECOND),
                "ended_ns": None if ended is None else BEGAN + int(ended * SECOND),
                "ended_by": by, "wait_status": status,
            }
            for rank, (alive, ended, by, status) in enumerate(ends)
        ],
    )  # fmt: skip


_GAVE_UP, _ASKED = ("RuntimeError", None), (None, SIGTERM)


@pytest.mark.parametrize(
    ("ends", "first"),
    [
        ([(1.0, None, None, None), (1.1, 1.4, *_GAVE_UP), (3, 3.5, *_GAVE_UP)], (0,)),
        ([(1.2, 1.4, *_ASKED), (1.0, 1.41, *_ASKED), (1.2, None, None, None)], (2,)),
        ([(1.6, None, None, None), (1.1, 1.4, *_GAVE_UP), (3, 3.5, *_GAVE_UP)], None),
        (
            [
                (1.0, None, None, None),
                (1.1, 1.4, "KeyboardInterrupt", None),
                (3, 3.5, "KeyboardInterrupt", None),
            ],
            None,
        ),
        (
            [(1.0, None, None, None), (1.1, None, None, None), (1.1, 1.4, "ValueError", None)],
            None,
        ),
    ],
    ids=["peers give up", "launcher ends the rest", "outlives a peer", "Ctrl-C", "most unseen"],
)
def test_who_falls_silent_before_the_others_end_because_of_somebody_died(ends, first):
    """A rank that was killed without a launcher that watches was named in none of ten jobs."""
    death = died_first(unwatched(ends), SECOND)
    assert (death and death.ranks) == first


@pytest.mark.parametrize(
    ("ends", "first"),
    [
        ([(1.3, 1.0, None, None), (1.02, None, None, None), (1.02, None, None, None)], (0,)),
        ([(0.9, 1.0, None, SIGKILL), (1.02, None, None, None), (1.02, None, None, None)], (0,)),
        ([(0.9, 1.0, None, None), (1.001, None, None, None), (0.999, None, None, None)], None),
        (
            [(0.9, 1.0, "ValueError", None), (1.02, None, None, None), (1.02, None, None, None)],
            None,
        ),
    ],
    ids=["outlived", "killed and outlived", "all at once", "closed"],
)
def test_whom_others_saw_end_and_outlived_died_first(ends, first):
    """A launcher that ends the others within 50 ms leaves one end that is known, and signs of life after it."""
    death = died_first(unwatched(ends), SECOND)
    assert (death and death.ranks) == first


_CTRL_C, _LED = ("KeyboardInterrupt", SIGINT), ("KeyboardInterrupt", SIGTERM)


@pytest.mark.parametrize(
    ("ends", "late", "first"),
    [
        (
            [(5.0, 8.3, *_CTRL_C), (2.7, 6.1, *_CTRL_C), (0.4, 3.0, "MemoryError", SIGINT)],
            (2,),
            (2,),
        ),
        (
            [(1.4, 3.1, *_GAVE_UP), (1.6, 3.1, *_GAVE_UP), (0.4, 2.9, "SystemExit", 4 << 8)],
            (2,),
            (2,),
        ),
        ([(4.2, 7.8, *_GAVE_UP), (4.0, 7.6, *_GAVE_UP), (0.1, 0.5, *_CTRL_C)], (2,), None),
        ([(3.3, 4.17, *_LED), (3.2, 4.17, *_LED), (2.2, 4.15, *_ASKED)], (), None),
    ],
    ids=["interrupted in its exit", "exits for seconds", "only one notices", "one is asked to end"],
)
def test_an_exit_that_takes_seconds_hides_no_death_and_ctrl_c_is_none(ends, late, first):
    """Fails when who raised an error reads as hung because its exit was slow, or Ctrl-C reads as a death."""
    death = died_first(unwatched(ends, late=late), SECOND if late else None)
    assert (death and death.ranks) == first


TORCH = "/venv/torch/distributed/distributed_c10d.py"


def gave_up(ended_by, functions, *, silent_s=12, between_s=0.1):
    """Return a capture whose ranks recorded no communication at the end: exceptions, and the stacks."""
    ranks = tuple(range(len(functions)))
    return trace_of(
        ranks=ranks,
        recording=[{"rank": rank, "step": 0, "level": "steps", "steps": 1, "dur_ns": 1} for rank in ranks],
        step=[{"rank": rank, "start_ns": BEGAN, "dur_ns": 1} for rank in ranks],
        group=[{"group_id": "a", "ranks": list(ranks)}],
        progress=[
            {
                "rank": rank, "group_id": "a", "issued_seq": None, "ended_by": ended_by[rank],
                "alive_ns": BEGAN + silent_s * SECOND,
                "ended_ns": BEGAN + silent_s * SECOND + int(rank * between_s * SECOND),
            }
            for rank in ranks
        ],
        standing=[
            {
                "rank": rank, "depth": 0, "function": function, "line": 7, "goes_on": False,
                "file": TORCH if function in ("barrier", "all_reduce") else "/job/train.py",
                "time_ns": BEGAN + 10 * SECOND,
            }
            for rank, function in enumerate(functions)
        ],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ended_by", "functions", "said"),
    [
        # The barrier of two timed out; the launcher ended rank 2, which saves.
        (["RuntimeError", "RuntimeError", None], ["barrier", "barrier", "save"],
         ("hang", [2], "Rank 2 did not come to barrier, where 2 ranks waited")),
        (["RuntimeError"] * 3, ["all_reduce", "barrier", "all_reduce"],
         ("hang", [1], "rank 1 in barrier and ranks 0 and 2 in all_reduce")),
        (["RuntimeError"] * 3, ["barrier"] * 3, ("hang", [0, 1, 2], "no rank recorded anything")),
        # Who raises in work of its own was waited for, and is the reason.
        (["OSError", "RuntimeError", None], ["save", "barrier", "barrier"], None),
    ],
)  # fmt: skip
def test_a_wait_that_times_out_is_no_crash_of_who_gave_up_first(ended_by, functions, said):
    """A victim whose wait timed out would be said to have died first."""
    found = list(hang_findings(gave_up(ended_by, functions), SECOND / 10))
    assert [(f.kind, f.where["ranks"]) for f in found] == ([said[:2]] if said else [])
    assert said is None or said[2] in str(found[0].claim)
