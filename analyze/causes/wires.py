"""Wires: groups and links that are slower than their like, and what varies on an axis."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..program import Program
from ..replay import FloatArray
from ..results import Where
from .player import Player, Union

WIRE_REFERENCE = 0.1
"""Quantile of the wire times of like operations that counts as an undisturbed wire."""
MIN_RATIO = 1.3
"""A group or link is degraded when its wire time is that many times that of its like."""
MIN_OPERATIONS = 3
"""With fewer operations a place is not compared with others."""
MAX_DEGRADED = 3
"""Degraded places that are players of their own, the most costly ones."""


class Degraded(NamedTuple):
    """A place that is slower than its like."""

    where: Where
    ratio: float
    """Its median wire time over that of the other places of its axis."""
    events: npt.NDArray[np.bool_]
    """Which rows of the events are its."""


def wire_players(program: Program) -> list[Player]:
    """Return the degraded places, and one player an axis for what is left of the excess.

    A degraded place repaired is as fast as the median of the other places; what an
    operation takes beyond the undisturbed wire of its like, in excess of that, is
    the axis' own.
    """
    frame = program.events
    if frame.empty:
        return []
    wire = frame["wire_ns"].to_numpy(np.float64)
    like = frame.groupby(["axis", "kind", "size_bytes"])["wire_ns"]
    excess = np.nan_to_num((wire - like.transform("quantile", WIRE_REFERENCE)).clip(lower=0))
    players = []
    for place in degraded_places(frame)[:MAX_DEGRADED]:
        usual = _usual_elsewhere(frame, place.events)
        own = np.where(place.events, np.nan_to_num((wire - usual).clip(min=0)), 0.0)
        own = np.minimum(own, excess)
        excess = excess - own
        players.append(Player("slow_link", place.where, Union.WIRES, _on_waits(program, own)))
    axis = frame["axis"].to_numpy()
    for name in np.unique(axis):
        effect = _on_waits(program, np.where(axis == name, excess, 0.0))
        players.append(Player("slow_wire", {"axis": str(name)}, Union.WIRES, effect))
    return [player for player in players if player.effect_ns.any()]


def degraded_places(frame: pd.DataFrame) -> list[Degraded]:
    """Return the groups and links that are slower than their like, the most costly first.

    Sends and receives are compared by their two ends, since many links share a
    group. A place is compared with the median of the other places of its axis.
    """
    found = []
    wire = frame["wire_ns"]
    like = frame.groupby(["axis", "kind", "size_bytes"])["wire_ns"].transform("median")
    place = frame["link"].where(frame["is_p2p"], frame["group_id"])
    keys = [frame["axis"], frame["is_p2p"], place]
    grouped = (wire / like).where(wire.notna() & (like > 0)).groupby(keys)
    table = grouped.agg(["median", "count"]).dropna()
    table = table[table["count"] >= MIN_OPERATIONS]
    for (axis, is_p2p), rows in table.groupby(level=[0, 1]):
        ratio = rows["median"].to_numpy() / _median_of_others(rows["median"].to_numpy())
        for position in np.flatnonzero(ratio >= MIN_RATIO).tolist():
            name = str(rows.index[position][2])
            where: Where = {"axis": str(axis)}
            where["link" if is_p2p else "group_id"] = name
            own = (frame["axis"] == axis) & (frame["is_p2p"] == is_p2p) & (place == name)
            found.append(Degraded(where, float(ratio[position]), own.to_numpy(bool)))
    found = _both_directions(found)
    cost = [float((wire[own.events] - like[own.events]).clip(lower=0).sum()) for own in found]
    return [found[index] for index in np.argsort(cost)[::-1]]


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
            merged.append(Degraded(where, max(own.ratio, back.ratio), own.events | back.events))
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


def _usual_elsewhere(frame: pd.DataFrame, own: npt.NDArray[np.bool_]) -> FloatArray:
    """Return the median wire time of like operations of the other places, for every event."""
    keys = ["axis", "kind", "size_bytes"]
    usual = frame[~own].groupby(keys)["wire_ns"].median()
    return np.asarray(usual.reindex(pd.MultiIndex.from_frame(frame[keys])).to_numpy(np.float64))


def _on_waits(program: Program, event_effect: FloatArray) -> FloatArray:
    """Return the effect on the completion edges of the waits for each event."""
    event = program.marks["event"].to_numpy()[program.waits]
    effect = np.zeros(program.edge_count)
    effect[program.edge_count - len(event) :] = event_effect[event]
    return effect
