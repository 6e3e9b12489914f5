"""What the traffic of a process group says about its axis."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from meshscope.probe.schema.terms import Axis, CollectiveKind, Direction

from .trace import Trace

_OF_GRADIENTS = frozenset({CollectiveKind.ALL_REDUCE.value, CollectiveKind.REDUCE_SCATTER.value})
_BESIDE_GRADIENTS = _OF_GRADIENTS | {
    kind.value
    for kind in (
        CollectiveKind.ALL_GATHER,
        CollectiveKind.BROADCAST,
        CollectiveKind.REDUCE,
        CollectiveKind.BARRIER,
    )
}
"""What data parallelism does beside reducing gradients."""
_SHOWN = 3
"""Pairs of ranks that the evidence names."""
_LEAST_RING = 3


class TrafficAxis(NamedTuple):
    """An axis and the traffic that shows it."""

    axis: Axis
    why: str


def traffic_axes(trace: Trace) -> dict[str, TrafficAxis]:
    """Return the axis of the groups whose traffic tells it.

    A group that only sends and receives is a pipeline, unless its sends go one way
    round a ring, as in context parallelism. The only group of a job without sends is
    data-parallel if it reduces and holds the whole world.
    """
    collective = trace.frame("collective")[["group_id", "kind"]].drop_duplicates().astype(str)
    p2p = trace.frame("p2p")[["group_id", "rank", "peer", "direction"]].drop_duplicates()
    p2p = p2p.astype({"group_id": str, "direction": str})
    used = set(collective["group_id"])
    found = {
        str(group_id): _of_sends(_pairs(rows))
        for group_id, rows in p2p.groupby("group_id")
        if group_id not in used
    }
    if p2p.empty and len(used) == 1:
        group_id = used.pop()
        if _is_data_parallel(trace, group_id, set(collective["kind"])):
            why = "it is the only group in use, reduces, and has no sends or receives"
            found[group_id] = TrafficAxis(Axis.DP, why)
    return found


def _is_data_parallel(trace: Trace, group_id: str, kinds: set[str]) -> bool:
    groups = trace.frame("group")
    members = groups.loc[groups["group_id"].astype(str) == group_id, "ranks"]
    world = trace.run.get("world_size")
    is_whole = not len(members) or world is None or len(members.iloc[0]) == world
    return is_whole and bool(kinds & _OF_GRADIENTS) and kinds <= _BESIDE_GRADIENTS


def _pairs(rows: pd.DataFrame) -> set[tuple[int, int]]:
    """Return source and target of the sends, seen from either end."""
    return {
        (rank, peer) if direction == Direction.SEND.value else (peer, rank)
        for rank, peer, direction in rows[["rank", "peer", "direction"]].itertuples(index=False)
        if peer >= 0
    }


def _of_sends(pairs: set[tuple[int, int]]) -> TrafficAxis:
    if not pairs:
        return TrafficAxis(Axis.PP, "it carries sends and receives only")
    shown = ", ".join(f"{source}-{target}" for source, target in sorted(pairs)[:_SHOWN])
    between = shown + (" …" if len(pairs) > _SHOWN else "")
    if _is_ring(pairs):
        return TrafficAxis(Axis.CP, f"its sends go one way round a ring: {between}")
    return TrafficAxis(Axis.PP, f"it carries sends and receives only: {between}")


def _is_ring(pairs: set[tuple[int, int]]) -> bool:
    """Return whether every rank sends to one other, none sends back, and all come round."""
    to = dict(pairs)
    if len(to) != len(pairs) or len(pairs) < _LEAST_RING or set(to.values()) != set(to):
        return False
    return not any((target, source) in pairs for source, target in pairs)
