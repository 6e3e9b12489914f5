"""What a baseline says of its own gate: how often it would alarm without a cause, and what it could see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb, log1p

import numpy as np

from ..tables.arrays import FloatArray
from .interval import change_between
from .judge import ERROR, STEP, WEIGHT, Compared, default_margin, judge
from .results import Verdict

LEAST_RUNS = 3
"""Of two runs no split leaves a spread to judge by."""
MOST_SPLITS = 2_000
"""The rate of false alarms is then known to half a point."""
POWER = 0.95
"""The smallest change that is called detectable is found so often."""
_DRAWS = 400
"""The 5 % below ``POWER`` are 20 of them."""
RUNS = (1, 2, 3, 5, 8, 10, 20)
"""How many runs of a candidate the table of detectable changes is made for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relabelled:
    """Verdicts on equal runs: those of the baseline, a part of them as the candidate."""

    base_runs: int
    candidate_runs: int
    splits: int
    failed: int
    inconclusive: int


def relabel(values: FloatArray, margin: float, seed: int = 0) -> tuple[Relabelled, ...]:
    """Return the verdicts on splits of the baseline: one run of it, and half of it, as the candidate.

    All splits are taken where there are at most ``MOST_SPLITS``, else so many random ones.

    Args:
        values: Logarithms of the run medians, at least ``LEAST_RUNS``.
        margin: Accepted loss as a share of the step.
        seed: Of the random splits.
    """
    sizes = sorted({1, len(values) // 2} - {0})
    return tuple(_relabel(values, size, margin, seed) for size in sizes)


def _relabel(values: FloatArray, size: int, margin: float, seed: int) -> Relabelled:
    found = [_verdict(values, list(chosen), margin) for chosen in _splits(len(values), size, seed)]
    return Relabelled(
        base_runs=len(values) - size,
        candidate_runs=size,
        splits=len(found),
        failed=found.count(Verdict.FAIL),
        inconclusive=found.count(Verdict.INCONCLUSIVE),
    )


def _splits(count: int, size: int, seed: int) -> Iterator[tuple[int, ...]]:
    if comb(count, size) <= MOST_SPLITS:
        yield from combinations(range(count), size)
        return
    random = np.random.default_rng(seed)
    for _ in range(MOST_SPLITS):
        yield tuple(random.permutation(count)[:size].tolist())


def _verdict(values: FloatArray, chosen: list[int], margin: float) -> Verdict:
    is_base = np.ones(len(values), bool)
    is_base[chosen] = False
    compared = Compared(
        metric=STEP,
        base=values[is_base],
        candidate=values[~is_base],
        margin=margin,
        before_ns=1.0,
        after_ns=1.0,
        is_log=True,
    )
    return judge([compared])[0].verdict


def seen_change(values: FloatArray, runs: int, margin: float) -> float:
    """Return the least loss that ``runs`` runs of a candidate would find in 95 of 100 cases, as a share.

    By the spread of the baseline, as if its noise were normal.
    """
    spread = float(values.std(ddof=1))
    return float(np.expm1(log1p(margin) + _reach(len(values), runs) * spread))


@lru_cache(maxsize=64)
def _reach(base: int, runs: int) -> float:
    """Return how far above the margin a loss must be, in standard deviations of one run.

    Simulated: the lower bound moves with the loss and scales with the noise, so its quantile at no loss
    tells all.
    """
    random = np.random.default_rng(0)
    lows = [
        change_between(random.normal(size=base), random.normal(size=runs)).interval(ERROR * WEIGHT)[
            0
        ]
        for _ in range(_DRAWS)
    ]
    return -float(np.quantile(lows, 1 - POWER))


def own_margin(values: FloatArray, margin: float | None) -> float:
    """Return the margin that a gate takes with this baseline."""
    return default_margin(values) if margin is None else margin
