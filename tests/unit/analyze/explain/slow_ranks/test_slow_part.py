"""Runs of slow steps."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.explain.slow_ranks.slow_part import SURE, _best_choice, runs_of, slow_steps

gains = st.lists(st.floats(-10, 10), min_size=1, max_size=9)


@given(st.lists(st.booleans(), min_size=3, max_size=60), st.floats(0.1, 3.0), st.integers(0, 99))
def test_clear_steps_are_reported_one_by_one(slow, size, seed):
    """Fails when healthy steps between two runs, or a second run, go unseen."""
    truth = np.array(slow)
    noise = np.random.default_rng(seed).uniform(-0.02, 0.02, len(truth))
    assert (slow_steps(size * truth + noise, size, 0.01, 1.5) == truth).all()


@given(st.floats(0.3, 0.6), st.floats(1.0, 4.0))
def test_runs_of_unlike_size_are_all_found(small, large):
    """Fails when the cost holds two runs of steps, and the text names the stronger one alone."""
    excess = np.zeros(60)
    excess[5:10], excess[45:50] = small, large
    assert runs_of(slow_steps(excess, large, 0.01, 1.5)) == [(5, 9), (45, 49)]


@pytest.mark.parametrize("size", [0.01, 0.02, SURE * 0.01])
def test_noise_makes_no_runs(size):
    """Fails when a faint slow-down is reported as many short ones."""
    draw = np.random.default_rng(7).normal(0, 0.01, (300, 40))
    found = sum(slow_steps(row, size, 0.01, 1.0).any() for row in draw)
    assert found <= 6


def test_a_faint_lasting_slow_down_is_one_run():
    """Fails when every step that noise makes look healthy ends a run."""
    draw = np.random.default_rng(8).normal(0, 0.01, (100, 40))
    draw[:, 20:] += 0.02
    runs = [runs_of(slow_steps(row, 0.02, 0.01, 1.0)) for row in draw]
    assert sum(len(found) == 1 for found in runs) >= 95
    firsts = [found[0][0] for found in runs if found]
    assert np.median(np.abs(np.array(firsts) - 20)) <= 1


def test_unknown_steps_do_not_end_a_run():
    """Fails when a step that was not recorded makes a lasting fault look intermittent."""
    excess = np.array([0, 0, 1, 1, np.nan, 1, 1, 0.0])
    assert runs_of(slow_steps(excess, 1.0, 0.01, 1.0)) == [(2, 6)]


def test_nothing_is_slow_where_nothing_is_in_excess():
    """Fails when a rank that is faster than its peers gets slow steps."""
    assert not slow_steps(np.full(10, -0.1), -0.1, 0.01, 1.0).any()


@given(gains, st.floats(0.0, 5.0))
def test_the_best_choice_is_that_of_all_choices(gain, price):
    """Fails when the search for the runs misses better ones."""
    values = np.array(gain)

    def worth(choice):
        slow = np.array(choice, dtype=bool)
        return values[slow].sum() - price * len(runs_of(slow))

    best = max(worth(choice) for choice in product([False, True], repeat=len(gain)))
    assert worth(_best_choice(values, price)) == pytest.approx(best, abs=1e-9)
