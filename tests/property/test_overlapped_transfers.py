"""What a change is worth where gradients are reduced during the backward pass, against the job that has it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshscope.analyze.explain.whatif import parse_changes, predict
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.findings.rules.links import slow_links
from meshscope.analyze.synthetic import Costs, SyntheticJob, generate, make_simulation, parse_fault
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

MS = 1_000_000
SLOW = "slow_rank:rank=1,factor=2"
CHANGES = ["compute", "link.dp", "rank"]


def costs(compute, wire_ns):
    """Return the durations of a job whose devices are so many times as fast."""
    layer = round(MS / compute)
    return Costs(
        layer_forward_ns=layer,
        layer_backward_input_ns=layer,
        layer_backward_weight_ns=layer,
        optimizer_ns=2 * layer,
        dp_ns=wire_ns,
    )


def length(job):
    """Return the step time of a job."""
    return float(list(make_simulation(job).steps())[-1].end.mean() / job.steps)


@pytest.mark.sampled(keep=())
@settings(max_examples=25, deadline=None)
@given(
    ranks=st.integers(3, 4),
    buckets=st.sampled_from([2, 4, 8]),
    wire_ms=st.sampled_from([8, 24, 64, 160]),
    change=st.sampled_from(CHANGES),
    factor=st.sampled_from([0.5, 2.0, 4.0]),
)
def test_buckets_that_come_closer_together_are_no_faster(ranks, buckets, wire_ms, change, factor):
    """Fails when a faster device, link or rank is promised what the link between ranks cannot give."""
    own = SyntheticJob(
        layout=ParallelLayout(dp=ranks),
        schedule=ScheduleKind.NONE,
        microbatches=1,
        steps=3,
        layers=(24,),
        segments=8,
        dp_buckets=buckets,
        overlap_dp=True,
        costs=costs(1, wire_ms * MS),
    )
    if change == "rank":
        then, own = own, replace(own, faults=(parse_fault(SLOW),))
        changes = parse_changes(["rank=1"], [])
    else:
        wire = round(wire_ms * MS / factor) if change == "link.dp" else wire_ms * MS
        then = replace(own, costs=costs(factor if change == "compute" else 1, wire))
        changes = parse_changes([], [f"{change}={factor}x"])
    result = predict(measure(generate(own)[0]), changes)
    assert result.predicted_ns == pytest.approx(length(then), rel=1e-6)


def test_a_place_is_reported_by_the_wire_times_of_its_cause():
    """Fails when a finding looks for its place in times with queueing, and does not find it there."""
    job = SyntheticJob(
        layout=ParallelLayout(tp=2, dp=3),
        schedule=ScheduleKind.NONE,
        microbatches=1,
        steps=6,
        layers=(24,),
        segments=8,
        dp_buckets=4,
        overlap_dp=True,
        jitter_cv=0.03,
        wire_cv=0.4,
        costs=Costs(dp_ns=64 * MS),
        faults=(parse_fault("slow_rank:rank=1,factor=1.1"),),
        seed=6,
    )
    account = measure(generate(job)[0])
    causes = {str(cause.where["group_id"]) for cause in account.causes("slow_link")}
    (finding,) = (one for one in slow_links(account))
    assert finding.where["group_id"] in causes
