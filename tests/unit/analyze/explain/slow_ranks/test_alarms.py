"""What slow ranks of a running job did since they were found."""

import numpy as np

from meshscope.analyze.explain.slow_ranks.alarms import Alarms
from meshscope.analyze.explain.slow_ranks.cube import cube_of
from meshscope.analyze.explain.slow_ranks.judge import Judge, running_budgets
from meshscope.analyze.explain.slow_ranks.noise import Noise
from meshscope.analyze.explain.slow_ranks.settings import DetectionSettings
from meshscope.analyze.explain.slow_ranks.uncertainty import Doubt
from meshscope.analyze.explain.slow_ranks.verdict import Persistence
from meshscope.probe.schema.layout import ParallelLayout

SETTINGS = DetectionSettings()
DOUBT = Doubt(
    noise=Noise(np.full(4, 0.005), 1.2, 500.0),
    lasting=np.full(4, 0.005),
    wander=np.full(4, 0.002),
    floor=0.005,
)


def follow(slow_from, slow_to, steps, number=lambda position: position):
    """Return the alarms of a job whose third rank is slow for a while, and its verdicts."""
    judge = Judge(4, SETTINGS, running_budgets(4, 80, SETTINGS))
    alarms, found = Alarms(cube_of((0, 1, 2, 3), ParallelLayout(dp=4))), []
    for position in range(steps):
        own = np.zeros(4)
        own[2] = 0.1 if slow_from <= position < slow_to else 0.0
        look = judge.see(own, own, DOUBT, alarms.slow)
        found += alarms.update(number(position), look, judge, DOUBT, np.zeros(4, bool))
    return alarms, found


def test_steps_that_were_left_out_do_not_shift_the_first_bad_one():
    """A job that reports every tenth step would be searched at the wrong place."""
    alarms, (verdict,) = follow(30, 99, 40, number=lambda position: 10 * position)
    assert (verdict.rank, verdict.first_bad_step) == (2, 300)
    assert alarms.get(2).verdict.last_bad_step == 390
    assert alarms.slow.tolist() == [False, False, True, False]


def test_one_fault_is_one_alarm():
    """An operator would be called again for each step of a fault that is known."""
    alarms, found = follow(30, 40, 60)
    assert len(found) == 1
    assert alarms.get(2).verdict.persistence is Persistence.TRANSIENT
    assert abs(alarms.get(2).verdict.last_bad_step - 39) <= 1
    assert not alarms.slow.any()
