"""How a job ended of which no rank is known to be the reason, and that this is the first word on it."""

from dataclasses import replace
from signal import SIGABRT, SIGINT, SIGKILL, SIGSEGV, SIGTERM

import pyarrow as pa
import pytest
from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze.account.hangs.ended import died_first
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.measure import NoStepsError
from meshscope.analyze.findings.rules.ended import ends_of, how_it_ended
from meshscope.analyze.output.text import to_text
from meshscope.probe.schema.standstill_tables import PROGRESS, STANDING
from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import Severity

S = 1_000_000_000
MS = S // 1000
STEP_NS = 100 * MS
LAST = 40 * S
"""When the last collective that all issued was issued."""


def job(ends, *, behind=(), after_ns=None, steps=0, attempt=None):
    """Return a capture of four ranks in one group that broke off.

    Args:
        ends: Of each rank how long after ``LAST`` it ended in ms, its wait status, its exception.
        behind: Ranks that did not issue the last collective.
        after_ns: When the others issued it.
        steps: Whole steps before, of every rank.
        attempt: Rows of the ``attempt`` table.
    """
    issue_ns = LAST if after_ns is None else after_ns
    row = {"group_id": "g", "source": "host_issue", "kind": "all_reduce"}
    rows = [
        {**row, "rank": rank, "seq": 0, "event_id": 0, "start_ns": S, "end_ns": S + MS}
        for rank in ends
    ] + [
        {**row, "rank": rank, "seq": 1, "event_id": 1, "start_ns": issue_ns, "end_ns": None}
        for rank in ends
        if rank not in behind
    ]
    return trace_of(
        ranks=tuple(ends),
        group=[{"group_id": "g", "ranks": list(ends)}],
        collective=rows,
        step=[
            {"rank": rank, "step": step, "start_ns": S + step * STEP_NS, "dur_ns": STEP_NS}
            for rank in ends
            for step in range(steps)
        ],
        attempt=attempt or [],
        progress=[
            {
                "rank": rank,
                "group_id": "g",
                "issued_seq": 0 if rank in behind else 1,
                "completed_seq": 1 if status == 0 else None,
                "alive_ns": LAST + after * MS,
                "ended_ns": LAST + after * MS,
                "wait_status": status,
                "ended_by": exception,
            }
            for rank, (after, status, exception) in ends.items()
        ],
    )


def test_what_others_began_after_a_death_does_not_clear_the_dead():
    """Fails when survivors that wait for a survivor who gave up make a SIGKILL of another one vanish."""
    ends = {
        0: (60, 256, "RuntimeError"), 1: (0, SIGKILL, None), 2: (90, SIGTERM, None),
        3: (95, SIGTERM, None),
    }  # fmt: skip
    trace = job(ends, behind=(0,), after_ns=LAST + 20 * MS)
    (found,) = ends_of(trace)
    assert (found.kind, found.where["ranks"]) == ("crash", [1])
    assert str(found.claim) == "The job died: rank 1 ended first (SIGKILL)"


def test_who_is_killed_among_others_that_end_at_once_is_named():
    """Fails when three ends within 50 ms, one by SIGKILL, pass for a job that was ended as a whole."""
    ends = {
        0: (30, None, "RuntimeError"), 1: (0, SIGKILL, None), 2: (75, SIGTERM, "RuntimeError"),
        3: (32, SIGTERM, None),
    }  # fmt: skip
    found = died_first(job(ends, behind=(1,)), 10.0 * STEP_NS)
    assert found is not None
    assert found.ranks == (1,)


@pytest.mark.parametrize(("status", "kind"), [(SIGKILL, "crash"), (SIGABRT, "hang")])
def test_a_watchdog_that_gives_up_is_no_death_of_its_rank(status, kind):
    """Fails when the rank whose watchdog aborts it first is blamed for the one that it waited for."""
    died_ms = 20_000 if status == SIGABRT else 0
    ends = {rank: (died_ms + 100 + 100 * rank, SIGTERM, None) for rank in range(4)}
    ends[3] = (died_ms, status, None)
    found = next(how_it_ended(job(ends, behind=(1,)), STEP_NS), None)
    assert found is not None
    assert found.kind == kind


