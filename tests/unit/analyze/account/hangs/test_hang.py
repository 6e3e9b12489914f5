"""Chains of waiting, worked out by hand: roots are named, victims are not."""

from dataclasses import replace

import pyarrow as pa
import pytest
from tests.tables import trace_of

from meshscope.analyze.account.hangs.hang import wait_graph
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.findings.rules.hang import hang_findings
from meshscope.analyze.findings.rules.silence import _silence
from meshscope.probe.schema.standstill_tables import STANDING
from meshscope.probe.schema.tables import COLLECTIVE

DUMP = "flight_recorder"


def issued(rank, group, seq, at_ns, **changed):
    """Return a collective that a rank had issued and that was not complete."""
    return {
        "rank": rank, "group_id": group, "seq": seq, "start_ns": at_ns, "end_ns": None,
        "event_id": at_ns, "source": "host_issue", **changed,
    }  # fmt: skip


def dumped(groups, progress, rows, p2p=(), *, ranks=None, origin=DUMP, **more):
    """Return a capture that broke off.

    Args:
        groups: Members by group.
        progress: Last issued and last completed number by rank and group.
        rows: Open collectives.
        p2p: Open transfers.
        ranks: Captured ranks; all members if not given.
        origin: What wrote the capture.
        more: Other tables.
    """
    members = sorted({rank for group in groups.values() for rank in group})
    return trace_of(
        origin=origin,
        ranks=tuple(members) if ranks is None else ranks,
        group=[{"group_id": name, "ranks": list(group)} for name, group in groups.items()],
        progress=[
            {"rank": rank, "group_id": group, "issued_seq": last, "completed_seq": done}
            for (rank, group), (last, done) in progress.items()
        ],
        collective=list(rows),
        p2p=list(p2p),
        **more,
    )


def test_the_chain_is_followed_to_the_rank_that_waits_for_nobody():
    """A victim that is late in one group because it is stuck in another would be blamed."""
    trace = dumped(
        {"a": (0, 1), "b": (1, 2), "c": (2, 3)},
        {
            (0, "a"): (7, 6), (1, "a"): (6, 6), (1, "b"): (4, 3), (2, "b"): (3, 3),
            (2, "c"): (9, 8), (3, "c"): (8, 8),
        },
        [issued(0, "a", 7, 10), issued(1, "b", 4, 11), issued(2, "c", 9, 12)],
    )  # fmt: skip
    graph = wait_graph(trace)
    assert graph.absent == (3,)
    assert graph.waiting == (0, 1, 2)
    finding = next(hang_findings(trace))
    assert finding.where["ranks"] == [3]
    assert finding.evidence[-1].code == "hang.victims"
    assert finding.evidence[-1].values["victims"] == [1, 2]


def test_an_operation_behind_an_older_one_waits_for_that():
    """A rank that has issued all, but is held up by its first operation, would be blamed."""
    trace = dumped(
        {"a": (0, 1), "b": (1, 2)},
        {(0, "a"): (5, 4), (1, "a"): (5, 4), (1, "b"): (3, 2), (2, "b"): (2, 2)},
        [issued(0, "a", 5, 20), issued(1, "b", 3, 10), issued(1, "a", 5, 21)],
    )
    graph = wait_graph(trace)
    assert graph.absent == (2,)
    assert not graph.stuck


def test_what_all_have_issued_is_stuck_and_blames_no_rank():
    """A broken link would be blamed on a rank that did all that it should."""
    trace = dumped(
        {"a": (0, 1)},
        {(0, "a"): (5, 4), (1, "a"): (5, 4)},
        [issued(0, "a", 5, 20), issued(1, "a", 5, 21)],
    )
    graph = wait_graph(trace)
    assert graph.absent == ()
    assert [found.key[:2] for found in graph.stuck] == [("a", 5)]
    finding = next(hang_findings(trace))
    assert finding.severity == "warning"
    assert finding.where["group_id"] == "a"
    assert finding.claim.code == "hang.stuck"


@pytest.mark.parametrize(
    ("kind", "code"), [("all_reduce", "deadlock_groups"), ("barrier", "deadlock")]
)
def test_a_circle_is_reported_as_one(kind, code):
    """Two ranks that issue in different orders, or on different groups, would give no finding, or blame one of them."""
    trace = dumped(
        {"a": (0, 1), "b": (0, 1), "c": (1, 2)},
        {
            (0, "a"): (1, 0), (1, "a"): (0, 0), (0, "b"): (0, 0), (1, "b"): (1, 0),
            (2, "c"): (3, 2), (1, "c"): (2, 2),
        },
        [issued(0, "a", 1, 10), {**issued(1, "b", 1, 11), "kind": kind}, issued(2, "c", 3, 12)],
    )  # fmt: skip
    finding = next(hang_findings(trace))
    assert finding.where["ranks"] == [0, 1]
    assert finding.claim.code == f"hang.{code}"


