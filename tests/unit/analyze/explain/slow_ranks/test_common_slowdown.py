"""Steps that take longer on all ranks."""

import numpy as np
import pandas as pd
import pytest
from tests.slow_ranks import Fault, Nuisance, SlowRankJob
from tests.tables import trace_of

from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.explain.slow_ranks import detect
from meshscope.analyze.explain.slow_ranks.common_slowdown import slow_together
from meshscope.probe.schema.layout import ParallelLayout

LAYOUT = ParallelLayout(pp=2, dp=2)


def seen(factor, tokens=None, ranks=range(4), steps=40, lengths=None, **nuisance):
    """Return the verdict on a job whose ranks are slow from step 25 on.

    ``tokens`` gives those of a step, ``lengths`` those of each of its microbatches, in one sequence.
    """
    faults = tuple(Fault(rank=rank, factor=factor, start=25) for rank in ranks)
    job = SlowRankJob(
        seed=51, layout=LAYOUT, steps=steps, faults=faults, nuisance=Nuisance(**nuisance)
    )
    frame = job.frame().assign(chunk=0)
    if lengths is not None:
        reported = frame["step"].map(lengths)
        frame = frame.assign(tokens=reported, sum_sq=reported**2)
    rows = [
        {"rank": rank, "step": step, "start_ns": 10 * step, "dur_ns": 10}
        | ({} if tokens is None else {"tokens": tokens(step)})
        for step in range(steps)
        for rank in range(4)
    ]
    return slow_together(frame, step_windows(trace_of(step=rows)), detect(frame, LAYOUT))


@pytest.mark.parametrize("factor", [1.15, 1.5])
def test_a_job_that_became_slower_is_reported(factor):
    """Fails when all ranks take half as long again and no word is said."""
    verdict = seen(factor)
    assert verdict.slow_steps == ((25, 39),)
    assert verdict.slowdown == pytest.approx(factor - 1, abs=0.02)


def test_more_tokens_explain_longer_steps():
    """Fails when a job with a growing batch is called slow."""
    assert seen(1.5, lambda step: 6000 if step >= 25 else 4000) is None
    assert seen(1.5, lambda step: 4000).slowdown == pytest.approx(0.5, abs=0.02)


def test_longer_sequences_explain_longer_steps():
    """Fails when what is known of each microbatch counts less than a step's tokens, which are constant here."""
    assert seen(1.5, lambda _: 4000, lengths=lambda step: 6000 if step >= 25 else 4000) is None
    verdict = seen(1.5, lambda _: 4000, lengths=lambda _: 4000)
    assert verdict.slowdown == pytest.approx(0.5, abs=0.02)


def test_one_slow_rank_is_not_the_job():
    """Fails when what one rank does is said of all of them."""
    assert seen(1.5, ranks=[2]) is None


@pytest.mark.parametrize("seed", range(5))
def test_drift_of_a_healthy_job_is_no_change(seed):
    """Fails when every warm room is reported."""
    assert seen(1.0, steps=60, common_drift=0.01, work_cv=0.3 * (seed % 2)) is None


def test_a_single_rank_is_left_to_its_own_verdict():
    """Fails when one fact is reported twice."""
    frame = pd.DataFrame(
        {"rank": 0, "step": np.arange(30), "kind": "forward", "chunk": 0, "microbatch": 0}
    ).assign(dur_ns=1000)
    rows = [{"step": step, "start_ns": 10 * step, "dur_ns": 10} for step in range(30)]
    assert slow_together(frame, step_windows(trace_of(step=rows)), detect(frame)) is None


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_that_are_late_in_turn_are_not_all_of_them(ranks):
    """Fails when every rank is said to take longer in steps in which each time one of them did."""
    layout, steps = ParallelLayout(dp=ranks), 40
    frame = SlowRankJob(seed=5, layout=layout, steps=steps).frame().assign(chunk=0)
    is_late = (frame["step"] >= 25) & (frame["step"] % ranks == frame["rank"])
    frame["dur_ns"] = frame["dur_ns"].where(~is_late, 3 * frame["dur_ns"])
    rows = [
        {"rank": rank, "step": step, "start_ns": 10 * step, "dur_ns": 10}
        for step in range(steps)
        for rank in range(ranks)
    ]
    found = slow_together(frame, step_windows(trace_of(step=rows)), detect(frame, layout))
    assert found is None
