"""The tests against the own past and the replicas."""

import numpy as np
import pytest
from msgspec.structs import replace

from meshscope.analyze.explain.slow_ranks.judge import (
    Judge,
    least_visible,
    running_budgets,
    window_budgets,
)
from meshscope.analyze.explain.slow_ranks.noise import Noise
from meshscope.analyze.explain.slow_ranks.settings import DetectionSettings
from meshscope.analyze.explain.slow_ranks.stretches import borders
from meshscope.analyze.explain.slow_ranks.uncertainty import Doubt

SETTINGS = DetectionSettings()
NOBODY = np.zeros(2, bool)
DOUBT = Doubt(
    noise=Noise(np.full(2, 0.01), 1.2, 500.0),
    lasting=np.array([0.005, np.nan]),
    wander=np.full(2, 0.002),
    floor=0.005,
)


def followed(own, peers):
    """Return a judge that has seen constant scores, of the first rank as given."""
    judge = Judge(2, SETTINGS, running_budgets(2, 80, SETTINGS))
    look = None
    for x, y in zip(own, peers, strict=True):
        look = judge.see(np.array([x, 0.0]), np.array([y, np.nan]), DOUBT, NOBODY)
    return judge, look


def test_a_change_is_found_against_the_past_and_a_level_against_the_replicas():
    """One of the two kinds of slow ranks would be missed."""
    _, changed = followed([0.0] * 25 + [0.05] * 5, [0.0] * 30)
    assert changed.past.strength[0] > 1 > changed.peers.strength[0]
    assert changed.past.length[0] == 5
    _, apart = followed([0.0] * 10, [0.05] * 10)
    assert apart.peers.strength[0] > 1 > apart.past.strength[0]
    assert apart.strength[1] == 0


def test_few_steps_leave_the_whole_rate_to_few_lengths():
    """A node that is bad from the first step on would be found long after it."""
    for which in ("past", "peers"):
        early, late = (getattr(running_budgets(8, n, SETTINGS), which) for n in (25, 200))
        assert early.rate == late.rate
        assert early.longest < late.longest
        fresh = np.full((5, 1), 0.5)
        assert borders(fresh, early, 100.0)[4] < borders(fresh, late, 100.0)[4] - 0.2


def doubt_with(lasting):
    """Return a doubt with another deviation against replicas."""
    return replace(DOUBT, lasting=np.full_like(DOUBT.lasting, lasting))


def test_without_replicas_the_past_has_the_whole_rate():
    """A lone pipeline would pay for a test that it cannot have."""
    alone = doubt_with(np.nan)
    assert running_budgets(8, 60, SETTINGS, alone).past.rate == pytest.approx(1 / (8 * 20_000))
    assert window_budgets(8, 60, SETTINGS, alone).peers.rate == 0.0


def test_the_test_that_sees_more_has_most_of_the_rate():
    """Half of the false suspects would be spent on a test that cannot see what is looked for."""
    for budgets in (running_budgets, window_budgets):
        unlike, alike = (budgets(8, 60, SETTINGS, doubt_with(own)) for own in (0.1, 1e-6))
        assert unlike.past.rate == pytest.approx(9 * alike.past.rate)
        assert alike.peers.rate == pytest.approx(9 * unlike.peers.rate)


def test_while_there_is_no_past_the_replicas_have_the_whole_rate():
    """A node that is bad from the first step on would pay for a test that cannot look yet."""
    first, later = (running_budgets(8, steps, SETTINGS, DOUBT).peers for steps in (22, 23))
    assert first.rate == pytest.approx(1 / (8 * 20_000))
    assert later.rate < first.rate


def test_scores_that_are_seen_better_replace_those_before():
    """The noise of the first expectations would stay in the past of every rank."""
    judge, _ = followed([0.3] * 6, [0.3] * 6)
    judge.own.forget(np.array([True, True]), last=2)
    judge.recall(np.full((6, 2), 0.01), np.full((6, 2), 0.02), np.array([True, False]))
    assert judge.own.recent[:4] == pytest.approx(0.01)
    assert np.isnan(judge.own.recent[4:, 0]).all()
    assert judge.own.recent[4:, 1] == pytest.approx(0.01)
    assert judge.peers.recent[:, 0] == pytest.approx(0.02)


def test_recovery_shows_in_the_steps_since_it_was_found():
    """The steps before a fault would be taken for its end."""
    judge, _ = followed([0.0] * 25 + [0.05] * 5 + [0.0] * 6, [0.0] * 36)
    slow = np.array([0.05, np.nan])
    early, _ = judge.relief(slow, np.array([0, 0]), DOUBT, by_past=True)
    late, last = judge.relief(slow, np.array([6, 0]), DOUBT, by_past=True)
    assert early.strength[0] == 0
    assert late.strength[0] > 1
    assert last[0] == pytest.approx(0.0, abs=0.01)


def test_a_longer_window_shows_smaller_slow_downs():
    """The stated limit would not be that of the tests."""
    few, many = (
        least_visible(DOUBT, steps, window_budgets(2, steps, SETTINGS), SETTINGS)
        for steps in (10, 60)
    )
    assert many[0] < few[0]
    assert np.isnan(few[1])
    assert 0.01 < many[1] < 0.03
