"""Host time that delays steps is named, and that of a start delays none."""

from dataclasses import replace

import pyarrow as pa
import pytest
from tests.synthetic import Job, capture, uniform
from tests.tables import trace_of

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.findings.rules.host import host_stalls
from meshscope.probe.schema.layout import ParallelLayout

MS = 1_000_000


def collecting(*kinds):
    """Return a run of ours without a finished step, in which spans of these kinds take 20 ms each."""
    spans = [
        {
            "rank": rank, "step": 0, "kind": kind, "start_ns": at * 20 * MS, "dur_ns": 20 * MS,
            "source": "host_issue", "event_id": at,
        }
        for rank in (0, 1)
        for at, kind in enumerate(kinds)
    ]  # fmt: skip
    recording = [
        {"rank": rank, "step": 0, "steps": 1, "level": "full", "start_ns": 0, "dur_ns": 100 * MS}
        for rank in (0, 1)
    ]
    return measure(trace_of(ranks=(0, 1), span=spans, recording=recording))


@pytest.mark.parametrize(("kinds", "found"), [(("gc",), []), (("forward", "gc"), ["gc_pause"])])
def test_garbage_that_imports_leave_delays_no_step(kinds, found):
    """Fails when a job that died in its start is told to collect garbage less often."""
    assert [one.kind for one in host_stalls(collecting(*kinds))] == found


@pytest.mark.parametrize(
    ("kind", "what", "named"),
    [
        ("other", "on host work that the training code marked", "other host time: 20.0 ms"),
        ("offload", "on moving state between host and device", "offload: 20.0 ms"),
    ],
)
def test_marked_and_offloading_host_time_is_a_finding(kind, what, named):
    """Fails when 25 % of a step that the training code gave a name to are in the account alone."""
    job = Job(layout=ParallelLayout(dp=4), microbatches=2, steps=6, optimizer_ns=20 * MS)
    trace = capture(job, uniform(10 * MS, 20 * MS))
    spans = trace.tables["span"]
    kinds = [kind if one == "optimizer" else one for one in spans["kind"].to_pylist()]
    at = spans.schema.get_field_index("kind")
    named_spans = spans.set_column(at, spans.schema.field(at), pa.array(kinds, spans["kind"].type))
    found = diagnose(replace(trace, tables={**trace.tables, "span": named_spans}, _frames={}))
    (stall,) = (one for one in found.findings if one.kind == "host_stall")
    assert what in str(stall.claim)
    assert named in str(stall.evidence[0])
    assert stall.cost_frac == pytest.approx(0.25, abs=0.02)
    assert stall.removal_gain_frac == pytest.approx(0.25, abs=0.02)
