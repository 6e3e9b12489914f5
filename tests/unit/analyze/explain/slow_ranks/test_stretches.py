"""Stretches of slow steps, and the borders that noise seldom exceeds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from meshscope.analyze.explain.slow_ranks.stretches import (
    LONGEST,
    REACH,
    SHORTEST,
    Budget,
    Peak,
    Stretches,
    borders,
    raised_part,
    strongest,
)

scores = st.one_of(st.floats(-1, 1, width=32), st.just(np.nan))
NO_LIMIT = np.full(1, np.inf)


def kept(values, past_steps=0.0):
    """Return scores [step, rank] as they are kept after the last one."""
    result = Stretches.empty(values.shape[1], past_steps)
    for row in values:
        result.add(row, np.ones(values.shape[1], bool), 1_000)
    return result


def test_noise_exceeds_the_borders_about_as_seldom_as_wanted():
    """Healthy ranks would be blamed more often than the settings allow, or slow ones missed."""
    ranks, steps, rate = 500, 300, 2e-4
    draw = np.random.default_rng(12).standard_normal((steps, ranks))
    follow, alarms = Stretches.empty(ranks, 1e9), 0
    for row in draw:
        follow.add(row, np.zeros(ranks, bool), 1_000)
        means = follow.means(np.full(ranks, np.inf))
        border = borders(np.ones_like(means.count), Budget(rate, 1e9), 1e9)
        found = strongest(means.recent * np.sqrt(np.maximum(means.count, 1)) / border, means.count)
        alarm = found.strength >= 1
        alarms += int(alarm.sum())
        follow.forget(alarm, last=LONGEST)
    assert 0.5 * rate < alarms / (ranks * steps) < 2.0 * rate


def test_borders_grow_with_what_is_not_known():
    """Noise that was measured in a few steps would be taken for certain."""
    fresh = np.ones((LONGEST, 1))
    sure, unsure = borders(fresh, Budget(1e-6, 20), 1e6), borders(fresh, Budget(1e-6, 20), 10)
    assert (unsure > sure).all()
    assert (borders(fresh, Budget(1e-7, 20), 1e6) > sure).all()
    assert (borders(0 * fresh, Budget(1e-6, 20), 1e6) <= sure).all()
    assert sure[SHORTEST - 1, 0] > sure[-1, 0]


@given(arrays(np.float64, st.tuples(st.integers(1, 60), st.just(1)), elements=scores))
def test_means_are_those_of_the_steps(values):
    """A stretch would be judged by other steps than it consists of."""
    means = kept(values).means(NO_LIMIT)
    known = values[np.isfinite(values)]
    for length in range(1, min(len(values), LONGEST) + 1):
        last = values[-length:][np.isfinite(values[-length:])]
        assert means.count[length - 1, 0] == len(last)
        assert means.before_count[length - 1, 0] == len(known) - len(last)
        if len(last):
            assert means.recent[length - 1, 0] == pytest.approx(last.mean(), abs=1e-9)
        before = values[:-length][np.isfinite(values[:-length])]
        if len(before):
            assert means.before[length - 1, 0] == pytest.approx(before.mean(), abs=1e-9)


def test_one_slow_step_makes_no_stretch():
    """A pause of one step would be reported as a slow rank."""
    values = np.zeros((30, 1))
    values[-1] = 50.0
    means = kept(values).means(np.full(1, REACH))
    assert means.recent[SHORTEST - 1, 0] == pytest.approx(REACH / SHORTEST)


@pytest.mark.parametrize("steps", [LONGEST + 1, 60, 100])
def test_an_early_outlier_does_not_lift_what_follows(steps):
    """Fails when healthy scores are drawn up to the one slow step that the past consists of."""
    values = np.zeros((steps, 1))
    values[0] = 3.0
    follow = Stretches.empty(1)
    for row in values:
        follow.add(row, np.ones(1, bool), 1_000, np.full(1, 0.05))
    means = follow.means(np.full(1, 0.05))
    assert means.recent[:LONGEST, 0] == pytest.approx(0, abs=0.05 / SHORTEST)
    assert abs(means.before[:LONGEST, 0]).max() <= 0.05


@pytest.mark.parametrize(
    ("slow", "in_full"),
    [([20], 0), ([20, 21], 0), ([20, 30, 39], 0), ([18, 19, 20], 3), ([16, 18, 20], 3)],
)
def test_a_score_counts_in_full_where_others_near_it_do(slow, in_full):
    """Fails when a pause makes a stretch, or a short strong fault counts as a long faint one."""
    values = np.zeros((40, 1))
    values[slow] = 50.0
    total = kept(values).means(np.full(1, REACH)).recent[-1, 0] * 40
    assert total == pytest.approx(50 * in_full + REACH * (len(slow) - in_full))


def test_a_suspect_does_not_become_its_own_normal():
    """A slow rank would be healthy after some minutes."""
    follow = Stretches.empty(2, 10.0)
    for _ in range(100):
        follow.add(np.array([0.1, 0.1]), np.array([True, False]), 50)
    assert follow.past == pytest.approx([0.1 * 60 / 70, 0.0], abs=0.02)
    assert follow.count.tolist() == [50.0, 10.0]
    assert len(follow.recent) == LONGEST


@given(arrays(np.float64, st.integers(3, 30), elements=st.floats(-1, 1)))
def test_the_most_likely_stretch_has_the_largest_sum(excess):
    """The first bad step would be a guess."""
    first, last = raised_part(excess, 0.2)
    gain = excess - 0.1
    sums = [gain[i : j + 1].sum() for i in range(len(gain)) for j in range(i, len(gain))]
    if max(sums) > 1e-9:
        assert gain[first : last + 1].sum() == pytest.approx(max(sums))


def test_the_strongest_stretch_of_all_steps_is_kept():
    """A rank that was slow for a while would be forgotten."""
    seen = Peak.none(1)
    strength = np.zeros((10, 1))
    seen.see(12, strongest(strength, strength + 9))
    assert seen.last.tolist() == [-1]
    strength[4] = 1.5
    seen.see(13, strongest(strength, strength + 9))
    seen.see(14, strongest(strength / 2, strength + 9))
    assert (seen.strength[0], seen.first[0], seen.last[0]) == (1.5, 9, 13)