def test_a_transfer_without_its_other_end_waits_for_the_peer():
    """A pipeline stage that stopped sending would not be found."""
    transfer = {"group_id": "p", "start_ns": 10, "end_ns": None, "seq": 0, "event_id": 1}
    trace = dumped(
        {"p": (0, 1, 2)},
        {(0, "p"): (0, 0), (1, "p"): (0, 0), (2, "p"): (0, 0)},
        [],
        [
            {**transfer, "rank": 1, "peer": 0, "direction": "recv"},
            {**transfer, "rank": 1, "peer": 2, "direction": "send", "event_id": 2},
            {**transfer, "rank": 2, "peer": 1, "direction": "recv"},
        ],
    )
    graph = wait_graph(trace)
    assert graph.absent == (0,)
    assert graph.waiting == (1, 2)


def test_a_rank_without_a_capture_is_suspected_with_less_confidence():
    """A host that died, and so left no dump, would not be named."""
    trace = dumped(
        {"a": (0, 1, 2)},
        {(0, "a"): (5, 4), (1, "a"): (5, 4)},
        [issued(0, "a", 5, 20), issued(1, "a", 5, 21)],
        ranks=(0, 1),
    )
    finding = next(hang_findings(trace))
    assert finding.where["ranks"] == [2]
    assert finding.confidence < 0.9


def test_an_end_that_was_not_noted_yet_is_no_excuse():
    """The culprit would pass as a victim, because its recorder lags behind by one collective."""
    trace = dumped(
        {"a": (0, 1), "b": (0, 1)},
        {(0, "a"): (3, 2), (1, "a"): (3, 3), (0, "b"): (6, 6), (1, "b"): (7, 6)},
        [issued(0, "a", 3, 10), issued(1, "b", 7, 12)],
    )
    assert wait_graph(trace).absent == (0,)


def test_nothing_open_is_no_hang():
    """The dump of a healthy job would raise an alarm."""
    trace = dumped({"a": (0, 1)}, {(0, "a"): (5, 5), (1, "a"): (4, 4)}, [issued(0, "a", 5, 20)])
    assert wait_graph(trace) is None
    assert not list(hang_findings(trace))


def own(last_end_ns, *, progress=True, missing=True):
    """Return a capture of ours in which rank 1 may not have issued the last collective.

    Nobody saw the end of any collective. Steps take 100 ns.
    """
    rows = [issued(rank, "a", seq, 100 * seq) for rank in (0, 1) for seq in (1, 2)]
    rows.append(issued(0, "a", 3, 300))
    if not missing:
        rows.append(issued(1, "a", 3, 300))
    return dumped(
        {"a": (0, 1)},
        {(0, "a"): (3, None), (1, "a"): (2 if missing else 3, None)} if progress else {},
        rows,
        origin="meshscope",
        span=[{"rank": 1, "kind": "gc", "start_ns": 0, "dur_ns": last_end_ns}],
        step=[
            {"rank": rank, "step": step, "start_ns": 100 * step, "dur_ns": 100}
            for rank in (0, 1)
            for step in (1, 2)
        ],
    )


def findings_of(trace):
    """Return the hang findings with the step time of the capture."""
    return list(hang_findings(trace, step_windows(trace).step_time_ns))


def test_a_capture_of_ours_names_who_never_issued_it():
    """A job of ours that hung for long would give no finding."""
    (finding,) = findings_of(own(last_end_ns=5_000))
    assert finding.where["ranks"] == [1]
    assert finding.severity == "critical"
    assert finding.evidence[1].code == "hang.oldest"
    assert finding.evidence[1].values["before_ns"] == 4_700


def test_a_job_killed_at_work_is_not_called_hung():
    """In every killed capture some rank is last: each would raise an alarm."""
    (finding,) = findings_of(own(last_end_ns=350))
    assert finding.severity == "info"
    assert finding.confidence < 0.5
    assert finding.claim.code == "hang.absent_at_end"


def sends(*, later_span_ns=0, rank_2_waits=True):
    """Return a capture of ours in which 0 and 1 send to each other and neither receives.

    Rank 2 waits for a transfer from 1. A span of rank 1 ends at ``later_span_ns``.
    """
    transfer = {"group_id": "p", "issue_ns": 300, "start_ns": 300, "end_ns": None, "seq": 1}
    rows = [
        {**transfer, "rank": 0, "peer": 1, "direction": "send", "event_id": 1},
        {**transfer, "rank": 1, "peer": 0, "direction": "send", "event_id": 1},
    ]
    if rank_2_waits:
        rows.append({**transfer, "rank": 2, "peer": 1, "direction": "recv", "event_id": 1})
    return dumped(
        {"p": (0, 1, 2)},
        dict.fromkeys(((rank, "p") for rank in range(3)), (0, None)),
        [],
        rows,
        origin="meshscope",
        span=[{"rank": 1, "kind": "forward", "start_ns": 0, "dur_ns": later_span_ns}],
    )


