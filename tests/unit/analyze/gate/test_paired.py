"""Base and candidate in turn: drift of the machine cancels, and only the last look decides on weak evidence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshscope.analyze.gate.compare import compare
from meshscope.analyze.gate.interval import quantile
from meshscope.analyze.gate.judge import ERROR, STEP
from meshscope.analyze.gate.loaded import LoadedRun, baseline_of
from meshscope.analyze.gate.paired import boundaries, looks, planned_looks, spend
from meshscope.analyze.gate.results import Reason, Verdict

LOOKS = planned_looks(5)


def sides(factor, pairs=5, noise=0.001, drift=0.02, seed=3):
    """Return runs in turn on a machine that becomes slower by ``drift`` from pair to pair."""
    random = np.random.default_rng(seed)
    made = ([], [])
    for pair in range(pairs):
        for side, own in enumerate((1.0, factor)):
            level = 5e8 * (1 + drift) ** pair * own * np.exp(random.normal(0, noise))
            steps = level * np.exp(random.normal(0, 0.003, 40))
            made[side].append(LoadedRun(name=f"{side}-{pair}", step_ns=steps))
    return made


def verdict(factor, look, **more):
    """Return the check of the step at a look."""
    base, candidate = (side[: look.pairs] for side in sides(factor, **more))
    result = compare(baseline_of(base), candidate, margin=0.01, look=look)
    return next(check for check in result.checks if check.metric == STEP)


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.0, Verdict.PASS), (1.03, Verdict.FAIL), (0.97, Verdict.IMPROVED)]
)
def test_drift_of_the_machine_cancels(factor, expected):
    """A change of 3 % would drown in a machine that drifts by 8 %."""
    assert verdict(factor, LOOKS[-1]).verdict is expected
    base, candidate = sides(factor)
    unpaired = compare(baseline_of(base), candidate, margin=0.01)
    assert unpaired.verdict is not expected


def test_a_clear_change_is_decided_at_the_first_look():
    """Half of the runs would be made for nothing."""
    check = verdict(1.05, LOOKS[0])
    assert check.verdict is Verdict.FAIL
    assert check.low > 1.01


def test_weak_evidence_passes_at_the_last_look_only():
    """Runs would be stopped as soon as chance shows no loss."""
    noisy = {"noise": 0.005, "drift": 0.0, "seed": 10}
    early = LOOKS[1]
    last = replace(early, is_last=True)
    assert verdict(1.0, last, **noisy).reason is Reason.NO_LOSS_SEEN
    check = verdict(1.0, early, **noisy)
    assert check.verdict is Verdict.INCONCLUSIVE
    assert check.more_runs


def test_wider_bounds_early():
    """An early look would have no price, and the error of all looks together be larger than it says."""
    levels = [look.level for look in LOOKS]
    assert levels == sorted(levels)
    assert [look.is_last for look in LOOKS] == [False, False, True]


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
