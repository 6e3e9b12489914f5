"""Slow groups and links that leave or enter one host by one port: one cause, and not one each.

What a host sends on one axis and what it sends on another share its port::

    host 1   port ==|==> host 0   group [0, 1]: slow     all of it crosses one port of host 1,
                    |==> host 3   link 1->3: slow        and no other port carries both

A port is to blame where at least two slow places cross it the same way and they are most of what does. All that crosses
it is repaired together then, also what is too short to be reported as slow by itself. Places that are slow at times are joined
where they are so in the same steps, by what crosses the port in these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...account.links.own import crossing_bytes
from ...tables.arrays import BoolArray, FloatArray, IntArray
from ...tables.results import Where
from ...tables.trace import Trace
from .degraded import MAX_OFTEN, Degraded

MIN_PLACES = 2
"""One slow place is that place."""
ALIKE_STEPS = 0.5
"""Steps in which two places are both slow, as a share of those in which one of them is, from which they are slow together."""
MIN_PART = 0.5
"""Part of the bytes through a port that its slow places carry, at least: else it is fast for others."""


class SlowPort(NamedTuple):
    """What slow places have in common."""

    where: Where
    """axis of the most costly place, and the host."""
    hosts: tuple[str, ...]
    """Whose port it is; two where the same places join both, and nothing tells which."""
    way: str
    """``out`` or ``in``, as seen from the host; empty where slow places go both ways."""
    places: tuple[Degraded, ...]
    """The most costly first."""
    events: BoolArray
    """Which rows of the events are those of its slow places."""
    crossing: BoolArray
    """Which rows of the events cross it."""
    more: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Axis and groups of what crosses it at a steady rate, and is slow only beside the stated speed."""


class _Sides(NamedTuple):
    """What crosses each side of each port; a side is a port and a way."""

    hosts: list[str]
    """By port."""
    port: IntArray
    """Of each event."""
    moved_bytes: tuple[FloatArray, FloatArray]
    """Of each event: out, in."""


def joined_by_ports(
    frame: pd.DataFrame, trace: Trace, degraded: Sequence[Degraded]
) -> list[Degraded | SlowPort]:
    """Return slow places with those of one port as one, in the order of their most costly place.

    Args:
        frame: The events as what passes between ranks.
        trace: The capture; without known hosts nothing is joined.
        degraded: As ``degraded_places`` returns them.
    """
    found: dict[int, Degraded | SlowPort] = dict(enumerate(degraded))
    together = [own for own in _together(degraded) if len(own) >= MIN_PLACES]
    if not together or len(set(trace.clocks.values())) < MIN_PLACES:
        return [*degraded]
    sides = _sides(frame, trace)
    for left in together:
        steps = frozenset[int]().union(*(degraded[at].steps for at in left))
        is_asked = degraded[left[0]].step_frac <= MAX_OFTEN
        rows = frame["step"].isin(steps).to_numpy() if is_asked else np.ones(len(frame), bool)
        for at, port in _ports(sides, degraded, left, rows):
            # Two of one host and axis would be one cause by name.
            known = [own.where for own in found.values() if isinstance(own, SlowPort)]
            if port.where not in known:
                found = {key: own for key, own in found.items() if key not in at}
                found[at[0]] = port
    return [found[at] for at in sorted(found)]


def _together(degraded: Sequence[Degraded]) -> list[list[int]]:
    """Return the positions of the places that are slow always, and of those that are slow in like steps."""
    always = [at for at, own in enumerate(degraded) if own.step_frac > MAX_OFTEN]
    found: list[list[int]] = []
    for at, own in enumerate(degraded):
        if own.step_frac > MAX_OFTEN or not own.steps:
            continue
        alike = [one for one in found if _are_alike(degraded[one[0]].steps, own.steps)]
        if alike:
            alike[0].append(at)
        else:
            found.append([at])
    return [always, *found]


def _are_alike(steps: frozenset[int], others: frozenset[int]) -> bool:
    return len(steps & others) >= ALIKE_STEPS * len(steps | others)