@pytest.mark.parametrize("rank_2_waits", [True, False])
def test_two_ranks_that_send_to_each_other_are_reported_as_a_circle(rank_2_waits):
    """A deadlock of blocking sends would pass for a crash, or blame one of the two."""
    graph = wait_graph(sends(rank_2_waits=rank_2_waits))
    assert graph.absent == ()
    assert graph.ring == (0, 1)


def test_a_rank_that_worked_on_after_its_send_does_not_stand_in_it():
    """A rank that hangs somewhere else would pass as a victim, for its sends were buffered."""
    graph = wait_graph(sends(later_span_ns=400))
    assert graph.absent == (1,)
    assert graph.ring == ()


@pytest.mark.parametrize("case", [{"progress": False}, {"missing": False}])
def test_unseen_ends_alone_are_no_hang(case):
    """Gradient reductions that nobody waits for in Python would look as if they hung."""
    assert not findings_of(own(last_end_ns=5_000, **case))


def test_many_ranks_are_listed_shortly():
    """A finding about thousands of ranks could not be read."""
    count = 300
    trace = dumped(
        {"a": range(count)},
        {(rank, "a"): (5 if rank < 2 else 4, 4) for rank in range(count)},
        [issued(0, "a", 5, 20), issued(1, "a", 5, 21)],
    )
    finding = next(hang_findings(replace(trace)))
    assert finding.where["ranks"] == list(range(2, 34))
    assert "and 290 more" in str(finding.claim)
    assert len(finding.evidence) < 10


def stopped(silent_ns):
    """Return a capture of ours without a sign of life in which all wait for rank 1."""
    spans = [{"rank": 1, "kind": "forward", "start_ns": 0, "dur_ns": 250}]
    rows = [issued(rank, "a", seq, 100 * seq) for rank in (0, 1, 2) for seq in (1, 2)]
    rows += [issued(0, "a", 3, 260), issued(2, "a", 3, 250 + silent_ns)]
    progress = {(rank, "a"): (2 if rank == 1 else 3, None) for rank in (0, 1, 2)}
    return dumped({"a": (0, 1, 2)}, progress, rows, origin="meshscope", span=spans)


def test_a_job_that_all_stood_still_in_is_critical_although_nothing_tells_how_long():
    """Fails when a job that hung matters less than one that is slow, as no process left a sign of life."""
    (finding,) = hang_findings(stopped(silent_ns=150), 1_000)
    assert (finding.severity, finding.where["ranks"]) == ("critical", [1])
    assert 0.5 < finding.confidence < 0.7
    (silent,) = (fact for fact in finding.evidence if fact.code == "hang.silent_rank")
    assert silent.values == {"rank": 1, "silent_ns": 150, "usual_ns": 100}


def test_a_rank_that_was_silent_as_often_before_is_not_called_hung():
    """Fails when a job that was killed while one rank was in its forward pass raises an alarm."""
    (finding,) = hang_findings(stopped(silent_ns=90), 1_000)
    assert finding.severity == "info"


def test_a_job_in_which_others_were_at_work_is_not_called_hung():
    """Fails when ranks that went on working count as standing still."""
    trace = stopped(silent_ns=150)
    (finding,) = hang_findings(replace(trace, ranks=(0, 1, 2, 3)), 1_000)
    assert finding.severity == "info"


def test_a_rank_that_records_no_communication_any_more_is_not_missed():
    """A probe that records less on one rank would make that rank the one that did not arrive."""
    level = {"start_ns": 0, "steps": 1, "dur_ns": 1, "cost_ns": 1, "reason": ""}
    recording = [
        {"rank": 1, "step": 0, "level": "collectives", **level},
        {"rank": 1, "step": 50, "level": "stages", **level},
        {"rank": 2, "step": 0, "level": "collectives", **level},
    ]
    receive = {
        "rank": 0, "peer": 1, "group_id": "a", "seq": 8, "start_ns": 30, "end_ns": None,
        "event_id": 30, "direction": "recv",
    }  # fmt: skip
    parts = (
        {"a": (0, 1, 2)},
        {(0, "a"): (9, None), (1, "a"): (None, None), (2, "a"): (8, None)},
        [issued(0, "a", 9, 20)],
    )
    graph = wait_graph(dumped(*parts, [receive], origin="meshscope", recording=recording))
    assert (graph.absent, graph.waiting) == ((2,), (0,))
    graph = wait_graph(dumped(*parts, [receive], origin="meshscope", recording=recording[:1]))
    assert graph.absent == (1, 2)