def test_a_kill_after_a_long_wait_for_somebody_else_is_a_hang():
    """Fails when the first rank that an operator kills in a hung job is reported as the reason."""
    ends = {rank: (30_500 + rank, SIGTERM, None) for rank in range(4)} | {
        3: (30_000, SIGKILL, None)
    }
    found = ends_of(job(ends, behind=(1,), steps=4))[0]
    assert (found.kind, found.where["ranks"]) == ("hang", [1])


ALL = range(4)


@pytest.mark.parametrize(
    ("ends", "kind", "severity", "claim"),
    [
        (
            {r: (r, SIGINT, "KeyboardInterrupt") for r in ALL},
            "job_ended",
            "info",
            "The job was interrupted: Ctrl-C on ranks 0, 1, 2 and 3",
        ),
        (
            {r: (r, SIGTERM, None) for r in ALL},
            "job_ended",
            "info",
            "The job was ended from outside: SIGTERM to ranks 0, 1, 2 and 3",
        ),
        (
            {r: (r, 143 << 8, "SystemExit") for r in ALL},
            "job_ended",
            "info",
            "The job was ended from outside: SIGTERM to ranks 0, 1, 2 and 3",
        ),
        (
            {r: (r, 3 << 8, "SystemExit") for r in ALL},
            "crash",
            "critical",
            "The job died: rank 0 ended first (exit code 3)",
        ),
        (
            {r: (r, SIGKILL, None) for r in ALL},
            "job_ended",
            "warning",
            "All processes were killed together: SIGKILL to ranks 0, 1, 2 and 3",
        ),
        (
            {r: (r, 256, "ValueError") for r in ALL},
            "crash",
            "critical",
            "The job died: rank 0 ended first (ValueError)",
        ),
        (
            {r: (r, 256 if r else 0, "RuntimeError" if r else None) for r in ALL},
            "crash",
            "critical",
            "The job died: ranks 1, 2 and 3 failed (RuntimeError) after rank 0 had ended normally",
        ),
        ({r: (r, None, None) for r in ALL}, None, None, None),
    ],
    ids=[
        "interrupted", "terminated", "terminated, as a handler exits", "exit code", "killed", "error", "after one in order", "unknown",
    ],
)  # fmt: skip
def test_the_way_in_which_all_ended_is_reported(ends, kind, severity, claim):
    """Fails when the first word on a job that died is how its communication was."""
    found = ends_of(job(ends))
    assert [one.kind for one in found] == [kind] * (kind is not None)
    for one in found:
        assert one.severity == severity
        assert str(one.claim) == claim
        assert str(one.evidence[0]) == "All processes ended within 3.00 ms, rank 0 first"


@pytest.mark.parametrize(("in_order", "named"), [((0,), [0]), ((0, 1, 3), [2])])
def test_of_those_that_ended_and_those_that_failed_the_fewer_are_named(in_order, named):
    """Fails when the ranks that were right are named because one had a batch more."""
    ends = {r: (0, 0, None) if r in in_order else (900, 256, "RuntimeError") for r in ALL}
    (found,) = ends_of(job(ends))
    assert (found.kind, found.cause, found.where["ranks"]) == ("crash", "ended_first", named)


TORCH = "/v/torch/distributed/distributed_c10d.py"


def seen(trace, stacks):
    """Return a capture with the innermost function of ranks: file, function and moment of each."""
    rows = [
        {"rank": rank, "depth": 0, "function": function, "file": file, "line": 7,
         "goes_on": False, "moment": moment, "time_ns": LAST}
        for rank, (file, function, moment) in stacks.items()
    ]  # fmt: skip
    return trace.with_tables({"standing": STANDING.conform(pa.Table.from_pylist(rows))})