def _ports(
    sides: _Sides, degraded: Sequence[Degraded], left: list[int], rows: BoolArray
) -> Iterator[tuple[list[int], SlowPort]]:
    """Yield the ports that some slow places share, with the positions of these.

    Args:
        sides: What crosses each side of each port.
        degraded: All slow places.
        left: Positions of those that are slow at the same times.
        rows: Which rows of the events are of these times.
    """
    events = [own.events & rows for own in degraded]
    totals, slow = _bytes_by_side(sides, len(sides.hosts), [rows, *events])
    while left:
        touched = slow[left] > 0
        part = (slow[left].sum(axis=0) / np.maximum(totals, 1.0)) >= MIN_PART
        places = np.where(part, touched.sum(axis=0), 0)
        if places.max() < MIN_PLACES:
            return
        best = int(np.argmax(places))
        own = [at for at, is_there in zip(left, touched[:, best], strict=True) if is_there]
        alike = np.flatnonzero(part & (touched == touched[:, [best]]).all(axis=0))
        yield own, _port(sides, [degraded[at] for at in own], alike, rows)
        left = [at for at in left if at not in own]


def _port(sides: _Sides, places: list[Degraded], alike: IntArray, rows: BoolArray) -> SlowPort:
    """Return the port of some sides that the same slow places cross."""
    ways, ports = np.divmod(alike, len(sides.hosts))
    hosts = tuple(dict.fromkeys(sides.hosts[port] for port in ports))
    way = ("out", "in")[int(ways[0])] if len(set(ways.tolist())) == 1 else ""
    events = np.any([own.events for own in places], axis=0)
    moved = sum(sides.moved_bytes[one] for one in set(ways.tolist()))
    crossing = rows & np.isin(sides.port, ports) & (np.asarray(moved) > 0)
    where: Where = {"axis": places[0].where["axis"], "host": hosts[0]}
    return SlowPort(where, hosts, way, tuple(places), events, crossing | events)


def _bytes_by_side(
    sides: _Sides, count: int, rows: Sequence[BoolArray]
) -> tuple[FloatArray, FloatArray]:
    """Return the bytes through each side, out before in: of the first rows, and of each of the others."""

    def of(rows: BoolArray) -> FloatArray:
        ports = sides.port[rows]
        return np.concatenate(
            [np.bincount(ports, moved[rows], count) for moved in sides.moved_bytes]
        )

    first, *others = map(of, rows)
    return first, np.array(others)


def _sides(frame: pd.DataFrame, trace: Trace) -> _Sides:
    """Return by which port the member of each event sends and receives."""
    crossing = crossing_bytes(trace, frame)
    ranks, at = np.unique(frame["rank"].to_numpy(np.int64), return_inverse=True)
    names = ports_of_ranks(trace, ranks.tolist())
    ports = {name: number for number, name in enumerate(dict.fromkeys(names))}
    number = np.array([ports[name] for name in names], np.int64)
    hosts = [host for host, _ in ports]
    return _Sides(hosts, number[at], (crossing.sent_bytes, crossing.received_bytes))


def ports_of_ranks(trace: Trace, ranks: Sequence[int]) -> list[tuple[str, str]]:
    """Return host and port of each rank: its own card if stated, the only one of its host, or one of its own."""
    recorded = trace.frame("link_sample")
    by_host = recorded["port"].astype(str).groupby(recorded["host"].astype(str)).nunique()
    single = {str(host) for host, ports in by_host.items() if ports == 1}
    cards = {
        rank: " ".join(card.name for card in machine.cards_of(rank))
        for machine in trace.machines
        if machine.cards
        for rank in machine.ranks
    }
    return [_port_of(trace.clock_of(rank), rank, cards, single) for rank in ranks]


def _port_of(
    host: str, rank: int, cards: Mapping[int, str], single: Collection[str]
) -> tuple[str, str]:
    if rank in cards:
        return host, cards[rank]
    return host, "" if host in single else f"rank {rank}"
