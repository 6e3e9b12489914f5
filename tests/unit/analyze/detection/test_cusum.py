"""Page's sums: alarms, their rate on noise, and where a change is placed."""

import numpy as np
import pytest

from meshscope.analyze.detection.cusum import (
    PageSum,
    largest_excursion,
    steps_to_false_alarm,
    threshold_for,
)


def run(scores, reference, border):
    """Return the excursions of scores [step, rank] with one size."""
    ranks = scores.shape[1]
    return largest_excursion(scores, np.full((1, ranks), reference), np.full((1, ranks), border))


@pytest.mark.parametrize("reference", [0.25, 0.5, 1.0])
def test_the_threshold_gives_the_rate_of_false_alarms(reference):
    """Healthy jobs would be blamed more often than is said.

    1,000 ranks of normal noise, seed 11; drawing steps in makes alarms rarer, never more
    frequent by more than the scatter of the count.
    """
    border = float(threshold_for(400, reference))
    assert steps_to_false_alarm(border, reference) == pytest.approx(400, rel=1e-6)
    draw = np.random.default_rng(11)
    sums, alarms, steps = PageSum.empty(1000), 0, 400
    level = np.full((1, 1000), border)
    for step in range(steps):
        sums.add(step, draw.standard_normal(1000), np.full((1, 1000), reference), level)
        over = sums.level >= border
        alarms += int(over.sum())
        sums.reset(over[0])
    rate = alarms / (1000 * steps)
    assert 0.02 / 400 < rate < 1.25 / 400


def test_a_change_is_placed_where_it_began_and_ended():
    """The first bad step would be wrong, and with it what changed then."""
    scores = np.zeros((40, 1))
    scores[12:25] = 3.0
    seen = run(scores, 1.0, 5.0)
    assert seen.strength[0] > 1
    assert (seen.first[0], seen.last[0]) == (12, 24)


def test_one_step_is_never_an_alarm():
    """A single stall, of which every job has some, would make a suspect."""
    scores = np.zeros((10, 1))
    scores[4] = 1000.0
    assert run(scores, 1.0, 5.0).strength[0] < 1
    scores[4:7] = 1000.0
    assert run(scores, 1.0, 5.0).strength[0] >= 1


def test_an_absent_step_keeps_the_sum():
    """A rank that misses a step would start over."""
    scores = np.array([[3.0], [np.nan], [3.0]])
    seen = run(scores, 1.0, 5.0)
    assert seen.strength[0] == pytest.approx(4 / 5)


def test_a_reset_forgets_some_ranks_only():
    """Clearing a rank would forget the suspicion of the others."""
    sums = PageSum.empty(2)
    sums.add(0, np.array([3.0, 3.0]), np.ones((1, 2)), np.full((1, 2), 9.0))
    sums.reset(np.array([True, False]))
    assert sums.level.tolist() == [[0.0, 2.0]]
    assert sums.since.tolist() == [[-1, 0]]