def test_where_no_member_records_communication_nobody_is_named():
    """A run that records one window in two and ends in the other one could not be diagnosed."""
    recording = [
        {"rank": rank, "step": 0, "level": "stages", "steps": 1, "dur_ns": 1} for rank in (0, 1)
    ]
    trace = dumped(
        {"a": (0, 1)},
        {(0, "a"): (None, None), (1, "a"): (None, None)},
        [issued(0, "a", 9, 20)],
        origin="meshscope",
        recording=recording,
    )
    assert wait_graph(trace) is None


def test_counts_of_backends_name_who_did_not_come():
    """A hang in a window that is not recorded would be nobody's."""
    recording = [
        {"rank": rank, "step": 0, "level": "stages", "steps": 1, "dur_ns": 1} for rank in range(3)
    ]
    steps = [{"rank": rank, "step": 0, "start_ns": 0, "dur_ns": 30 + rank} for rank in range(3)]
    trace = dumped(
        {"a": (0, 1, 2), "b": (0, 1)},
        {
            (0, "a"): (9, None), (1, "a"): (9, None), (2, "a"): (8, None),
            (0, "b"): (4, None), (1, "b"): (4, None),
        },
        [issued(0, "a", 3, 20)],
        origin="meshscope",
        recording=recording,
        step=steps,
    )  # fmt: skip
    graph = wait_graph(trace)
    assert (graph.absent, graph.waiting) == ((2,), (0, 1))
    (operation,) = graph.operations
    assert operation.key[:2] == ("a", 9)
    assert operation.since_ns == {0: 30, 1: 31}


def test_a_step_of_which_no_more_than_the_length_is_known_was_no_silence():
    """A rank that stopped would look as if it had been as silent before, in a run too large to read."""
    spans = [
        {"step": step, "kind": "forward", "start_ns": at, "dur_ns": 5}
        for step, at in ((0, 0), (0, 20), (3, 3000), (3, 3030))
    ]
    steps = [
        {"step": step, "start_ns": 1000 * step, "dur_ns": 1000,
         "detail": "full" if step in (0, 3) else "steps"}
        for step in range(4)
    ]  # fmt: skip
    spans.append({"rank": 1, "step": 4, "kind": "forward", "start_ns": 4000, "dur_ns": 35})
    assert _silence(trace_of(step=steps, span=spans), 0) == (965, 25)
    whole = [{**step, "detail": "full"} for step in steps]
    assert _silence(trace_of(step=whole, span=spans), 0) == (965, 2975)


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("/v/torch/distributed/distributed_c10d.py", "hang.unfinished"),
        ("/job/data.py", "hang.absent"),
    ],
)
def test_who_stands_in_what_all_have_issued_is_not_said_to_have_stayed_away(file, code):
    """Fails when another root or tag, which is not recorded, sends the reader to data loading and locks."""
    trace = own(last_end_ns=5_000)
    rows = trace.frame("collective")
    rows.loc[(rows["rank"] == 0) & (rows["seq"] == 2), "end_ns"] = 250
    stack = {
        "rank": 1,
        "depth": 0,
        "function": "broadcast",
        "file": file,
        "line": 7,
        "goes_on": False,
    }
    trace = trace.with_tables(
        {
            "collective": COLLECTIVE.conform(pa.Table.from_pandas(rows, preserve_index=False)),
            "standing": STANDING.conform(pa.Table.from_pylist([{**stack, "time_ns": 5}])),
        }
    )
    (finding,) = findings_of(trace)
    assert (finding.claim.code, finding.where["ranks"]) == (code, [1])


def test_sends_and_receives_of_a_ring_that_all_were_issued_are_no_circle():
    """Fails when ranks that send and receive side by side are called a deadlock."""
    ends = [
        (rank, way, (rank + by) % 3) for rank in range(3) for way, by in (("send", 1), ("recv", -1))
    ]
    p2p = [
        {"rank": rank, "peer": peer, "direction": way, "group_id": "a", "seq": 0, "start_ns": 10,
         "end_ns": None, "event_id": at, "source": "host_issue"}
        for at, (rank, way, peer) in enumerate(ends)
    ]  # fmt: skip
    progress = {(rank, "a"): (0, 0) for rank in range(3)}
    graph = wait_graph(dumped({"a": (0, 1, 2)}, progress, [], p2p))
    assert (graph.ring, len(graph.stuck)) == ((), 3)
