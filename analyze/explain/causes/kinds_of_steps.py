"""Steps in which a stage has more to do than in its others, as a load that comes and goes.

The mean over all steps would call such a stage half as heavy in each of them, and its repair
would leave half of the excess where it is. For example, in ms::

    step       0   1   2   3   4   5   6   7
    stage 2   91  50  90  51  89  50  92  49     two kinds: 0, 2, 4, 6 and the others
    stage 3   52  47  50  55  49  51  46  50     one kind
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...tables.arrays import FloatArray, IntArray

MIN_STEPS = 3
"""Least number of steps of either kind; a step or two are a pause, which is not the stage's."""
MIN_EXPLAINED = 0.9
"""Least part of the squares between steps that two kinds explain: of one normal distribution cut in
two it is 0.64, of a uniform one 0.75."""
MIN_RATIO = 1.05
"""Least ratio of the means of both."""


def kinds_of_steps(per_step: pd.Series) -> pd.Series:
    """Return the kind of each step of each place: 1 in those that take longer, else 0.

    Args:
        per_step: What each rank computes, ns, by place (one level or more), rank and step. The ranks
            of a place are taken together by their median, so that a single one has no kind.
    """
    names = [name for name in per_step.index.names if name != "rank"]
    of_place = per_step.groupby(level=names).median()
    kinds = of_place.groupby(level=names[:-1], group_keys=False).transform(
        lambda own: kinds_of_values(own.to_numpy(np.float64))
    )
    return kinds.astype(np.int64)


def kinds_of_values(
    value: FloatArray, least_explained: float = MIN_EXPLAINED, least_usual: int = MIN_STEPS
) -> IntArray:
    """Return which values are of the larger kind; all 0 where they are of one.

    Args:
        value: One value a step.
        least_explained: Part of the squares between steps that two kinds must explain.
        least_usual: Least number of values of the smaller kind.
    """
    order = np.argsort(value, kind="stable")
    ranked, count = value[order], len(value)
    kind = np.zeros(count, np.int64)
    if count < 2 * MIN_STEPS or ranked[0] <= 0:
        return kind
    low = np.arange(least_usual, count - MIN_STEPS + 1)
    sums = np.cumsum(ranked)
    means = sums[low - 1] / low, (sums[-1] - sums[low - 1]) / (count - low)
    between = low * (count - low) / count * (means[1] - means[0]) ** 2
    best = int(between.argmax())
    if between[best] < least_explained * float(((value - value.mean()) ** 2).sum()):
        return kind
    if means[1][best] >= MIN_RATIO * means[0][best]:
        kind[order[low[best] :]] = 1
    return kind
