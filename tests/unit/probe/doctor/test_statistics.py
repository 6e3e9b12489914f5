"""Paired differences with answers that algebra gives."""

import numpy as np
import pytest

from meshscope.probe.doctor.statistics import LEAST_PAIRS, paired_effect, percent


def windows(pairs, effect, noise, seed):
    """Return times of pairs with a common drift, a relative effect and scatter."""
    random = np.random.default_rng(seed)
    base = 1e9 * np.linspace(1, 3, pairs)
    scatter = random.normal(0, noise, size=(2, pairs))
    return base * (1 + effect) * (1 + scatter[0]), base * (1 + scatter[1])


def test_the_same_twice_is_no_effect():
    """Fails when a comparison of a thing with itself finds a difference too often."""
    clear = sum(paired_effect(*windows(60, 0.0, 0.02, seed)).is_clear for seed in range(40))
    assert clear <= 6


@pytest.mark.parametrize("true", [0.02, -0.05, 0.2])
def test_a_known_effect_is_found(true):
    """Fails when an effect is missed, has the wrong sign, or lies outside of its interval."""
    found = paired_effect(*windows(80, true, 0.01, 3))
    assert found.is_clear
    assert found.low_frac < true < found.high_frac
    assert found.median_frac == pytest.approx(true, abs=0.005)


def test_without_scatter_the_effect_is_exact():
    """Fails when the effect is relative to anything but the window without the probe."""
    found = paired_effect(*windows(10, 0.25, 0.0, 0))
    assert found.median_frac == pytest.approx(0.25)
    assert found.low_frac == pytest.approx(found.high_frac)
    assert found.detectable_frac == pytest.approx(0.0, abs=1e-12)


def test_more_pairs_find_smaller_effects():
    """Fails when the smallest detectable effect does not shrink as the root of the pairs."""
    few, many = (paired_effect(*windows(n, 0.0, 0.02, 5)).detectable_frac for n in (40, 640))
    assert 2.5 < few / many < 6.5


def test_the_detectable_effect_is_detected_four_times_in_five():
    """Fails when a comparison promises to see effects that it would miss."""
    promised = np.mean([paired_effect(*windows(50, 0, 0.02, s)).detectable_frac for s in range(20)])
    seen = [paired_effect(*windows(50, promised, 0.02, 100 + s)).is_clear for s in range(40)]
    assert 0.6 < np.mean(seen) <= 1.0


def test_few_pairs_are_refused():
    """Fails when three windows are called a measurement."""
    with pytest.raises(ValueError, match=f"{LEAST_PAIRS} are needed"):
        paired_effect(*windows(LEAST_PAIRS - 1, 0, 0.1, 0))


@pytest.mark.parametrize(
    ("frac", "text"),
    [(0.0123, "+1.2 %"), (-0.5, "-50 %"), (0.00012, "+0.012 %"), (0.0, "below 0.0001 %")],
)
def test_no_effect_is_called_nothing(frac, text):
    """Fails when a cost is rounded to 0 %."""
    assert percent(frac) == text
