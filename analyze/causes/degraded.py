"""Groups and links that are slower than their like: always, or in some of the steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..intervals import IntArray
from ..replay import FloatArray
from ..results import Where
from ..waiting import chance_of_as_many

MIN_RATIO = 1.3
"""A place, or a step of it, is slow when its wire time is that many times that of its like."""
MIN_OPERATIONS = 3
"""With fewer operations a place is not compared with others."""
MIN_STEPS = 4
"""With fewer steps nothing comes and goes."""
MAX_CHANCE = 1e-4
"""A place is slow at times where its slow steps are this improbable for the other places."""
LIKE_SIZE = 1.25
"""Transfers are compared with those of up to that many times their size: the stages of a model
have gradients of nearly, but not quite, the same size."""
_AXIS = ["axis", "is_p2p"]


class Degraded(NamedTuple):
    """A place that is slower than its like."""

    where: Where
    ratio: float
    """Its wire time over that of the other places of its axis: the median, or the mean of the
    slow steps if it is slow at times."""
    step_frac: float
    """Share of the steps in which it is slow; 1 if its median is."""
    events: npt.NDArray[np.bool_]
    """Which rows of the events are its."""


def degraded_places(frame: pd.DataFrame) -> list[Degraded]:
    """Return the groups and links that are slower than their like, the most costly first.

    Sends and receives are compared by their two ends, since many links share a
    group. A place is compared with the median of the other places of its axis.
    """
    wire = frame["wire_ns"]
    like = wire.groupby([frame["axis"], frame["kind"], like_size(frame)]).transform("median")
    place = frame["link"].where(frame["is_p2p"], frame["group_id"]).rename("place")
    relative = (wire / like).where(wire.notna() & (like > 0))
    keys = [frame["axis"], frame["is_p2p"], place]
    grouped = relative.groupby(keys, observed=True)
    table = grouped.agg(["median", "count"]).dropna()
    table = table[table["count"] >= MIN_OPERATIONS]
    # What is slow on the median is slow always; the second dictionary wins.
    slow = _slow_at_times(relative, [*keys, frame["step"]], table.index) | _slow_always(table)
    found = []
    for (axis, is_p2p, name), (ratio, step_frac) in slow.items():
        where: Where = {"axis": str(axis)}
        where["link" if is_p2p else "group_id"] = str(name)
        own = (frame["axis"] == axis) & (frame["is_p2p"] == is_p2p) & (place == name)
        found.append(Degraded(where, ratio, step_frac, own.to_numpy(bool)))
    found = _both_directions(found)
    cost = [float((wire[own.events] - like[own.events]).clip(lower=0).sum()) for own in found]
    return [found[index] for index in np.argsort(cost)[::-1]]


def like_size(frame: pd.DataFrame) -> IntArray:
    """Return for each row the least size of those that it is compared with, bytes."""
    place, sizes = pd.factorize(frame["size_bytes"].to_numpy(np.int64), sort=True)
    least = sizes.copy()
    for position in range(1, len(sizes)):
        if sizes[position] <= LIKE_SIZE * least[position - 1]:
            least[position] = least[position - 1]
    return np.asarray(least[place])


_Slow = dict[tuple[str, bool, str], tuple[float, float]]
"""Ratio and share of the steps of each slow place: (axis, is_p2p, place)."""


def _slow_always(table: pd.DataFrame) -> _Slow:
    found: _Slow = {}
    for _, rows in table.groupby(level=[0, 1]):
        values = rows["median"].to_numpy(np.float64)
        ratio = _over(values, _median_of_others(values))
        for position in np.flatnonzero(ratio >= MIN_RATIO).tolist():
            found[rows.index[position]] = (float(ratio[position]), 1.0)
    return found


def _slow_at_times(relative: pd.Series, keys: list[pd.Series], places: pd.Index) -> _Slow:
    """Return the places that have more slow steps than chance gives the others.

    A step is slow against the median step of the other places. A place must be slow on
    the average of all steps too, so that a small difference that is merely certain does
    not count.
    """
    found: _Slow = {}
    if keys[-1].nunique() < MIN_STEPS:
        return found
    steps = relative.groupby(keys, observed=True).mean().unstack().reindex(places)
    for _, rows in steps.groupby(level=[0, 1]):
        values = rows.to_numpy(np.float64)
        ratio = _over(values, _median_of_others(np.nanmedian(values, axis=1))[:, None])
        is_slow = ratio >= MIN_RATIO
        slow, seen = is_slow.sum(axis=1), np.isfinite(values).sum(axis=1)
        # Half a slow step more, because what was not seen yet is not impossible.
        usual = (slow.sum() - slow + 0.5) / (seen.sum() - seen + 1)
        chance = chance_of_as_many(slow, seen, usual * seen)
        mean = np.nanmean(values, axis=1)
        is_degraded = (chance <= MAX_CHANCE) & (mean >= MIN_RATIO * _median_of_others(mean))
        for position in np.flatnonzero(is_degraded).tolist():
            worst = float(ratio[position][is_slow[position]].mean())
            found[rows.index[position]] = (worst, float(slow[position] / seen[position]))
    return found


def _over(values: FloatArray, usual: FloatArray) -> FloatArray:
    """Return ratios to what is usual; NaN where that takes no time, or is not known."""
    return np.asarray(values / np.where(usual > 0, usual, np.nan))


def _both_directions(found: list[Degraded]) -> list[Degraded]:
    """Return a link whose two directions are both degraded as one place, ``a<->b``."""
    by_link = {own.where["link"]: own for own in found if "link" in own.where}
    merged = []
    for own in found:
        source, _, target = own.where.get("link", "").partition("->")
        back = by_link.get(f"{target}->{source}")
        if back is None:
            merged.append(own)
        elif int(source) < int(target):
            where: Where = {**own.where, "link": f"{source}<->{target}"}
            ratio, share = max(own.ratio, back.ratio), max(own.step_frac, back.step_frac)
            merged.append(Degraded(where, ratio, share, own.events | back.events))
    return merged


def _median_of_others(values: FloatArray) -> FloatArray:
    """Return for each value the median of the others; NaN for one alone."""
    order = np.argsort(values)
    ranked, count = values[order], len(values)
    if count < 2:
        return np.full(count, np.nan)
    low, high = (count - 2) // 2, (count - 1) // 2
    place = np.arange(count)
    result = np.empty(count)
    result[order] = (ranked[low + (low >= place)] + ranked[high + (high >= place)]) / 2
    return result
