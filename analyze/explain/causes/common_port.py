"""The one port of a host that explains why links of several axes are slow.

A port gives what crosses it, whatever axis it belongs to, the same rate. So the port at fault is one that all links
which run at a slow rate have in common, and that nothing crosses faster::

    hosts A, B    dp ==|      All slow links cross a port of B, at one rate.
    hosts B, C    cp ==|==>   A and C have no part in one of them.
    hosts A, C    fast        Had this one their rate, no port would be common to all three.

Transfers that cross a port at the same time share it: each is charged with its part of that time, so that
overlapping ones show the rate of the port as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...tables.arrays import FloatArray, IntArray

UNEQUAL = 1.1
"""Rates that differ that many times are not those of one port."""
MIN_LINKS = 2
"""One slow link is that link."""
MIN_PART = 0.5
"""Part of the bytes through a port that slow links carry, at least: else it is fast for others."""
WAYS = ("out", "in")


class CommonPort(NamedTuple):
    """What slow links have in common."""

    links: tuple[int, ...]
    """Their positions."""
    ports: tuple[int, ...]
    """Those that all of them cross; several where nothing tells which."""
    way: str
    """``out`` or ``in``, as seen from the host; empty where they cross it both ways."""


def common_ports(links: Sequence[pd.DataFrame], crossing: pd.DataFrame) -> list[CommonPort]:
    """Return the ports that explain several slow links; no link is in two of them.

    Args:
        links: The transfers of each link that is slow, a row a member that receives: join, step, port (number of the
            member's), source (port of who sends a message to it, -1 of a collective), moved_bytes, end_ns, wire_ns.
        crossing: All transfers that cross hosts, as such rows.
    """
    left = [*range(len(links))]
    found: list[CommonPort] = []
    while len(left) >= MIN_LINKS:
        best = _best_port(links, left, crossing)
        if best is None:
            break
        found.append(best)
        left = [at for at in left if at not in best.links]
    return found


def _best_port(
    links: Sequence[pd.DataFrame], left: list[int], crossing: pd.DataFrame
) -> CommonPort | None:
    """Return the port that most of some links cross; None where no port explains two."""
    sides: dict[tuple[int, ...], list[tuple[int, str]]] = {}
    for way in WAYS:
        touching = {at: _ports(links[at], way) for at in left}
        for port in sorted(set[int]().union(*touching.values())):
            own = tuple(at for at in left if port in touching[at])
            if len(own) >= MIN_LINKS and _explains(links, own, left, crossing, (port, way)):
                sides.setdefault(own, []).append((port, way))
    if not sides:
        return None
    own = max(sides, key=len)
    ways = {way for _, way in sides[own]}
    ports = tuple(dict.fromkeys(port for port, _ in sides[own]))
    return CommonPort(own, ports, ways.pop() if len(ways) == 1 else "")


def _explains(
    links: Sequence[pd.DataFrame],
    own: tuple[int, ...],
    left: list[int],
    crossing: pd.DataFrame,
    side: tuple[int, str],
) -> bool:
    """Tell whether a side of a port gives some links one rate, others than which none has, and nothing is faster."""
    rows = [through(links[at], *side) for at in own]
    rates = shared_rates(rows)
    if rates.max() > UNEQUAL * rates.min():
        return False
    moved = sum(float(one["moved_bytes"].sum()) for one in rows)
    if moved < MIN_PART * float(through(crossing, *side)["moved_bytes"].sum()):
        return False
    others = [
        float(shared_rates([through(links[at], port, "in")])[0])
        for at in left
        if at not in own
        for port in sorted(_ports(links[at], "in"))
    ]
    return not any(max(one, rates.min()) <= UNEQUAL * min(one, rates.max()) for one in others)


def _ports(rows: pd.DataFrame, way: str) -> set[int]:
    """Return the ports that transfers cross in a way."""
    port, source = rows["port"].to_numpy(), rows["source"].to_numpy()
    return set(np.unique(port if way == "in" else np.where(source < 0, port, source)).tolist())


def through(rows: pd.DataFrame, port: int, way: str) -> pd.DataFrame:
    """Return the transfers that cross a side of a port; a collective crosses both of each member's."""
    at = rows["port"] if way == "in" else rows["source"].where(rows["source"] >= 0, rows["port"])
    found: pd.DataFrame = rows[(at == port).to_numpy(bool)]
    return found


def shared_rates(links: Sequence[pd.DataFrame]) -> FloatArray:
    """Return bytes per ns of links, each transfer charged with its part of the time that it shares.

    The members of one operation are one transfer.
    """
    rows = pd.concat([one.assign(at=at) for at, one in enumerate(links)], ignore_index=True)
    rows["start_ns"] = rows["end_ns"] - rows["wire_ns"]
    found = rows.groupby(["at", "join"], observed=True).agg(
        start=("start_ns", "min"), end=("end_ns", "max"), moved=("moved_bytes", "sum")
    )
    start, end = found["start"].to_numpy(np.int64), found["end"].to_numpy(np.int64)
    at: IntArray = found.index.get_level_values("at").to_numpy(np.int64)
    time = _parts(start, end)
    moved = np.bincount(at, found["moved"].to_numpy(np.float64), len(links))
    return np.asarray(moved / np.maximum(np.bincount(at, time, len(links)), 1.0))


def _parts(start: IntArray, end: IntArray) -> FloatArray:
    """Return the time of each interval, divided among those that are under way at once."""
    border = np.unique(np.concatenate([start, end]))
    change = np.bincount(np.searchsorted(border, start), minlength=len(border))
    change = change - np.bincount(np.searchsorted(border, end), minlength=len(border))
    count = np.maximum(np.cumsum(change)[:-1], 1)
    passed = np.concatenate([[0.0], np.cumsum(np.diff(border) / count)])
    found: FloatArray = (
        passed[np.searchsorted(border, end)] - passed[np.searchsorted(border, start)]
    )
    return found
