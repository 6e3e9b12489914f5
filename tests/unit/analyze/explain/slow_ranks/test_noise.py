"""How noisy scores are, and the deviates that go with it."""

from statistics import NormalDist

import numpy as np
import pytest

from meshscope.analyze.explain.slow_ranks.noise import (
    NOISE_FLOOR,
    RunningNoise,
    chance_of,
    noise_of,
    quantile,
)


def process(correlation, sigma=0.01, steps=400, ranks=6, seed=9):
    """Return scores of a first-order process [step, rank]."""
    draw = np.random.default_rng(seed).standard_normal((steps, ranks)) * sigma
    for k in range(1, steps):
        draw[k] = correlation * draw[k - 1] + draw[k] * np.sqrt(1 - correlation**2)
    return draw


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.5])
def test_noise_and_its_correlation_are_measured(correlation):
    """A mean over correlated steps would look more certain than it is."""
    scores = process(correlation)
    noise = noise_of(scores, np.full_like(scores, np.nan))
    assert np.median(noise.sigma) == pytest.approx(0.01, rel=0.12)
    wanted = max(1.2, (1 + correlation) / (1 - correlation))
    assert noise.inflation == pytest.approx(wanted, rel=0.3)
    assert noise.error(100)[0] == pytest.approx(noise.sigma[0] * np.sqrt(wanted / 100), rel=0.2)


def test_a_slow_stretch_is_not_noise():
    """A slow rank would hide in the spread that it makes itself."""
    scores = process(0.0, steps=40)
    scores[20:, 2] += 0.2
    noise = noise_of(scores, np.full_like(scores, np.nan))
    assert noise.sigma[2] < 0.02


def test_running_noise_agrees_with_that_of_the_window():
    """The running job would be judged by another measure than the recorded one."""
    scores = process(0.5)
    running = RunningNoise(6, memory=10_000)
    for row in scores:
        running.add(row, np.full(6, np.nan))
    whole = noise_of(scores, np.full_like(scores, np.nan))
    assert running.noise().sigma == pytest.approx(whole.sigma, rel=0.1)
    assert running.noise().inflation == pytest.approx(whole.inflation, rel=0.2)


def test_two_steps_are_judged_by_the_scatter_within_them():
    """A capture of two steps would have no noise, and every rank would be slow."""
    noise = noise_of(np.zeros((2, 3)), np.full((2, 3), 0.02))
    assert noise.sigma == pytest.approx([0.02] * 3)
    assert noise_of(np.zeros((5, 3)), np.zeros((5, 3))).sigma == pytest.approx([NOISE_FLOOR] * 3)


@pytest.mark.parametrize(
    ("chance", "degrees", "student"),
    [(0.025, 10, 2.228), (0.001, 10, 4.144), (0.001, 30, 3.385), (0.0001, 20, 4.539)],
)
def test_deviates_allow_for_an_estimated_spread(chance, degrees, student):
    """Few steps would be judged as if their noise were known; values of Student's t from tables."""
    assert quantile(chance, degrees) == pytest.approx(student, rel=0.01)
    assert chance_of(quantile(chance, degrees), degrees) == pytest.approx(chance, rel=1e-6)
    assert quantile(chance, 1e9) == pytest.approx(NormalDist().inv_cdf(1 - chance))
