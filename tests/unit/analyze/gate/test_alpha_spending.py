"""Several looks: the boundaries of the literature, and no more false alarms than one look has."""

from __future__ import annotations

import numpy as np
import pytest

from meshscope.analyze.gate.alpha_spending import boundaries, looks, spend
from meshscope.analyze.gate.judge import ERROR
from meshscope.analyze.gate.paired import planned_looks
from meshscope.analyze.gate.student import quantile


@pytest.mark.parametrize(
    ("count", "published"),
    [(3, (3.7103, 2.5114, 1.9930)), (5, (4.8769, 3.3570, 2.6803, 2.2898, 2.0310))],
)
def test_boundaries_are_the_published_ones(count, published):
    """Every early stop would have another error than it says (Lan and DeMets 1983; two-sided 5 %)."""
    shares = [(at + 1) / count for at in range(count)]
    assert boundaries(shares, 0.025) == pytest.approx(published, abs=2e-4)


def test_all_of_the_error_is_spent_and_little_of_it_early():
    """Runs would be stopped by noise, or the last look be weaker than it has to be."""
    assert spend(1.0, 0.05) == pytest.approx(0.05)
    assert spend(0.2, 0.05) < 0.0001
    assert spend(0.0, 0.05) == 0


@pytest.mark.parametrize("pairs", [1, 2, 3, 4, 5, 10, 50])
def test_there_are_at_most_three_looks_and_the_last_sees_all(pairs):
    """A plan would end without a verdict."""
    found = looks(pairs)
    assert len(found) <= 3
    assert found[-1] == pairs
    assert list(found) == sorted(set(found))


@pytest.mark.parametrize("pairs", [3, 4, 5, 10])
def test_equal_sides_cross_a_bound_no_more_often_than_allowed(pairs):
    """Looking early would make false alarms: the levels are for normal statistics, the tests are of Student."""
    draws = np.random.default_rng(5).normal(size=(40_000, pairs))
    crossed = np.zeros(len(draws), bool)
    for look in planned_looks(pairs):
        seen = draws[:, : look.pairs]
        error = seen.std(axis=1, ddof=1) / np.sqrt(look.pairs)
        crossed |= seen.mean(axis=1) / error > quantile(1 - look.level, look.pairs - 1)
    assert 0.6 * ERROR < crossed.mean() < ERROR
