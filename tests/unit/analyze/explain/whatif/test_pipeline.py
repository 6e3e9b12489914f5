"""The simulated pipeline against the closed forms of its schedules."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.explain.whatif.pipeline import Pipeline, positions
from meshscope.probe.schema.terms import ScheduleKind


def pipeline(schedule, ranks, microbatches, *, chunks=1, steps=3, skew_share=1.0, tail=5.0):
    """Return a pipeline of equal stages: forward 10, backward 20, per rank."""
    stages = ranks * chunks
    return Pipeline(
        schedule=schedule,
        ranks=ranks,
        chunks=chunks,
        microbatches=microbatches,
        pass_ns=np.full((3, stages, 2, steps * microbatches), 10.0),
        head_ns=np.zeros((ranks, 2, steps)),
        tail_ns=np.full((ranks, 2, steps), tail),
        message_ns=np.zeros((2, ranks, 2)),
        replicas_meet=True,
        stages_meet=False,
        skew_share=skew_share,
    )


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("microbatches", [1, 4, 9])
@pytest.mark.parametrize("schedule", [ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B])
def test_equal_stages_take_the_time_of_the_closed_form(schedule, ranks, microbatches):
    """Fails when a schedule is simulated with another bubble than (p - 1)(t_f + t_b)."""
    found = pipeline(schedule, ranks, microbatches).simulated(3)
    expected = 30.0 * (microbatches + ranks - 1) + 5.0
    assert found.length_ns.tolist() == pytest.approx([expected] * 3)
    assert found.mean_ns == pytest.approx(expected)


def test_chunks_shorten_fill_and_drain():
    """Fails when the bubble of interleaved stages is not (p - 1)/v of a microbatch each way."""
    found = pipeline(ScheduleKind.INTERLEAVED, 4, 8, chunks=2).simulated(2)
    # Twice as many stages of 30 each: 16 passes of a rank, and the fill and drain of one chunk.
    assert found.mean_ns == pytest.approx(30 * (16 + 3) + 5)


def test_a_slow_replica_holds_up_the_others():
    """Fails when replicas that reduce their gradients together are simulated apart."""
    own = pipeline(ScheduleKind.ONE_F_ONE_B, 2, 4)
    own.pass_ns[:, 1, 1] *= 2
    slow = own.simulated(3).mean_ns
    assert slow == pytest.approx(60 * 4 + 30 + 5)


@given(st.integers(1, 6), st.integers(1, 8), st.integers(1, 40))
def test_every_recorded_microbatch_counts_alike(steps, microbatches, wanted):
    """Fails when some microbatches of the run are used more often than others need be."""
    recorded = steps * microbatches
    taken = np.concatenate(
        [positions(recorded, steps, wanted, step, steps) for step in range(steps)]
    )
    count = np.bincount(taken, minlength=recorded)
    assert len(taken) == steps * wanted
    assert len(count) == recorded
    assert count.max() - count.min() <= 1


def test_the_job_as_it_is_takes_its_own_microbatches():
    """Fails when the simulation of the present job is no longer that of its recorded steps."""
    for step in range(3):
        assert positions(12, 3, 4, step, 3).tolist() == list(range(4 * step, 4 * step + 4))
