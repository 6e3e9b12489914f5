"""Which ranks the recorded operations join, by their places in the mesh, so that another order can be judged.

A place is the number of a rank in the order pp, dp, cp, tp, slowest first. An order of the axes gives each place another
rank, and so another host::

    places of a group      0 1          experts of two replicas that are neighbours
    order pp-dp-cp-tp      ranks 0 2    with tp of 2
    order tp-pp-dp-cp      ranks 0 1
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from meshscope.probe.schema.layout import MESH_AXES, ParallelLayout
from meshscope.probe.schema.terms import Axis

from ...tables.arrays import FloatArray, IntArray
from ...tables.trace import Trace


class Members(NamedTuple):
    """Groups of one size."""

    places: IntArray
    """(group, member)."""
    weight: FloatArray
    """(group,) What a member sends over what a rank of the job sends on average."""


def ranks_of_places(layout: ParallelLayout) -> IntArray:
    """Return the rank at each place, in the order of a layout.

    >>> ranks_of_places(ParallelLayout(tp=2, dp=2, order="tp-pp-dp-cp")).tolist()
    [0, 2, 1, 3]
    """
    order = layout.order.split("-")
    ranks = np.arange(layout.world_size).reshape([getattr(layout, name) for name in order])
    placed: IntArray = np.transpose(ranks, [order.index(name) for name in MESH_AXES]).ravel()
    return placed


def places_of_ranks(layout: ParallelLayout) -> IntArray:
    """Return the place of each rank."""
    found: IntArray = np.argsort(ranks_of_places(layout))
    return found


def recorded_members(
    layout: ParallelLayout, groups: Iterable[tuple[Sequence[int], float]]
) -> tuple[Members, ...]:
    """Return groups by size, weighted by what their members send.

    Args:
        layout: The mesh.
        groups: Ranks, and the bytes that all of them send.
    """
    place = places_of_ranks(layout)
    by_size: dict[int, list[tuple[Sequence[int], float]]] = defaultdict(list)
    for ranks, sent in groups:
        by_size[len(ranks)].append((ranks, sent))
    usual = sum(sent for own in by_size.values() for _, sent in own) / layout.world_size
    return tuple(
        Members(
            place[np.array([ranks for ranks, _ in own], np.int64)],
            np.array([sent / size / usual for _, sent in own]),
        )
        for size, own in sorted(by_size.items())
        if size > 1 and usual > 0
    )


def expert_places(trace: Trace) -> IntArray | None:
    """Return the places of the ranks that share the experts, (group, member); None unknown.

    They are neighbours of the flattened replicas and parts of the sequence, of which either may vary faster: the
    recorded groups decide, and all of them are taken as they are where they are on record.
    """
    layout = trace.layout
    if layout is None or layout.world_size % layout.ep:
        return None
    table, place = trace.frame("group"), places_of_ranks(layout)
    is_expert = table["axis"].astype(str) == Axis.EP.value
    recorded = {frozenset(map(int, ranks)) for ranks in table.loc[is_expert, "ranks"]}
    recorded = {own for own in recorded if len(own) == layout.ep and max(own) < len(place)}
    known = {frozenset(place[[*own]].tolist()) for own in recorded}
    if len(known) * layout.ep == len(place) == len(frozenset[int]().union(*known)):
        return np.array(sorted(sorted(own) for own in known), np.int64)
    for found in _neighbours(layout):
        if known <= set(map(frozenset, found.tolist())):
            return found
    return None


def _neighbours(layout: ParallelLayout) -> Iterator[IntArray]:
    """Yield the groups of neighbours with parts of the sequence varying faster, then with replicas doing so."""
    places = np.arange(layout.world_size).reshape([getattr(layout, name) for name in MESH_AXES])
    for names in (("pp", "tp", "dp", "cp"), ("pp", "tp", "cp", "dp")):
        data = np.transpose(places, [MESH_AXES.index(name) for name in names])
        yield data.reshape(-1, layout.ep)
