"""A rank that is blocked while its microbatches differ: both have their own price."""

import pytest

from meshscope.analyze import diagnose
from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault
from meshscope.probe.schema.layout import ParallelLayout


@pytest.mark.parametrize(
    "layout",
    [ParallelLayout(pp=2, dp=4), ParallelLayout(tp=4, dp=2), ParallelLayout(dp=8)],
    ids=["two stages", "one stage", "replicas alone"],
)
def test_what_a_blocked_rank_loses_is_not_taken_for_long_sequences(layout):
    """The passes of a blocked rank would tell its replica that the data of these steps is larger."""
    blocked = parse_fault("blocked_rank:rank=3,extra_ms=3,every=3")
    faults = (blocked, parse_fault("sequence:cv=0.25"))
    job = SyntheticJob(layout=layout, steps=24, microbatches=8, jitter_cv=0.01, faults=faults)
    trace, truth = generate(job)
    gain = next(one.removal_gain_ns for one in truth.faults if one.fault == blocked)
    causes = [cause for cause in diagnose(trace).causes if cause.kind == "straggler_rank"]
    assert causes[0].where == {"rank": 3}
    found = sum(cause.removal_gain_frac for cause in causes)
    assert found == pytest.approx(gain / truth.step_time_ns, abs=0.01)
    assert gain >= 0.02 * truth.step_time_ns


def test_a_rank_blocked_in_one_direction_is_told_its_work_by_the_other():
    """A little blocking, hidden in unequal work, would be billed to the data of all replicas."""
    blocked = parse_fault("blocked_rank:rank=7,extra_ms=0.5,every=2")
    faults = (blocked, parse_fault("sequence:cv=0.4"))
    layout = ParallelLayout(dp=8)
    job = SyntheticJob(layout=layout, steps=24, microbatches=8, jitter_cv=0.01, faults=faults)
    trace, truth = generate(job)
    gain = {one.fault: one.removal_gain_ns / truth.step_time_ns for one in truth.faults}
    causes = {cause.kind: cause.removal_gain_frac for cause in diagnose(trace).causes}
    assert causes["straggler_rank"] == pytest.approx(gain[blocked], abs=0.005)
    assert causes["sequence_imbalance"] == pytest.approx(gain[faults[1]], abs=0.01)


def test_a_rank_that_is_slow_in_both_directions_tells_nothing_by_its_ratio():
    """A slow device would be taken for one with longer sequences."""
    slow = parse_fault("slow_rank:rank=2,factor=1.2,every=2")
    layout = ParallelLayout(dp=8)
    faults = (slow, parse_fault("sequence:cv=0.1"))
    job = SyntheticJob(layout=layout, steps=24, microbatches=8, jitter_cv=0.01, faults=faults)
    trace, truth = generate(job)
    gain = next(one.removal_gain_ns for one in truth.faults if one.fault == slow)
    causes = {cause.kind: cause.removal_gain_frac for cause in diagnose(trace).causes}
    assert causes["straggler_rank"] == pytest.approx(gain / truth.step_time_ns, abs=0.01)
