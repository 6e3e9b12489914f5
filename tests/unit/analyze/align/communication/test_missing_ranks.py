"""What a rank that is not in the capture does to the numbers of the others."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.synthetic import MS, Job, capture
from tests.texts import texts

from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.explain.whatif import parse_changes, predict
from meshscope.analyze.findings.critical_path import critical_path
from meshscope.analyze.findings.diagnosis import diagnose, diagnosis_of
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

JOB = Job(layout=ParallelLayout(pp=2, dp=16), schedule="1f1b", microbatches=4, steps=3)
MISSING = 3
PEER = 19
"""The rank that the missing one, of the first stage, sends to."""


def without(trace: Trace, *gone: int) -> Trace:
    """Return the capture without some ranks; the job itself is as it was."""
    tables = {
        name: table.filter(pc.invert(pc.is_in(table["rank"], pa.array(gone, pa.int32()))))
        if "rank" in table.column_names
        else table
        for name, table in trace.tables.items()
    }
    ranks = tuple(rank for rank in trace.ranks if rank not in gone)
    return replace(trace, tables=tables, ranks=ranks, _frames={})


def slow_first_stage(kind: str, rank: int, step: int, microbatch: int) -> int:
    """Return the work of a pass: half as much again in the first stage."""
    work = 4 * MS if kind == "forward" else 8 * MS
    return work * (3 if rank < JOB.layout.dp else 2) // 2


@pytest.fixture(scope="module")
def whole() -> Trace:
    """Return the capture of all ranks."""
    return capture(JOB, slow_first_stage)


def test_a_slow_stage_returns_as_much_with_one_rank_missing(whole):
    """Fails when waiting for a missing rank is frozen, so that no repair returns anything."""

    def reported(trace):
        (cause,) = (c for c in diagnose(trace).causes if c.kind == "stage_imbalance")
        return cause.share_frac, cause.removal_gain_frac

    assert reported(without(whole, MISSING)) == pytest.approx(reported(whole), rel=0.05)


def test_a_link_without_its_sender_is_not_called_slow(whole):
    """Fails when the waiting of a receive whose sender is missing is taken for its wire."""
    found = diagnose(without(whole, MISSING))
    assert not [cause for cause in found.causes if cause.kind == "slow_link"]
    assert any("peers in another data-parallel replica" in limit for limit in texts(found.limits))


def test_a_receive_whose_sender_is_missing_was_no_longer_on_the_wire_than_its_like(whole):
    """Fails when the receive of a missing sender has its whole duration as wire time."""
    trace = without(whole, MISSING)
    frame = communication_events(trace, step_windows(trace)).frame
    receives = frame[frame["is_p2p"] & ~frame["is_send"] & (frame["rank"] >= JOB.layout.dp)]
    wires = receives.groupby(receives["rank"] == PEER)["wire_ns"].max()
    assert wires[True] <= wires[False]


def test_nothing_is_reported_of_repairs_where_nobody_stands_in(whole):
    """Fails when a job whose layout is not known gets gains from waits that are frozen."""
    trace = replace(without(whole, MISSING), layout=None, _frames={})
    found = diagnose(trace)
    assert not found.causes
    assert any(
        "what repairing a cause returns is unknown" in limit for limit in texts(found.limits)
    )


def test_a_whole_capture_needs_nobody(whole):
    """Fails when operations that are complete get members they do not have."""
    events = communication_events(whole, step_windows(whole))
    assert len(events.replica_proxies.event) == 0
    assert events.lonely_frac == 0


def test_a_missing_straggler_is_a_limit_and_no_cause():
    """Fails when what others waited for a missing slow rank is charged to the schedule."""

    def one_slow(kind: str, rank: int, step: int, microbatch: int) -> int:
        return (8 if rank == MISSING else 4) * MS * (1 if kind == "forward" else 2)

    found = diagnose(without(capture(JOB, one_slow), MISSING))
    assert not found.causes
    assert "pipeline_bubble" not in {finding.kind for finding in found.findings}
    assert any("may be the straggler" in limit for limit in texts(found.limits))


def test_a_missing_rank_leaves_no_number_that_is_not_one():
    """Fails when what the captured ranks waited is printed as nan, or a gain as exact."""
    job = Job(layout=ParallelLayout(dp=3), steps=4)

    def slow(kind: str, rank: int, step: int, microbatch: int) -> int:
        return (6 if rank == 2 else 4) * MS

    trace = without(capture(job, slow), 0)
    found = diagnose(trace)
    evidence = [line for finding in found.findings for line in finding.evidence]
    assert not [line for line in evidence if "nan" in str(line).lower().split()]
    assert "straggler_rank.waits_unknown" in [getattr(line, "code", "") for line in evidence]
    result = predict(measure(trace), parse_changes(["rank=2"], []))
    assert result.error_ns is None
    assert result.error_unknown is not None
    assert "not in the capture" in str(result.error_unknown)


def from_any_sender(trace: Trace) -> Trace:
    """Return the capture with receives that do not name their sender."""
    rows = trace.tables["p2p"].to_pylist()
    rows = [row | ({"peer": -1} if row["direction"] == "recv" else {}) for row in rows]
    table = TABLES["p2p"].conform(pa.Table.from_pylist(rows))
    return replace(trace, tables={**trace.tables, "p2p": table}, _frames={})


def test_receives_from_any_sender_are_reported_and_nobody_is_blamed():
    """Fails when a sender that nobody knows is looked up in the mesh, which ends the command."""
    job = Job(layout=ParallelLayout(pp=2, dp=2), microbatches=4, steps=4)
    account = measure(from_any_sender(capture(job, slow_first_stage)))
    text = " ".join(texts(account.limits))
    assert "48 receives from any sender" in text
    assert "waited for senders that their receives do not name" in text
    assert critical_path(account).pieces["dur_ns"].sum() > 0
    assert not [found for found in diagnosis_of(account).findings if "-1" in str(found.where)]
