"""Single steps that say nothing of what is usual."""

import numpy as np
import pytest
from tests.slow_ranks import Fault, Nuisance, SlowRankJob

from meshscope.analyze.explain.slow_ranks.grid import grid_of
from meshscope.analyze.explain.slow_ranks.settings import DetectionSettings
from meshscope.analyze.explain.slow_ranks.window import Window
from meshscope.probe.schema.layout import ParallelLayout

GRID = ParallelLayout(pp=4, dp=2)


def job(*faults, work_cv=0.35, layout=GRID, steps=30):
    """Return a job, of uneven work unless told otherwise."""
    nuisance = Nuisance(work_cv=work_cv)
    return SlowRankJob(seed=50, layout=layout, steps=steps, faults=faults, nuisance=nuisance)


def levels(case):
    """Return the median score of each rank against its replicas."""
    window = Window(grid_of(case.frame(), case.layout))
    scored = window.score(window._cube.present, DetectionSettings())
    return np.median(scored.peers, axis=0)


@pytest.mark.parametrize("factor", [1.3, 4, 40])
@pytest.mark.parametrize("work_cv", [0.0, 0.35])
def test_one_slow_step_moves_no_other_score(factor, work_cv):
    """Fails when the healthy stages beside a pause look slow in all other steps."""
    healthy = levels(job(work_cv=work_cv))
    paused = levels(job(Fault(rank=4, factor=factor, start=12, stop=13), work_cv=work_cv))
    assert paused == pytest.approx(healthy, abs=0.004)


def test_a_lasting_change_is_no_stray():
    """Fails when a slow rank is made healthy before it is looked at."""
    healthy = levels(job())
    slow = levels(job(Fault(rank=4, factor=1.3, start=10)))
    assert slow[4] - healthy[4] > 0.2
