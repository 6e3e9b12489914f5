"""How a replay begins: with the skew that the causes left, if there was a step to leave it."""

import pytest

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.synthetic import Fault, FaultKind, SyntheticJob, generate
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind


@pytest.mark.parametrize("schedule", [ScheduleKind.ZB_H1, ScheduleKind.GPIPE])
def test_ranks_that_start_together_are_not_moved_apart(schedule):
    """Fails if the repair of a slow group is charged a skew that its first step never had."""
    slow = Fault(kind=FaultKind.SLOW_LINK, axis="dp", rank=3, extra_ms=60.0)
    job = SyntheticJob(
        layout=ParallelLayout(tp=2, pp=2, dp=2),
        schedule=schedule,
        microbatches=8,
        steps=6,
        faults=(slow,),
        jitter_cv=0.0,
        wire_cv=0.0,
    )
    trace, truth = generate(job)
    (cause,) = (c for c in diagnose(trace).causes if c.kind == "slow_link")
    true_frac = 1 - truth.clean_step_time_ns / truth.step_time_ns
    assert true_frac > 0.2
    assert cause.removal_gain_frac == pytest.approx(true_frac, abs=1e-3)
