"""How sure a difference between paired windows is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_PAIRS = 6
"""With fewer the interval of the median is that of the extremes or less."""
_RESAMPLES = 10_000
_Z = 1.959964 + 0.841621
"""Quantiles of the normal distribution for 95 % confidence and 80 % power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A relative difference, and what can be said of it."""

    pairs: int
    median_frac: float
    low_frac: float
    high_frac: float
    """Bounds of the 95 % interval of the median."""
    detectable_frac: float
    """Least true difference that as many pairs with this scatter find four times in five."""

    @property
    def is_clear(self) -> bool:
        """Tell whether the interval leaves 0 out."""
        return self.low_frac > 0 or self.high_frac < 0


def paired_effect(watched: NDArray[np.float64], without: NDArray[np.float64]) -> Effect:
    """Return the effect of watching from the step times of paired windows.

    The median of the differences of pairs, relative to the window without; its interval
    by the percentile bootstrap over pairs (Efron and Tibshirani, An Introduction to the
    Bootstrap, 1993, section 13.3). The smallest detectable effect is that of a two-sided
    test at 5 % with a power of 80 %: 2.8 standard errors.

    Args:
        watched: One time a pair, with the probe.
        without: The time of the other window of each pair.

    Raises:
        ValueError: There are fewer than ``LEAST_PAIRS``.
    """
    if len(watched) < LEAST_PAIRS:
        raise ValueError(f"{len(watched)} pairs of windows, {LEAST_PAIRS} are needed")
    effects = watched / without - 1.0
    chance = np.random.default_rng(len(effects))
    drawn = chance.integers(0, len(effects), size=(_RESAMPLES, len(effects)))
    medians = np.median(effects[drawn], axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Effect(
        pairs=len(effects),
        median_frac=float(np.median(effects)),
        low_frac=float(low),
        high_frac=float(high),
        detectable_frac=float(_Z * medians.std()),
    )


def percent(frac: float) -> str:
    """Return a share with its sign and two digits that count; never a bare 0 %."""
    if abs(frac) < 5e-7:
        return "below 0.0001 %"
    return f"{100 * frac:+.2g} %"
