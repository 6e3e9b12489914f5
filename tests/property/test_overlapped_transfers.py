"""What a change is worth where gradients are reduced during the backward pass, against the job that has it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshscope.analyze.measure import measure
from meshscope.analyze.synthetic import Costs, SyntheticJob, generate, make_simulation, parse_fault
from meshscope.analyze.whatif import parse_changes, predict
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
