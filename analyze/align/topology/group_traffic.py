"""What the traffic of a process group says about its axis."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.listing import listed
from meshscope.probe.schema.terms import Axis, CollectiveKind, Direction, SpanKind

from ...tables.trace import Trace
from .pass_traffic import (
    MOST_IN_FORWARD,
    REDUCTIONS,
    gradient_groups,
    reduced_in_passes,
    tensor_groups,
    within,
)
from .pipeline_traffic import why_no_pipeline, why_other_order
from .ring_traffic import ring_pairs

_BESIDE_GRADIENTS = REDUCTIONS | {
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
_WHY_DATA = (
    "it is the only group in use, reduces, and has no sends or receives",
    "all groups in use hold all ranks, and only reduce and gather",
)
"""Evidence of data parallelism, for one group and for several."""
_WHY_TENSOR = "it reduces in forward and backward passes alike"
_WHY_GRADIENTS = "it reduces most of what its ranks reduce, and nothing of it in a forward pass"


class TrafficAxis(NamedTuple):
    """An axis and the traffic that shows it."""

    axis: Axis
    why: str


def traffic_axes(trace: Trace) -> dict[str, TrafficAxis]:
    """Return the axis of the groups whose traffic tells it.

    A group that only sends and receives is a pipeline, unless its sends go round a ring, as in
    context parallelism (``ring_traffic``), or are no stages' (``pipeline_traffic``). In a job without sends whose groups all hold
    the whole world, they are data-parallel if they reduce, and not within a forward pass.
    Where forward passes were recorded, tensor and data parallelism are told by the passes
    in which groups reduce (``pass_traffic``).
    """
    collective = trace.frame("collective")[["group_id", "kind"]].drop_duplicates().astype(str)
    p2p = _links(trace)
    used = set(collective["group_id"])
    in_rings = ring_pairs(trace)
    by_sends = {
        str(group_id): _of_sends(trace, _pairs(rows), in_rings)
        for group_id, rows in p2p.groupby("group_id")
        if group_id not in used
    }
    found = {group: axis for group, axis in by_sends.items() if axis is not None}
    if p2p.empty and _is_data_parallel(trace, used, set(collective["kind"])):
        return found | dict.fromkeys(used, TrafficAxis(Axis.DP, _WHY_DATA[len(used) > 1]))
    return found | _of_passes(trace)


def pipelines(trace: Trace) -> list[tuple[int, ...]]:
    """Return the ranks that sends join to pipelines, on whatever group they send."""
    return [line for line, pairs in _rows_of_stages(trace) if not why_no_pipeline(trace, pairs)]


def not_pipelines(trace: Trace) -> str:
    """Return why the ranks that sends join are no pipelines; empty where they are, or none are."""
    if not trace.row_count("p2p"):
        return ""
    joined = (pairs for _, pairs in _rows_of_stages(trace))
    return next(filter(None, (why_no_pipeline(trace, pairs) for pairs in joined)), "")


def why_not_in_order(trace: Trace) -> str:
    """Return why the stages that sends join do not lie in the order of ranks; empty if they may."""
    if not trace.row_count("p2p"):
        return ""
    joined = (pairs for _, pairs in _rows_of_stages(trace))
    return next(filter(None, (why_other_order(trace, pairs) for pairs in joined)), "")


def _rows_of_stages(trace: Trace) -> list[tuple[tuple[int, ...], set[tuple[int, int]]]]:
    """Return the ranks that sends join and may be stages, with the sends between them."""
    joined = _joined(_pairs(_links(trace)) - ring_pairs(trace))
    return [(line, pairs) for line, pairs in joined if not _is_ring(pairs)]


def _joined(pairs: set[tuple[int, int]]) -> list[tuple[tuple[int, ...], set[tuple[int, int]]]]:
    """Return the ranks that sends join, and the sends between them."""
    return [(line, {pair for pair in pairs if pair[0] in line}) for line in connected(pairs)]


def connected(pairs: set[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Return the sets of ranks that pairs connect, sorted."""
    of_rank: dict[int, set[int]] = {}
    for one, other in pairs:
        both = of_rank.get(one, {one}) | of_rank.get(other, {other})
        of_rank.update(dict.fromkeys(both, both))
    return sorted({tuple(sorted(ranks)) for ranks in of_rank.values()})


