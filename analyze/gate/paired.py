"""Pairs of runs made in turn: what both runs of a pair share, such as the hour and the nodes, cancels.

The interval is that of Student's t for the differences of logarithms. At several looks its level is that of
``spending``, so it holds at all of them together (repeated confidence intervals, Jennison and Turnbull 1989).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log1p, sqrt

from .alpha_spending import levels, looks
from .interval import LEAST_SPREAD, Change, Estimate
from .judge import ERROR, MOST_RUNS, Compared, checked
from .results import Check, Reason, Verdict
from .student import quantile

PAIRED_ERROR = 0.8 * ERROR
"""Of each bound over all looks. Of t tests at levels for a normal statistic up to 1.15 times as many
err (simulated for 3 to 20 pairs); the classes have the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at the pairs that there are."""

    pairs: int
    level: float
    """One-sided error of the interval at this look."""
    is_last: bool


def planned_looks(pairs: int) -> tuple[Look, ...]:
    """Return the looks at so many planned pairs; at most three."""
    at = looks(pairs)
    shares = tuple(count / pairs for count in at)
    return tuple(
        Look(pairs=count, level=level, is_last=count == pairs)
        for count, level in zip(at, levels(shares, PAIRED_ERROR), strict=True)
    )


def paired_check(one: Compared, look: Look) -> Check:
    """Return the check of a metric whose runs are pairs, in their order; two pairs or more.

    Before the last look only an interval that lies on one side of the margin decides.
    """
    differences = one.candidate - one.base
    count = len(differences)
    spread = max(float(differences.std(ddof=1)), LEAST_SPREAD)
    change = float(differences.mean())
    estimate = Estimate(change=change, error=spread / sqrt(count), freedom=count - 1.0)
    check = checked(one, Change((estimate,)), look.level)
    if check.reason is Reason.NO_LOSS_SEEN and not look.is_last:
        check = replace(check, verdict=Verdict.INCONCLUSIVE, reason=Reason.MORE_RUNS)
    if check.verdict is not Verdict.INCONCLUSIVE:
        return check
    more = _more_pairs(abs(change - log1p(one.margin)), spread, count, look.level)
    reason = Reason.AT_MARGIN if more is None else Reason.MORE_RUNS
    return replace(check, more_runs=more, reason=reason)


def _more_pairs(gap: float, spread: float, count: int, level: float) -> int | None:
    """Return how many more pairs would decide; None if too many."""
    for more in range(1, MOST_RUNS + 1):
        pairs = count + more
        if quantile(1 - level, pairs - 1) * spread / sqrt(pairs) < gap:
            return more
    return None


def decides(check: Check | None) -> bool:
    """Return whether a look ends the runs: the step is found slower, faster, or within the margin."""
    return check is not None and check.verdict is not Verdict.INCONCLUSIVE