def test_who_only_lost_a_peer_did_not_die_first():
    """Fails when the rank whose exit was quicker is named for the error of another one."""
    ends = {r: (r, 256, "RuntimeError") for r in ALL} | {2: (400, 256, "ValueError")}
    lost = dict.fromkeys((0, 1, 3), (TORCH, "all_reduce", "peer_lost"))
    trace = seen(job(ends), lost | {2: ("/job/data.py", "decode", "raised")})
    (found,) = ends_of(trace)
    assert (found.kind, found.where["ranks"], found.confidence) == ("crash", [2], 0.9)
    assert "Rank 2 raised the exception in decode (data.py:7)" in map(str, found.evidence)


def test_an_error_out_of_a_call_of_communication_may_be_of_a_peer():
    """Fails when a text of a backend that is not known, or a check that all fail, blames the first rank to end."""
    ends = {r: (r, 256, "RuntimeError") for r in ALL}
    trace = seen(job(ends), dict.fromkeys(ALL, (TORCH, "all_reduce", "raised")))
    assert died_first(trace, 10.0 * STEP_NS) is None
    (found,) = ends_of(trace)
    assert (found.where["ranks"], found.confidence) == (list(ALL), 0.8)
    assert (
        str(found.claim)
        == "All 4 ranks failed by RuntimeError in all_reduce (distributed_c10d.py:7)"
    )


def test_a_long_wait_for_a_rank_that_was_killed_says_so():
    """Fails when nobody is told that the kernel killed a rank that took too long over its checkpoint."""
    ends = dict.fromkeys(ALL, (60050, 256, "RuntimeError")) | {2: (60_000, SIGKILL, None)}
    found = ends_of(job(ends, behind=(2,), steps=20))[0]
    assert (found.kind, found.where["ranks"]) == ("hang", [2])
    assert "Rank 2 ended by SIGKILL" in map(str, found.evidence)


def test_who_was_elsewhere_when_the_others_gave_up_is_named():
    """Fails when the rank whose wait timed out first is said to have died, not who did not come."""
    ends = dict.fromkeys(ALL, (4000, 256, "RuntimeError")) | {2: (4100, SIGTERM, None)}
    gave_up = dict.fromkeys((0, 1, 3), (TORCH, "monitored_barrier", "timed_out"))
    trace = seen(job(ends, steps=20), gave_up | {2: ("/job/io.py", "load_shard", "other_died")})
    (found,) = ends_of(trace)
    assert (found.kind, found.where["ranks"]) == ("hang", [2])
    assert str(found.claim).startswith("Rank 2 did not come to monitored_barrier, where 3 ranks")
    assert any(
        str(fact) == "Rank 2, when another rank ended: in load_shard (io.py:7)"
        for fact in found.evidence
    )


def test_a_healthy_job_that_is_interrupted_did_not_hang():
    """Fails when ranks that take seconds to end after Ctrl-C are said to have been waited for."""
    ends = dict.fromkeys(ALL, (3500, SIGINT, "KeyboardInterrupt"))
    trace = job(ends, behind=(0,))
    progress = trace.frame("progress").assign(alive_ns=LAST + 20 * MS)
    table = PROGRESS.conform(pa.Table.from_pandas(progress, preserve_index=False))
    found = ends_of(trace.with_tables({"progress": table}))
    assert [one.cause for one in found] == ["interrupted"]


def test_a_job_that_died_in_its_first_step_is_diagnosed():
    """Fails when "no step and no event was recorded" hides who died."""
    ends = dict.fromkeys(ALL, (500, SIGTERM, None)) | {2: (0, SIGKILL, None)}
    trace = job(ends, behind=(2,))
    assert diagnose(trace).findings[0].where["ranks"] == [2]
    steps = job(ends, behind=(2,), steps=1)
    unequal = steps.frame("step")
    table = pa.Table.from_pandas(unequal.assign(step=unequal["rank"]), preserve_index=False)
    never_common = steps.with_tables({"step": TABLES["step"].conform(table)})
    result = diagnose(never_common)
    assert result.findings[0].where["ranks"] == [2]
    assert any(
        "No step was finished on every captured rank" in limit for limit in texts(result.limits)
    )


