"""What no slow rank, and no way to write down its durations, may change."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slow_ranks import Fault, Nuisance, SlowRankJob

from meshscope.analyze.explain.slow_ranks import detect
from meshscope.probe.schema.layout import ParallelLayout

PAST, STEPS = 24, 6
LAYOUTS = st.sampled_from(
    [
        ParallelLayout(dp=4),
        ParallelLayout(pp=2, dp=2),
        ParallelLayout(pp=4, dp=2),
        ParallelLayout(pp=4),
        ParallelLayout(tp=2, pp=2, dp=2),
    ]
)


@st.composite
def slow_jobs(draw):
    """Return a job with one rank that is slow by a fifth to a half from a step on, and the rank."""
    layout = draw(LAYOUTS)
    rank = draw(st.integers(0, layout.world_size - 1))
    fault = Fault(rank=rank, factor=draw(st.floats(1.2, 1.5)), start=PAST)
    job = SlowRankJob(
        seed=draw(st.integers(0, 10**6)),
        layout=layout,
        steps=PAST + STEPS,
        faults=(fault,),
        nuisance=Nuisance(work_cv=draw(st.sampled_from([0.0, 0.35])) if layout.pp > 1 else 0.0),
    )
    return job, rank


@settings(max_examples=20, deadline=None)
@given(slow_jobs())
def test_a_very_slow_rank_is_the_first_suspect_since_its_first_bad_step(drawn):
    """Fails if a rank that is slow by a fifth is missed, or another one is named before it."""
    job, rank = drawn
    suspect = detect(job.frame(), job.layout).suspects[0]
    assert suspect.rank == rank
    assert suspect.first_bad_step == PAST
    assert suspect.interval[0] - 0.05 < job.faults[0].factor - 1 < suspect.interval[1] + 0.05


@settings(max_examples=10, deadline=None)
@given(slow_jobs(), st.floats(0.1, 1000.0), st.integers(1, 50))
def test_units_step_numbers_and_the_order_of_rows_do_not_matter(drawn, unit, stride):
    """Fails if microseconds, sampled steps or shuffled rows lead to another verdict."""
    job, _ = drawn
    frame = job.frame()
    other = frame.sample(frac=1.0, random_state=1)
    other["dur_ns"] = other["dur_ns"] * unit
    other["step"] = other["step"] * stride
    one, two = detect(frame, job.layout).suspects, detect(other, job.layout).suspects
    assert [v.rank for v in one] == [v.rank for v in two]
    assert [v.first_bad_step * stride for v in one] == [v.first_bad_step for v in two]
    assert np.allclose([v.slowdown for v in one], [v.slowdown for v in two], atol=1e-3)
