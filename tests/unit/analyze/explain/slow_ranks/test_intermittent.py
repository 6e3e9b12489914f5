"""Ranks that are slow in single steps."""

import numpy as np
import pytest
from tests.slow_ranks import SlowRankJob

from meshscope.analyze.explain.slow_ranks import Persistence, detect
from meshscope.analyze.explain.slow_ranks.intermittent import chance_of_pauses
from meshscope.probe.schema.layout import ParallelLayout

SMALL = ParallelLayout(pp=2, dp=2)


def paused(slow, *, layout=SMALL, steps=20, factor=1.2):
    """Return the detection on a job whose rank 1 is slower by a factor in some steps."""
    frame = SlowRankJob(seed=50, layout=layout, steps=steps).frame()
    hit = (frame["rank"] == 1) & frame["step"].isin(list(slow))
    frame.loc[hit, "dur_ns"] = (frame.loc[hit, "dur_ns"] * factor).astype(np.int64)
    return detect(frame, layout)


@pytest.mark.parametrize("every", [2, 5])
@pytest.mark.parametrize("layout", [SMALL, ParallelLayout(dp=4), ParallelLayout(pp=4, dp=4)])
def test_a_rank_that_is_slow_every_few_steps_is_found(layout, every):
    """Fails when the verdict calls a rank well that the diagnosis names."""
    slow = range(0, 20, every)
    (verdict,) = paused(slow, layout=layout).suspects
    assert (verdict.rank, verdict.persistence) == (1, Persistence.INTERMITTENT)
    assert [first for first, _ in verdict.slow_steps] == list(slow)
    assert verdict.interval[0] < 0.2 < verdict.interval[1]
    assert verdict.confidence > 0.9


def test_a_pipeline_without_replicas_tells_it_by_its_past():
    """Fails when half of the steps are taken for the usual level."""
    (verdict,) = paused(range(0, 40, 2), layout=ParallelLayout(pp=4), steps=40).suspects
    assert (verdict.rank, verdict.persistence) == (1, Persistence.INTERMITTENT)


def test_half_of_the_steps_slow_are_compared_with_the_other_half():
    """Fails when the slow-down is a share of a mean step, which holds the slow steps itself."""
    layout = ParallelLayout(pp=4)
    (verdict,) = paused(range(0, 40, 2), layout=layout, steps=40, factor=2.0).suspects
    assert verdict.slowdown == pytest.approx(1.0, abs=0.05)


def test_one_or_two_pauses_are_no_slow_rank():
    """Fails when a rank is swapped for an accident that could hit any of them."""
    for slow in ((7,), (7, 13)):
        result = paused(slow, factor=3.0)
        assert not result.suspects
        assert result.of(1).slow_steps == tuple((step, step) for step in slow)


def test_two_ranks_of_a_replica_that_pause_together_are_not_blamed():
    """Fails when a replica with more work in some steps has one of its ranks swapped."""
    frame = SlowRankJob(seed=50, layout=SMALL, steps=20).frame()
    together = [rank for rank in range(4) if SMALL.coordinates(rank)["dp"] == 1]
    hit = frame["rank"].isin(together) & (frame["step"] % 3 == 0)
    frame.loc[hit, "dur_ns"] = (frame.loc[hit, "dur_ns"] * 1.2).astype(np.int64)
    assert not detect(frame, SMALL).suspects


def test_pauses_that_all_ranks_have_point_at_none():
    """Fails when the unluckiest rank of a job with many stalls is blamed."""
    assert chance_of_pauses(4, 20, accidents=0, judged_steps=60) < 2e-4
    assert chance_of_pauses(4, 20, accidents=8, judged_steps=60) > 0.02
    total = sum(
        chance_of_pauses(k, 9, 3, 50) - chance_of_pauses(k + 1, 9, 3, 50) for k in range(10)
    )
    assert total == pytest.approx(1.0)