def test_a_capture_of_a_job_that_ended_in_order_without_steps_stays_an_error():
    """Fails when an empty capture is called a diagnosis without findings."""
    with pytest.raises(NoStepsError, match="no step and no event was recorded"):
        diagnose(trace_of(ranks=(0, 1)))


def test_a_job_that_never_started_is_sent_to_the_log_of_its_launcher():
    """Fails when a port in use, or a rendezvous that timed out, is told as an unknown world size."""
    with pytest.raises(
        NoStepsError, match=r"no process of the job was a rank.*log of the launcher"
    ):
        diagnose(trace_of(ranks=(), origin="meshscope"))


def test_how_it_ended_stands_above_a_line_and_the_rest_below():
    """Fails when a job that died is first told where its step time went."""
    ends = dict.fromkeys(ALL, (500, SIGTERM, None)) | {2: (0, SIGKILL, None)}
    text = to_text(diagnose(job(ends, behind=(2,), steps=4)))
    died = text.index("The job died: rank 2 ended first (SIGKILL)")
    assert died < text.index("before it ended") < text.index("Where the step time went")


def test_a_restart_that_fails_before_its_first_step_says_so():
    """Fails when the steps of the first attempt hide that the second one never began."""
    starts = [
        {"attempt": 1, "first_step": 0, "last_step": 2},
        {"attempt": 2, "first_step": 3, "last_step": None},
    ]
    ends = {0: (0, 256, "RuntimeError")} | dict.fromkeys((1, 2, 3), (20, SIGTERM, None))
    found = ends_of(job(ends, behind=(1,), steps=3, attempt=starts))[0]
    assert found.severity is Severity.CRITICAL
    assert str(found.claim) == (
        "The job died: rank 0 ended first (RuntimeError), before the first step of attempt 2 ended"
    )


@pytest.mark.parametrize("is_recorded", [True, False])
def test_what_was_not_recorded_at_the_end_is_said(is_recorded):
    """A mismatch in a step beyond the budget of the probe would look like a crash of who noticed it first."""
    trace = job({rank: (rank * 100, SIGABRT, None) for rank in range(3)})
    progress = trace.frame("progress").to_dict("records")
    if not is_recorded:
        progress = [{**row, "issued_seq": None, "completed_seq": None} for row in progress]
    table = PROGRESS.conform(pa.Table.from_pylist(progress))
    (found,) = how_it_ended(trace.with_tables({"progress": table}), None)
    said = [line for line in texts(found.evidence) if "MESHSCOPE_COST_BUDGET_PPM=0" in line]
    assert [line.split(".")[0] for line in said] == (
        [] if is_recorded else ["Not recorded: the last communication of ranks 0, 1 and 2"]
    )


@pytest.mark.parametrize("is_known", [True, False])
def test_silence_before_the_first_end_is_said_where_a_record_tells_it(is_known):
    """Without a record the time since the host booted would be given as silence."""
    trace = job({0: (20_000, 256, "ValueError"), 1: (20_020, 256, "ValueError")})
    if not is_known:
        names = ("collective", "recording")
        trace = trace.with_tables({name: TABLES[name].empty() for name in names})
    (found,) = (one for one in how_it_ended(trace, STEP_NS) if one.is_end)
    codes = [one.code for one in found.evidence]
    assert ("crash.silent_before" in codes) is is_known