def _links(trace: Trace) -> pd.DataFrame:
    links = trace.frame("p2p")[["group_id", "rank", "peer", "direction"]].drop_duplicates()
    return links.astype({"group_id": str, "direction": str})


def _of_passes(trace: Trace) -> dict[str, TrafficAxis]:
    """Return the groups of a job with several whose reductions tell tensor or data parallelism."""
    reduced = reduced_in_passes(trace)
    groups = trace.frame("group")
    members = {
        str(name): tuple(ranks)
        for name, ranks in zip(groups["group_id"], groups["ranks"], strict=True)
        if len(ranks) > 1
    }
    reduced = reduced[reduced["group_id"].isin(members)]
    tensor, lines = tensor_groups(reduced), pipelines(trace)
    # A group of all ranks can only be data-parallel if the job has no other axis.
    world = trace.run.get("world_size") if tensor or lines else None
    widest = {name for name, ranks in members.items() if len(ranks) == world}
    data = gradient_groups(reduced[~reduced["group_id"].isin(widest)], members, lines)
    return {
        **dict.fromkeys(tensor, TrafficAxis(Axis.TP, _WHY_TENSOR)),
        **dict.fromkeys(data, TrafficAxis(Axis.DP, _WHY_GRADIENTS)),
    }


def _is_data_parallel(trace: Trace, used: set[str], kinds: set[str]) -> bool:
    groups = trace.frame("group")
    members = groups.loc[groups["group_id"].astype(str).isin(used), "ranks"]
    world = trace.run.get("world_size")
    if world is None:
        is_whole = len(used) == 1
    else:
        is_whole = bool(used) and all(len(ranks) == world for ranks in members)
    reduces = bool(kinds & REDUCTIONS) and kinds <= _BESIDE_GRADIENTS
    return is_whole and reduces and not _reduces_in_forward(trace)


def _reduces_in_forward(trace: Trace) -> bool:
    """Tell whether gradients cannot be what is reduced: a forward pass waits for it.

    The rank with the lowest number stands for all, because all run the same program.
    """
    if not trace.ranks or not trace.row_count("span"):
        return False
    rank = trace.ranks[0]
    spans = trace.rank_frame("span", rank, ["kind", "start_ns", "dur_ns"])
    forwards = spans[spans["kind"] == SpanKind.FORWARD.value]
    rows = trace.rank_frame("collective", rank, ["kind", "issue_ns"])
    issued = rows.loc[rows["kind"].isin(REDUCTIONS), "issue_ns"].dropna()
    if forwards.empty or issued.empty:
        return False
    return bool(within(forwards, issued.to_numpy(np.int64)).mean() > MOST_IN_FORWARD)


def _pairs(rows: pd.DataFrame) -> set[tuple[int, int]]:
    """Return source and target of the sends, seen from either end."""
    return {
        (rank, peer) if direction == Direction.SEND.value else (peer, rank)
        for rank, peer, direction in rows[["rank", "peer", "direction"]].itertuples(index=False)
        if peer >= 0
    }


def _of_sends(
    trace: Trace, pairs: set[tuple[int, int]], in_rings: set[tuple[int, int]]
) -> TrafficAxis | None:
    """Return the axis of a group by its sends; None where they are of several rows or kinds."""
    if not pairs:
        return TrafficAxis(Axis.PP, "it carries sends and receives only")
    joined = _joined(pairs)
    if len(joined) > 1 or (pairs & in_rings and pairs - in_rings):
        return None  # All ranks send on one group, which is wider than any axis.
    between = listed((f"{source}-{target}" for source, target in sorted(pairs)), most=_SHOWN)
    if _is_ring(pairs):
        return TrafficAxis(Axis.CP, f"its sends go one way round a ring: {between}")
    if pairs <= in_rings:
        return TrafficAxis(Axis.CP, f"its forward passes send one way round a ring: {between}")
    if why_no_pipeline(trace, pairs):
        return None
    return TrafficAxis(Axis.PP, f"it carries sends and receives only: {between}")


def _is_ring(pairs: set[tuple[int, int]]) -> bool:
    """Return whether every rank sends to one other, none sends back, and all come round."""
    to = dict(pairs)
    if len(to) != len(pairs) or len(pairs) < _LEAST_RING or set(to.values()) != set(to):
        return False
    return not any((target, source) in pairs for source, target in pairs)
