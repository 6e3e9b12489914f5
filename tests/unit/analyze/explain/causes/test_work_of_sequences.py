"""By how much the lengths of its sequences make a pass longer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.explain.causes.work_of_sequences import excess_of_sequences


def job(passes=400, noise=0.0, slow=0.0, seed=3):
    """Return times of two stages, work and stage of each pass, and which are of healthy ranks."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(1000, 5000, passes).astype(float)
    work = np.stack([tokens, tokens * draw.uniform(50, 900, passes)], axis=-1)
    group = np.arange(passes) % 2
    fixed, by_token, by_square = np.array([[5e5, 3e2, 0.2], [2e6, 9e2, 0.1]])[group].T
    time = fixed + by_token * work[:, 0] + by_square * work[:, 1]
    time *= 1 + noise * draw.standard_normal(passes)
    healthy = np.arange(passes) % 8 > 1
    return np.where(healthy, time, time * (1 + slow)), work, group, healthy


def true_excess(work, group):
    """Return the ratio of each pass to that of the mean microbatch, by the same coefficients."""
    cost = np.array([[5e5, 3e2, 0.2], [2e6, 9e2, 0.1]])[group]
    own = cost[:, 0] + (cost[:, 1:] * work).sum(axis=1)
    return own / (cost[:, 0] + (cost[:, 1:] * work.mean(axis=0)).sum(axis=1)) - 1


def test_without_noise_the_excess_is_exact():
    """Fails when a pass of long sequences is told another length than theirs."""
    time, work, group, healthy = job()
    assert excess_of_sequences(time, work, group, healthy) == pytest.approx(
        true_excess(work, group), abs=1e-9
    )


def test_a_slow_rank_is_no_measure_of_the_work():
    """Fails when what a slow rank takes is taken for what its sequences need."""
    time, work, group, healthy = job(slow=0.5)
    assert excess_of_sequences(time, work, group, healthy) == pytest.approx(
        true_excess(work, group), abs=1e-9
    )


def test_a_pause_in_a_healthy_pass_is_left_out():
    """Fails when one pass of a second makes all others look short."""
    time, work, group, healthy = job(noise=0.01)
    time[[2, 3]] += 1e9
    found = excess_of_sequences(time, work, group, healthy)
    assert np.abs(found - true_excess(work, group)).max() < 0.02


def test_a_stage_that_nobody_measures_has_no_excess_of_its_own():
    """Fails when a stage without a telling pass is divided by nothing."""
    time, work, group, healthy = job()
    with np.errstate(all="raise"):
        found = excess_of_sequences(time, work, group, healthy & (group == 0))
    assert not found[group == 1].any()
    assert found[group == 0] == pytest.approx(true_excess(work, group)[group == 0], abs=1e-9)


@given(seed=st.integers(0, 10_000))
def test_noise_is_no_work(seed):
    """Fails when passes that do not follow their sequences are told to."""
    draw = np.random.default_rng(seed)
    _, work, group, healthy = job(seed=seed)
    time = 1e6 * (1 + 0.02 * draw.standard_normal(len(work)))
    found = excess_of_sequences(time, work, group, healthy)
    assert found is None or np.abs(found).max() < 0.03


@pytest.mark.parametrize("case", ["alike", "unknown", "nobody healthy"])
def test_nothing_is_said_where_nothing_tells(case):
    """Fails when equal, unknown or unmeasured work gives an excess."""
    time, work, group, healthy = job(noise=0.01)
    if case == "alike":
        work[:] = work[0]
    elif case == "unknown":
        work[5] = np.nan
    else:
        healthy[:] = False
    assert excess_of_sequences(time, work, group, healthy) is None