def test_who_failed_in_a_message_is_not_said_to_have_had_more_batches():
    """Fails when the receiver of a message that was never sent is advised to pad its data."""
    ends = {0: (0, 0, None), 1: (0, 0, None), 2: (900, 256, "RuntimeError")}
    trace = job(ends)
    for function, code in (
        ("recv", "crash.remedy_message_after_end"),
        ("all_reduce", "crash.remedy_after_most_ended"),
    ):
        (found,) = ends_of(seen(trace, {2: (TORCH, function, "peer_lost")}))
        assert (found.where["ranks"], found.remedy.code) == ([2], code)


@pytest.mark.parametrize(
    ("function", "file", "code"),
    [
        ("handler", "utils/data/_utils/signal_handling.py", "crash.loader_worker"),
        ("ExceptionWrapper.reraise", "_utils.py", "crash.in_worker"),
        ("load", "serialization.py", None),
    ],
)
def test_a_worker_that_died_or_failed_is_told(function, file, code):
    """Fails when who noticed the death of a loader is shown as the place of the error, and nothing else."""
    ends = {0: (400, 256, "RuntimeError"), 1: (0, 256, "OSError"), 2: (400, SIGTERM, None)}
    place = (f"/v/site-packages/torch/{file}", function, "raised")
    (found,) = ends_of(seen(job(ends), {1: place}))
    assert (found.kind, found.where["ranks"]) == ("crash", [1])
    told = {fact.code for fact in found.evidence} & {"crash.loader_worker", "crash.in_worker"}
    assert told == ({code} if code else set())


def test_the_last_rank_that_a_launcher_killed_had_no_want_of_memory():
    """Fails when a rank in a debugger, which a launcher had to kill, sends its user to the kernel's log."""
    ends = dict.fromkeys(range(3), (30_000, SIGTERM, None))
    killed = dict.fromkeys(range(3), (30_000, SIGKILL, None))
    for others, killed_ms, is_told in (
        (ends, 60_000, False), (ends, 29_900, True), (killed, 29_900, False),
    ):  # fmt: skip
        own = others | {3: (killed_ms, SIGKILL, None)}
        found = ends_of(job(own, behind=(3,), steps=4))[0]
        assert found.where["ranks"] == [3]
        assert any(fact.code == "crash.killed" for fact in found.evidence) is is_told


@pytest.mark.parametrize(("status", "is_first"), [(SIGKILL, True), (SIGTERM, False)])
def test_who_is_killed_in_a_hang_hides_not_who_did_not_come(status, is_first):
    """Fails when one rank that is killed, so that its stack lacks, leaves a hang of another without a name."""
    ends = dict.fromkeys((0, 2, 3), (9_080, SIGTERM, None)) | {1: (9_000, status, None)}
    waits = dict.fromkeys((0, 3), (TORCH, "all_reduce", "other_died"))
    trace = seen(job(ends, steps=20), waits | {2: ("/job/io.py", "load_shard", "other_died")})
    (found,) = ends_of(trace)
    assert (found.kind, found.where["ranks"] == [2]) == ("hang", is_first)
    said = "Rank 1 then died first (SIGKILL), and the others because of it"
    assert (said in map(str, found.evidence)) is is_first


def test_a_stage_that_waits_in_a_send_is_not_blamed_for_the_one_that_receives_nothing():
    """Fails when the middle of a pipeline is named, and the last stage, which reads a file, is not even shown."""
    ends = {rank: (20_000 + rank, SIGINT, "KeyboardInterrupt") for rank in range(3)}
    trace = job(ends, steps=20)
    waits = {"group_id": "g", "rank": 0, "peer": 1, "direction": "recv", "seq": 0, "event_id": 2}
    p2p = trace_of(p2p=[{**waits, "start_ns": LAST, "end_ns": None}]).tables["p2p"]
    sends = ("/v/torch/distributed/pipelining/schedules.py", "_wait_batch_p2p", "standstill")
    stacks = {0: sends, 1: sends, 2: ("/job/data.py", "load", "standstill")}
    (found,) = ends_of(seen(trace.with_tables({"p2p": p2p}), stacks))
    assert (found.kind, found.where["ranks"]) == ("hang", [2])


