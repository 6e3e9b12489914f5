"""Centres of groups, with or without the row they are compared with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import BoolArray, FloatArray, IntArray, combined
from .sorting import sorted_in_groups


def group_median(value: FloatArray, *keys: IntArray) -> FloatArray:
    """Return for each row the median over all rows with the same keys."""
    group = combined(*keys)
    order = sorted_in_groups(value, group)
    ordered, group = value[order], group[order]
    head = np.flatnonzero(np.append(True, group[1:] != group[:-1])[: len(group)])
    count = np.diff(np.append(head, len(value)))
    middle = (ordered[head + (count - 1) // 2] + ordered[head + count // 2]) / 2
    result = np.empty(len(value))
    result[order] = np.repeat(middle, count)
    return result


def median_of_others(
    value: FloatArray, *keys: IntArray, counts: BoolArray | None = None
) -> FloatArray:
    """Return for each row the median over the other rows with the same keys.

    In the sorted group of n + 1 values, leaving out position i moves the values
    right of it one place to the left; the middle of the remaining n is then read
    directly. NaN where no other row is left.

    Args:
        value: What the median is of.
        keys: The columns that make the groups.
        counts: Which rows others are compared with; None for all.
    """
    group = combined(*keys)
    if counts is None:
        order = sorted_in_groups(value, group)
    elif np.isnan(value).any():
        # Rows that do not count come last in their group, beyond every middle that is read.
        order = np.lexsort((value, ~counts, group)).astype(np.int32)
    else:
        order = sorted_in_groups(np.where(counts, value, np.nan), group)
    ordered, group = value[order], group[order]
    opens = np.append(True, group[1:] != group[:-1])[: len(group)]
    head = np.flatnonzero(opens).astype(np.int32)
    own = np.cumsum(opens, dtype=np.int32) - 1
    del opens, group
    first = head[own]
    if counts is None:
        others = np.diff(np.append(head, len(value))).astype(np.int32)[own] - 1
    else:
        known = counts[order]
        others = (np.bincount(own, known, len(head)).astype(np.int32)[own] - known).astype(np.int32)
    place = np.arange(len(value), dtype=np.int32) - first

    def remaining(position: IntArray) -> FloatArray:
        index = first + position + (position >= place)
        return np.asarray(ordered[np.minimum(index, len(value) - 1)])

    median = remaining(np.maximum(others - 1, 0) // 2)
    median += remaining(others // 2)
    median = median / 2  # Whole numbers have no half of their own kind.
    median[others == 0] = np.nan
    result = np.empty(len(value))
    result[order] = median
    return result


FAR = 5.0
"""Values that differ from the median of their group by more standard deviations are outliers."""
FEWEST_USUAL = 0.75
"""Share of a group that is usual: where more than the rest lie far off, these are a kind of their own."""
ALIKE = 1e-3
"""Values that differ by less than that share are the same."""
_NORMAL = 1.1503
"""Distance from the mean within which that share of normal values lies, in standard deviations."""


def without_outliers(
    value: FloatArray, *keys: IntArray, usual: FloatArray | None = None
) -> FloatArray:
    """Return values without what outliers exceed the others of their group by.

    By the median, and the distance within which three quarters of the group lie: a few outliers of either
    kind move neither. Half of them would, where most values are the same but for rounding.

    Args:
        value: What may have outliers.
        keys: The columns that make the groups.
        usual: What ``ALIKE`` is a share of, where the values are differences; None for their medians.
    """
    middle = group_median(value, *keys)
    like = np.abs(middle if usual is None else usual)
    off = _within(np.abs(value - middle), FEWEST_USUAL, *keys)
    reach = np.maximum(FAR / _NORMAL * off, ALIKE * like)
    return np.clip(value, middle - reach, middle + reach)


def _within(off: FloatArray, share: float, *keys: IntArray) -> FloatArray:
    """Return for each row the distance that a share of the rows with the same keys do not exceed."""
    group = combined(*keys)
    order = sorted_in_groups(off, group)
    group = group[order]
    head = np.flatnonzero(np.append(True, group[1:] != group[:-1])[: len(group)])
    count = np.diff(np.append(head, len(off)))
    result = np.empty(len(off))
    result[order] = np.repeat(off[order][head + (share * (count - 1)).astype(np.int64)], count)
    return result


class StepsOfRanks(NamedTuple):
    """Steps of ranks."""

    rank: IntArray
    step: IntArray
    peers: IntArray
    """Peer class of the rank in the step."""
    total: FloatArray
    """What it worked, ns."""

    def beyond(self, centre: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return by what steps exceed their centres, and the same without that of bad steps, ns.

        What all ranks do in a step, and what relieves them all, is in both.
        """
        own = self.total - centre
        return own, without_outliers(own, self.peers, self.rank, usual=self.total)

    def bad(self, worse: FloatArray, took: FloatArray, longer: FloatArray) -> FloatArray:
        """Return what a step is worse than usual, as far as one side took longer than the other or than ever.

        The few healthy steps of a rank that is slow in most are neither: they are worse for its peers only in
        that the rank does not fall behind, who take as long as ever, and no longer than it does.

        Args:
            worse: By what the difference to the other side is larger than it usually is, ns.
            took: How long the side takes whose bad steps these are.
            longer: What that is beyond the other side.
        """
        unlike = np.maximum(took - without_outliers(took, self.peers, self.rank), longer)
        return np.clip(worse, 0.0, np.maximum(unlike, 0.0))


def as_bad_as_own(centre: FloatArray, steps: StepsOfRanks) -> FloatArray:
    """Return the centres of a rank's steps, no worse in steps that are bad for its peers alone.

    Args:
        centre: Of each step of a rank, ns; 0 if it is not known.
        steps: The same steps.
    """
    beyond, usual = steps.beyond(centre)
    return np.asarray(centre - steps.bad(usual - beyond, centre, -beyond))


def to_mean_steps(centre: FloatArray, steps: StepsOfRanks, counts: BoolArray | None) -> FloatArray:
    """Return what brings the centres of a rank's steps to the median of the mean steps of its peers.

    By the steps in which all of these did the same; 1 where there are none. Bad steps of the peers
    count as far as the rank has such steps too: a few of them on half of the peers are in the mean of these,
    and it would be no slower than they are.

    Args:
        centre: Of each step of a rank, ns; 0 if it is not known.
        steps: The same steps.
        counts: Which steps are of ranks that others are compared with; None for all.
    """
    keys, place = np.unique(combined(steps.peers, steps.rank), return_inverse=True)
    first = np.zeros(len(keys), np.int64)
    first[place] = np.arange(len(place))
    own_class = steps.peers[first]
    members = np.bincount(own_class - own_class.min(initial=0))[
        own_class - own_class.min(initial=0)
    ]
    number, at = np.unique(combined(steps.peers, steps.step), return_inverse=True)
    whole = np.bincount(at, centre > 0, len(number))[at] == members[place]
    seen = np.maximum(np.bincount(place, whole, len(keys)), 1.0)

    def mean(value: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(place, value * whole, len(keys)) / seen)

    def of_peers(value: FloatArray) -> FloatArray:
        return median_of_others(value, own_class, counts=None if counts is None else counts[first])

    beyond, without_bad = steps.beyond(centre)
    bad = steps.bad(beyond - without_bad, steps.total, beyond)
    own_bad = mean(bad)
    usual = of_peers(mean(steps.total - bad)) + np.minimum(own_bad, of_peers(own_bad))
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = usual / mean(centre)
    return np.where(np.isfinite(factor) & (factor > 0), factor, 1.0)[place]
