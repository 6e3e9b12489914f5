"""Verdicts: Holm over the checks of times, margins, and how many runs would decide.

A check fails where the loss is above its margin but for an error of ``ERROR``, shared by all checks
(Holm 1979, weighted: the step's median, which is what a gate is for, has ``WEIGHT`` of it). It passes where
no loss beyond the margin is left possible, or where no loss is seen and none beyond twice the margin is left
possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log, log1p, sqrt

import numpy as np

from ..tables.arrays import FloatArray
from .interval import Change, change_between, quantile
from .results import Check, Reason, Verdict

ERROR = 0.05
"""Of each bound: the interval holds the change in 90 of 100 cases, as usual for equivalence."""
WEIGHT = 0.9
STEP = "step_p50"
DEFAULT_MARGIN = 0.005
NOISE_MARGIN = 3.0
"""Run-to-run CVs of the baseline that a margin is at least, where none is given."""
MOST_RUNS = 50
"""More runs than this nobody would make to decide a check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One metric of time, ready to judge."""

    metric: str
    base: FloatArray
    candidate: FloatArray
    """One value a run: logarithms, or shares of the baseline's step."""
    margin: float
    """In the same unit."""
    before_ns: float
    after_ns: float
    is_log: bool


def default_margin(base: FloatArray, least: float = DEFAULT_MARGIN) -> float:
    """Return max(least, 3 CV) of the runs of a baseline; values are logarithms or shares."""
    noise = NOISE_MARGIN * float(base.std(ddof=1)) if len(base) > 1 else 0.0
    return max(least, noise)


def judge(compared: Sequence[Compared]) -> tuple[Check, ...]:
    """Return the checks of all metrics of time, in their order."""
    changes = [change_between(one.base, one.candidate) for one in compared]
    levels = _levels(compared, changes)
    return tuple(map(checked, compared, changes, levels))


def _levels(compared: Sequence[Compared], changes: Sequence[Change]) -> list[float]:
    """Return the error of each check by the weighted steps of Holm.

    The check with the least chance per weight comes first; its error is shared no more with those
    before it. From the first that does not fail on, the rest keep the error of that step.
    """
    weights = [WEIGHT if one.metric == STEP else 0.0 for one in compared]
    others = weights.count(0.0)
    weights = [weight or (1 - WEIGHT) / others for weight in weights]
    if others == 0 or others == len(weights):
        weights = [1 / len(weights)] * len(weights)
    chances = [
        change.chance_below(_bound(one)) for one, change in zip(compared, changes, strict=True)
    ]
    order = sorted(range(len(weights)), key=lambda at: chances[at] / weights[at])
    levels, left = [0.0] * len(weights), sum(weights)
    for place, at in enumerate(order):
        levels[at] = ERROR * weights[at] / left
        if chances[at] > levels[at]:
            for other in order[place:]:
                levels[other] = ERROR * weights[other] / left
            break
        left -= weights[at]
    return levels


def _bound(one: Compared) -> float:
    return log1p(one.margin) if one.is_log else one.margin


def checked(one: Compared, change: Change, level: float) -> Check:
    """Return the verdict on a change whose bounds err with a chance of ``level`` each."""
    low, high = change.interval(level)
    bound = _bound(one)
    if not change.is_known:
        verdict, reason = Verdict.INCONCLUSIVE, Reason.ONE_BASELINE_RUN
    elif low > bound:
        verdict, reason = Verdict.FAIL, Reason.SLOWER
    elif high < -bound:
        verdict, reason = Verdict.IMPROVED, Reason.FASTER
    elif high <= bound:
        verdict, reason = Verdict.PASS, Reason.WITHIN
    elif low <= 0 and high <= 2 * bound:
        verdict, reason = Verdict.PASS, Reason.NO_LOSS_SEEN
    else:
        verdict, reason = Verdict.INCONCLUSIVE, Reason.MORE_RUNS
    more = None
    if verdict is Verdict.INCONCLUSIVE:
        more = more_runs(one, change.change, level)
        reason = Reason.AT_MARGIN if more is None and reason is Reason.MORE_RUNS else reason
    ratios = [_ratio(one, value) for value in (change.change, low, high)]
    ratio = ratios[0]
    if ratio is not None and ratios[1] is not None and ratios[2] is not None:
        ratio = min(max(ratio, ratios[1]), ratios[2])
    return Check(
        metric=one.metric,
        verdict=verdict,
        reason=reason,
        ratio=ratio,
        low=ratios[1],
        high=ratios[2],
        margin_frac=one.margin if one.is_log else _share(one),
        before=one.before_ns,
        after=one.after_ns,
        step_frac=None if one.is_log else change.change,
        more_runs=more,
    )


def undecided(one: Compared) -> Check:
    """Return the check of a metric that one run of the candidate cannot decide."""
    change = float(one.candidate.mean() - one.base.mean())
    return Check(
        metric=one.metric,
        verdict=Verdict.INCONCLUSIVE,
        reason=Reason.ONE_RUN,
        ratio=_ratio(one, change),
        margin_frac=one.margin,
        before=one.before_ns,
        after=one.after_ns,
        more_runs=1,
    )


def _share(one: Compared) -> float | None:
    share = float(one.base.mean())
    return one.margin / share if share > 0 else None


def _ratio(one: Compared, change: float) -> float | None:
    """Return a change as candidate over baseline; None where it has no bound or the baseline none of it."""
    if abs(change) == inf:
        return None
    if one.is_log:
        return exp(change)
    share = float(one.base.mean())
    return max(0.0, 1 + change / share) if share > 0 else None


def more_runs(one: Compared, change: float, level: float) -> int | None:
    """Return how many more runs of the candidate, and of a short baseline, would decide; None if too many.

    By the spread of the runs that there are: the interval has to reach from the change to the
    nearest bound that decides.
    """
    bound = _bound(one)
    if len(one.base) < 2:
        return max(0, 3 - len(one.base))
    spread = max(_spread(one.base), _spread(one.candidate))
    gap = abs(change - bound)
    for more in range(1, MOST_RUNS + 1):
        runs = len(one.candidate) + more
        base = max(len(one.base), min(runs, len(one.base) + more))
        reach = quantile(1 - level, base + runs - 2) * spread * sqrt(1 / base + 1 / runs)
        if reach < gap:
            return more
    return None


def _spread(values: FloatArray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def logs(values: Sequence[float]) -> FloatArray:
    """Return logarithms as an array."""
    return np.array([log(value) for value in values], np.float64)