@pytest.mark.parametrize(("line", "code"), [(623, "crash.remedy"), (29, "crash.remedy_aborted")])
def test_whom_a_library_aborted_in_a_call_is_a_victim_of_who_stood_at_another_line(line, code):
    """Fails when the log of a rank that gloo aborted is all there is to read, and the branch of another is not."""
    ends = dict.fromkeys(ALL, (130, SIGTERM, None)) | {1: (0, SIGABRT, None)}
    rows = [
        {"rank": rank, "depth": depth, "function": function, "file": file, "line": own,
         "goes_on": False, "moment": moment, "time_ns": LAST}
        for rank, moment, name, at in (
            (1, "fatal_signal", "after", 623), (2, "other_died", "loop", line),
            (3, "other_died", "main.<locals>.after", 623),
        )
        for depth, (function, file, own) in enumerate(
            (("all_reduce", TORCH, 7), (name, "/job/train.py", at))
        )
    ]  # fmt: skip
    standing = STANDING.conform(pa.Table.from_pylist(rows))
    (found,) = ends_of(job(ends).with_tables({"standing": standing}))
    assert (found.kind, found.where["ranks"], found.remedy.code) == ("crash", [1], code)
    if code == "crash.remedy_aborted":
        assert found.remedy.values["others"] == [2]


@pytest.mark.parametrize(
    ("status", "is_said"), [(SIGSEGV, True), (SIGABRT, True), (SIGKILL, False)]
)
def test_a_signal_of_which_no_stack_was_written_says_where_that_may_be(status, is_said):
    """Fails when a program with a fault handler of its own leaves a crash without a line, and nobody knows why."""
    ends = dict.fromkeys(ALL, (130, SIGTERM, None)) | {1: (0, status, None)}
    (found,) = ends_of(job(ends))
    assert any(fact.code == "crash.no_stack" for fact in found.evidence) is is_said


def test_who_left_at_ctrl_c_before_the_others_gave_signs_of_life_until_then():
    """Fails when a rank that waits for a worker of its DataLoader is said to be dead or stopped, and no worker is named."""
    ends = dict.fromkeys(ALL, (26_000, SIGINT, "KeyboardInterrupt"))
    trace = job(ends | {2: (20_000, SIGINT, "KeyboardInterrupt")}, behind=(2,), steps=20)
    trace = seen(trace, {2: ("/v/torch/utils/data/dataloader.py", "_try_get_data", "standstill")})
    (found,) = ends_of(trace)
    assert (found.kind, found.where["ranks"]) == ("hang", [2])
    said = {fact.code for fact in found.evidence}
    assert said >= {"hang.alive", "hang.loader_worker"}
    assert "hang.no_sign_of_life" not in said


@pytest.mark.parametrize(
    ("first", "hosts", "is_said"),
    [
        ((2, 3), "aabb", True),
        ((2,), "aabb", False),
        ((1, 2), "aabb", False),
        ((2, 3), "aaaa", False),
    ],
    ids=["a whole host", "one of two ranks", "of two hosts", "there is no other host"],
)
def test_all_ranks_of_a_host_that_die_first_hint_at_the_host(first, hosts, is_said):
    """Fails when a lost node is told as two ranks, or one dead rank of many as a lost node."""
    died, led = (0, SIGKILL, None), (400, SIGTERM, None)
    ends = {rank: died if rank in first else led for rank in range(4)}
    clocks = {rank: f"host-{host}" for rank, host in enumerate(hosts)}
    (found,) = ends_of(replace(job(ends), clocks=clocks))
    assert (found.kind, tuple(found.where["ranks"])) == ("crash", first)
    said = [one for one in texts(found.evidence) if "the host may be lost" in one]
    assert said == (["These are all ranks of host-b: the host may be lost"] if is_said else [])
