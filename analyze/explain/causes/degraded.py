"""Groups and links that are slower than their like: always, or in some of the steps."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...align.communication.rows import sorted_categories
from ...align.communication.waiting import chance_of_as_many
from ...tables.arrays import FloatArray, IntArray, combined, numbers_in
from ...tables.results import Where
from ...tables.sorting import values_by_group
from .like_wires import LikeWires, codes_of, like_size, like_wires_of
from .without_peers import MIN_RATIO as TWO_KINDS
from .without_peers import (
    PlaceKey,
    SlowSteps,
    can_have_two_kinds,
    slow_kind,
    slow_steps_of_lone_places,
)

MIN_RATIO = 1.3
"""A place, or a step of it, is slow when its wire time is that many times that of its like."""
MIN_OPERATIONS = 3
"""With fewer operations a place is not compared with others."""
MIN_STEPS = 4
"""With fewer steps nothing comes and goes."""
MAX_OFTEN = 0.75
"""A place that is slow in more of the steps is compared as if it were so always: too few are left."""
MAX_LEFT = 0.25
"""What is left of the excess of its slow steps in the others, at most, for these to be sound."""
MAX_CHANCE = 1e-4
"""A place is slow at times where its slow steps are this improbable for the other places."""

_DIRECTION = re.compile(r"(\d+)->(\d+)")


class Degraded(NamedTuple):
    """A place that is slower than its like."""

    where: Where
    ratio: float
    """Its wire time over that of the other places of its axis: the median, or the mean of the
    slow steps if it is slow at times."""
    step_frac: float
    """Share of the steps in which it is slow; 1 if its median is."""
    events: npt.NDArray[np.bool_]
    """Which rows of the events are its slow ones."""
    like: npt.NDArray[np.bool_]
    """Which rows they are compared with: those of other places, or of its own other steps. Of one that
    is slow at times, in the steps in which it is not: while all wait for it the others have the
    network, or the machine, for themselves."""
    is_alone: bool = False
    """Whether it is slow against its own other steps: no other place has its like, or those that have
    are slower than it is in these."""
    steps: frozenset[int] = frozenset()
    """Its slow steps; none where it is slow always, or its other steps are not sound."""


def degraded_places(frame: pd.DataFrame, like_wires: LikeWires | None = None) -> list[Degraded]:
    """Return the groups and links that are slower than their like, the most costly first.

    Sends and receives are compared by their two ends, since many links share a
    group. A place is compared with the median of the other places of its axis.

    Args:
        frame: Communication events.
        like_wires: What ``like_wires_of`` says of them, where it is known.
    """
    wire = frame["wire_ns"]
    like = pd.Series((like_wires or like_wires_of(frame)).usual_ns, frame.index)
    place = places(frame)
    relative = (wire / like).where(wire.notna() & (like > 0))
    keys = [frame["axis"], frame["is_p2p"], place]
    table = _medians(relative, keys)
    table = table[table["count"] >= MIN_OPERATIONS]
    at_times, own_kinds = _slow_at_times(relative, [*keys, frame["step"]], table.index)
    # What is slow on the median is slow always, unless many steps are not.
    often = {key: own for key, own in at_times.items() if own.steps and own.step_frac <= MAX_OFTEN}
    slow = at_times | _slow_always(table) | often
    alone: dict[PlaceKey, Degraded] = {}
    if can_have_two_kinds(frame["step"]):
        alone = _lone_places(frame, relative, both_ways(place))
    for axis, is_p2p, name in slow:
        if is_p2p:
            # One direction that is slower than the other says more than both do.
            alone.pop((axis, is_p2p, _link_of(str(name))), None)
    found = [_of_two_kinds(frame, place, key, own) for key, own in own_kinds.items()]
    for key, times in slow.items():
        own = _rows_of(frame, place, key)
        if key not in alone and key not in own_kinds:
            others = ~own & ~frame["step"].isin(times.steps).to_numpy()
            ratio, part = times.ratio, times.step_frac
            found.append(Degraded(_where(key), ratio, part, own, others, steps=times.steps))
    found = [*_both_directions(found), *alone.values()]
    found = [own for own in found if _is_beyond_clocks(frame, like, place, own)]
    cost = [float((wire[own.events] - like[own.events]).clip(lower=0).sum()) for own in found]
    return [found[index] for index in np.argsort(cost)[::-1]]


def _medians(relative: pd.Series, keys: list[pd.Series]) -> pd.DataFrame:
    """Return median and count of the known values of each place that has any, by axis, is_p2p and place."""
    number = combined(*map(codes_of, keys))
    row = np.zeros(int(number.max(initial=-1)) + 1, np.int64)
    row[number] = np.arange(len(number))
    values = values_by_group(relative.to_numpy(np.float64), number)
    known = np.flatnonzero(values.known)
    of_places = [key.iloc[row[known]].array for key in keys]
    index = pd.MultiIndex.from_arrays(of_places, names=[key.name for key in keys])
    return pd.DataFrame({"median": values.median[known], "count": values.known[known]}, index)


def _is_beyond_clocks(
    frame: pd.DataFrame, like: pd.Series, place: pd.Series, own: Degraded
) -> bool:
    """Tell whether a link is slower one way than the clocks at its ends make it look.

    What clocks are apart makes messages longer one way and shorter the other: both ways together must be slow then, or,
    where nothing comes back, the excess larger than the error. What is slow in either direction is so whatever the
    clocks are. Against its own other steps that error cancels.
    """
    link = own.where.get("link", "")
    source, way, target = link.partition("->")
    is_one_way = bool(way) and "<->" not in link
    if not is_one_way or own.is_alone or own.step_frac < 1 or "clock_error_ns" not in frame:
        return True
    error_ns = float(frame.loc[own.events, "clock_error_ns"].max())
    back = _rows_of(frame, place, (own.where["axis"], True, f"{target}->{source}"))
    wire = frame["wire_ns"]
    if error_ns == 0 or not back.any():
        return float((wire - like)[own.events].median()) > error_ns
    ratio = wire / like
    return float(ratio[own.events].median() + ratio[back].median()) >= 2 * MIN_RATIO


def _lone_places(
    frame: pd.DataFrame, relative: pd.Series, place: pd.Series
) -> dict[PlaceKey, Degraded]:
    """Return the places that are slow at times, and that nothing can be compared with."""
    like = pd.Series(like_size(frame), index=frame.index)
    found = {}
    for key, slow in slow_steps_of_lone_places(frame, relative, like, place).items():
        found[key] = _of_two_kinds(frame, place, key, slow)
    return found


def _of_two_kinds(
    frame: pd.DataFrame, place: pd.Series, key: PlaceKey, slow: SlowSteps
) -> Degraded:
    """Return a place that is slow against its own other steps."""
    own, is_slow = _rows_of(frame, place, key), frame["step"].isin(slow.steps).to_numpy()
    return Degraded(
        _where(key),
        slow.ratio,
        slow.step_frac,
        own & is_slow,
        own & ~is_slow,
        is_alone=True,
        steps=slow.steps,
    )


def _where(key: PlaceKey) -> Where:
    where: Where = {"axis": str(key[0])}
    where["link" if key[1] else "group_id"] = str(key[2])
    return where


def _rows_of(frame: pd.DataFrame, place: pd.Series, key: PlaceKey) -> npt.NDArray[np.bool_]:
    axis, is_p2p, name = key
    own = (frame["axis"] == axis) & (frame["is_p2p"] == is_p2p) & (place == name)
    return own.to_numpy(bool)


def places(frame: pd.DataFrame) -> pd.Series:
    """Return the link of each transfer between two, and the group of each collective."""
    links, groups = (frame[name].astype("category").cat for name in ("link", "group_id"))
    names = [*links.categories, *groups.categories]
    code = np.where(
        frame["is_p2p"], links.codes, groups.codes.astype(np.int64) + len(links.categories)
    )
    return pd.Series(sorted_categories(code, names), index=frame.index, name="place")


def both_ways(place: pd.Series) -> pd.Series:
    """Return the places with both directions of a link as one, ``a<->b``."""
    names = [_link_of(str(name)) for name in place.cat.categories]
    code = place.cat.codes.to_numpy()
    return pd.Series(sorted_categories(code, names), index=place.index, name="place")


def _link_of(name: str) -> str:
    """Return the link of a direction, named by its lower end first; a group as it is."""
    ends = _DIRECTION.fullmatch(name)
    return "<->".join(sorted(ends.groups(), key=int)) if ends else name


_Slow = dict[PlaceKey, SlowSteps]
"""Of each slow place, by axis, is_p2p and name; no steps: where its other steps are not sound."""


def _slow_always(table: pd.DataFrame) -> _Slow:
    found: _Slow = {}
    for _, rows in table.groupby(level=[0, 1], observed=True):
        values = rows["median"].to_numpy(np.float64)
        ratio = _over(values, _median_of_others(values))
        for position in np.flatnonzero(ratio >= MIN_RATIO).tolist():
            found[rows.index[position]] = SlowSteps(float(ratio[position]), 1.0, frozenset())
    return found


def _slow_at_times(
    relative: pd.Series, keys: list[pd.Series], places: pd.Index
) -> tuple[_Slow, _Slow]:
    """Return the places that have more slow steps than chance gives the others.

    A step is slow against the median step of the other places; with few steps it is enough
    that they are of two kinds with nothing between, and not so elsewhere. A place must be slow on
    the average of all steps too, so that a small difference that is merely certain does
    not count. One beside places that are slow in all steps is returned apart if its own steps are of two
    kinds. The other direction of a link is no other place: it is slow when the link is,
    and what is certain of one direction is so of both.
    """
    found: _Slow = {}
    own_kinds: _Slow = {}
    if len(numbers_in(keys[-1].to_numpy())) < MIN_STEPS:
        return found, own_kinds
    steps = relative.groupby(keys, observed=True).mean().unstack().reindex(places)
    for _, rows in steps.groupby(level=[0, 1], observed=True):
        values = rows.to_numpy(np.float64)
        ratio = _over(values, _median_of_others(np.nanmedian(values, axis=1))[:, None])
        is_slow, back = ratio >= MIN_RATIO, _other_direction(rows.index)
        slow, seen = is_slow.sum(axis=1), np.isfinite(values).sum(axis=1)
        chance = _least_of_both(_chance_elsewhere(slow, seen, back), back)
        mean = np.nanmean(values, axis=1)
        is_slower = mean >= MIN_RATIO * _median_of_others(mean)
        far_faster = (ratio * TWO_KINDS <= 1.0).sum(axis=1)
        is_unlike = (slow >= MIN_STEPS) & (far_faster >= MIN_STEPS)
        for position in np.flatnonzero((slow > 0) & (is_slower | is_unlike)).tolist():
            is_certain = chance[position] <= MAX_CHANCE
            looks_alone = is_unlike[position] or not is_certain
            kinds = _slow_alone(values, position, int(back[position])) if looks_alone else None
            if kinds is not None and _is_beside_slower(ratio[position], kinds):
                over = values[position][kinds].mean() / values[position][~kinds].mean()
                own_steps = frozenset(map(int, rows.columns[kinds]))
                own_kinds[rows.index[position]] = SlowSteps(over, float(kinds.mean()), own_steps)
            if not is_slower[position]:
                continue
            own = is_slow[position] if is_certain else kinds
            if own is not None:
                is_apart = _is_apart(ratio[position], own)
                found[rows.index[position]] = SlowSteps(
                    float(ratio[position][own].mean()),
                    float(own.sum() / seen[position]),
                    frozenset(map(int, rows.columns[own])) if is_apart else frozenset(),
                )
    return found, own_kinds


def _is_beside_slower(ratio: FloatArray, is_slow: npt.NDArray[np.bool_]) -> bool:
    """Tell whether a place is slower than its like in its slow steps, and far faster in the rest."""
    return bool(ratio[is_slow].mean() >= MIN_RATIO and ratio[~is_slow].mean() * TWO_KINDS <= 1.0)


def _is_apart(ratio: FloatArray, is_slow: npt.NDArray[np.bool_]) -> bool:
    """Tell whether a place is as fast as its like in its other steps, so that these tell what it is."""
    others = ratio[~is_slow & np.isfinite(ratio)]
    return bool(len(others) and others.mean() - 1.0 <= MAX_LEFT * (ratio[is_slow].mean() - 1.0))


def _chance_elsewhere(slow: IntArray, seen: IntArray, back: IntArray) -> FloatArray:
    """Return a bound on the chance of as many slow steps, given those of the other places.

    Args:
        slow: Slow steps of each place.
        seen: Its steps.
        back: As ``_other_direction`` gives it; of a link alone, its directions are compared.
    """
    others, total = slow.sum() - slow, seen.sum() - seen
    of_back = np.where((back >= 0) & (total > seen[back]), back, -1)
    others = others - np.where(of_back >= 0, slow[of_back], 0)
    total = total - np.where(of_back >= 0, seen[of_back], 0)
    # Half a slow step more, because what was not seen yet is not impossible.
    return chance_of_as_many(slow, seen, (others + 0.5) / (total + 1) * seen)


def _least_of_both(chance: FloatArray, back: IntArray) -> FloatArray:
    """Return for each place the lesser chance of its two directions; its own without another."""
    return np.where(back >= 0, np.minimum(chance, chance[back]), chance)


def _other_direction(places: pd.Index) -> IntArray:
    """Return the position of the link back of each link, -1 for groups and where it was not seen.

    Args:
        places: (axis, is_p2p, place) of places of one axis.
    """
    names = {key[2]: position for position, key in enumerate(places)}
    turned = [_DIRECTION.sub(r"\2->\1", str(key[2])) if key[1] else "" for key in places]
    return np.array([names.get(name, -1) for name in turned], np.int64)


def _slow_alone(values: FloatArray, position: int, back: int) -> npt.NDArray[np.bool_] | None:
    """Return the slow steps of a place whose steps are of two kinds, unless they are so elsewhere.

    Args:
        values: Wire time by place and step.
        position: Of the place; None is returned where not all of its steps were seen.
        back: Position of its other direction, which is not elsewhere; -1 without one.
    """
    kinds = slow_kind(values[position]) if np.isfinite(values[position]).all() else None
    if kinds is None:
        return None
    others = np.delete(values, [position, back] if back >= 0 else position, axis=0)
    others = others[np.isfinite(others).all(axis=1)]
    if not len(others):
        return None
    usual = np.median(others, axis=0)
    is_shared = usual[kinds.is_slow].mean() >= MIN_RATIO * usual[~kinds.is_slow].mean()
    return None if is_shared else kinds.is_slow


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
        if back is None or back.is_alone != own.is_alone:
            merged.append(own)
        elif int(source) < int(target):
            where: Where = {**own.where, "link": f"{source}<->{target}"}
            ratio, share = max(own.ratio, back.ratio), max(own.step_frac, back.step_frac)
            events = own.events | back.events
            like = ~events & (own.like | back.like if own.is_alone else own.like & back.like)
            steps = own.steps | back.steps
            merged.append(Degraded(where, ratio, share, events, like, own.is_alone, steps))
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
