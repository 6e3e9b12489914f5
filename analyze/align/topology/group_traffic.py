"""What the traffic of a process group says about its axis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.terms import Axis, CollectiveKind, Direction, SpanKind

from ...tables.trace import Trace
from ...wording.message import Message, Text, message
from .forward_only import lacks_backward, launches_by_operators
from .pass_traffic import (
    MOST_IN_FORWARD,
    REDUCTIONS,
    gradient_groups,
    has_forwards,
    lie_within,
    reduced_in_passes,
    tensor_groups,
)
from .send_traffic import ring_pairs, why_no_pipeline, why_other_order

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
_LEAST_RING = 3
_WHY_DATA = (message("axis.only_group"), message("axis.all_groups_whole"))
"""Evidence of data parallelism, for one group and for several."""
_WHY_TENSOR = message("axis.reduces_in_both")
_WHY_ACTIVATIONS = message("axis.reduces_activations")
_WHY_GRADIENTS = message("axis.reduces_gradients")


class TrafficAxis(NamedTuple):
    """An axis and the traffic that shows it."""

    axis: Axis
    why: Message


def traffic_axes(trace: Trace) -> dict[str, TrafficAxis]:
    """Return the axis of the groups whose traffic tells it.

    A group that only sends and receives is a pipeline, unless its sends go round a ring, as in
    context parallelism (``ring_traffic``), or are no stages' (``pipeline_traffic``). In a job without sends whose groups all hold
    the whole world, they are data-parallel if they reduce, and not within a forward pass. In a program
    without a backward pass it is activations that they reduce, so they are tensor-parallel.
    Where forward passes were recorded, tensor and data parallelism are known from the passes
    in which groups reduce (``pass_traffic``).
    """
    collective = _distinct(trace, "collective", ["group_id", "kind"])
    used = {group_id for group_id, _ in collective}
    in_rings = ring_pairs(trace)
    links: dict[str, list[_Link]] = defaultdict(list)
    for link in _links(trace):
        links[link.group_id].append(link)
    by_sends = {
        group_id: _of_sends(trace, _pairs(own), in_rings)
        for group_id, own in sorted(links.items())
        if group_id not in used
    }
    found = {group: axis for group, axis in by_sends.items() if axis is not None}
    if not links and _is_data_parallel(trace, used, {kind for _, kind in collective}):
        if not lacks_backward(trace):
            return found | dict.fromkeys(used, TrafficAxis(Axis.DP, _WHY_DATA[len(used) > 1]))
        if launches_by_operators(trace):
            return found | dict.fromkeys(used, TrafficAxis(Axis.TP, _WHY_ACTIVATIONS))
    return found | _of_passes(trace)


def pipelines(trace: Trace) -> list[tuple[int, ...]]:
    """Return the ranks that sends join to pipelines, on whatever group they send."""
    return [line for line, pairs in _rows_of_stages(trace) if not why_no_pipeline(trace, pairs)]


def not_pipelines(trace: Trace) -> Text:
    """Return why the ranks that sends join are no pipelines; empty where they are, or none are."""
    if not trace.row_count("p2p"):
        return ""
    joined = (pairs for _, pairs in _rows_of_stages(trace))
    return next((why for pairs in joined if (why := why_no_pipeline(trace, pairs))), "")


def why_not_in_order(trace: Trace) -> Text:
    """Return why the stages that sends join do not lie in the order of ranks; empty if they may."""
    if not trace.row_count("p2p"):
        return ""
    joined = (pairs for _, pairs in _rows_of_stages(trace))
    return next((why for pairs in joined if (why := why_other_order(trace, pairs))), "")


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


class _Link(NamedTuple):
    """That a rank sends to a peer on a group, or receives from it."""

    group_id: str
    rank: int
    peer: int
    direction: str


def _links(trace: Trace) -> list[_Link]:
    return [_Link(*row) for row in _distinct(trace, "p2p", list(_Link._fields))]


def _distinct(trace: Trace, name: str, columns: list[str]) -> list[tuple[Any, ...]]:
    """Return each combination of values that a table has in some columns, once."""
    if not trace.row_count(name):
        return []
    table = trace.tables[name].select(columns)
    plain = pa.table({own: _decoded(table[own]) for own in columns})
    found = plain.group_by(columns).aggregate([])
    return list(zip(*(found[own].to_pylist() for own in columns), strict=True))


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(column, pa.string()) if pa.types.is_dictionary(column.type) else column


def _of_passes(trace: Trace) -> dict[str, TrafficAxis]:
    """Return the groups of a job with several whose reductions tell tensor or data parallelism."""
    if not has_forwards(trace):
        return {}
    reduced = reduced_in_passes(trace)
    members = {name: ranks for name, ranks in _members(trace).items() if len(ranks) > 1}
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


def _members(trace: Trace) -> dict[str, tuple[int, ...]]:
    if not trace.row_count("group"):
        return {}
    groups = trace.tables["group"]
    named = zip(groups["group_id"].to_pylist(), groups["ranks"].to_pylist(), strict=True)
    return {name: tuple(ranks) for name, ranks in named}


def _is_data_parallel(trace: Trace, used: set[str], kinds: set[str]) -> bool:
    members = [ranks for name, ranks in _members(trace).items() if name in used]
    world = trace.run.get("world_size")
    if world is None:
        is_whole = len(used) == 1
    else:
        # A world of one, which a file without its size is taken for, has no axis.
        is_whole = bool(used) and world != 1 and all(len(ranks) == world for ranks in members)
    reduces = bool(kinds & REDUCTIONS) and kinds <= _BESIDE_GRADIENTS
    return is_whole and reduces and not _reduces_in_forward(trace)


def _reduces_in_forward(trace: Trace) -> bool:
    """Tell whether gradients cannot be what is reduced: a forward pass waits for it.

    The rank with the lowest number stands for all, because all run the same program.
    """
    if not trace.ranks or not trace.row_count("span"):
        return False
    rank = trace.ranks[0]
    spans = trace.rank_table("span", rank, ["kind", "start_ns", "dur_ns"])
    forwards = spans.filter(pc.equal(_decoded(spans["kind"]), SpanKind.FORWARD.value))
    rows = trace.rank_table("collective", rank, ["kind", "issue_ns"])
    reduces = pc.is_in(_decoded(rows["kind"]), pa.array(sorted(REDUCTIONS)))
    issued = rows["issue_ns"].filter(reduces).drop_null().to_numpy()
    if not (forwards.num_rows and len(issued)):
        return False
    starts, lengths = (forwards[name].to_numpy() for name in ("start_ns", "dur_ns"))
    return bool(lie_within(starts, starts + lengths, issued).mean() > MOST_IN_FORWARD)


def _pairs(links: Iterable[_Link]) -> set[tuple[int, int]]:
    """Return source and target of the sends, seen from either end."""
    return {
        (link.rank, link.peer) if link.direction == Direction.SEND.value else (link.peer, link.rank)
        for link in links
        if link.peer >= 0
    }


def _of_sends(
    trace: Trace, pairs: set[tuple[int, int]], in_rings: set[tuple[int, int]]
) -> TrafficAxis | None:
    """Return the axis of a group by its sends; None where they are of several rows or kinds."""
    if not pairs:
        return TrafficAxis(Axis.PP, message("axis.sends_only"))
    joined = _joined(pairs)
    if len(joined) > 1 or (pairs & in_rings and pairs - in_rings):
        return None  # All ranks send on one group, which is wider than any axis.
    between = [f"{source}-{target}" for source, target in sorted(pairs)]
    if _is_ring(pairs):
        return TrafficAxis(Axis.CP, message("axis.ring", pairs=between))
    if pairs <= in_rings:
        return TrafficAxis(Axis.CP, message("axis.ring_of_forwards", pairs=between))
    if why_no_pipeline(trace, pairs):
        return None
    return TrafficAxis(Axis.PP, message("axis.sends_only_between", pairs=between))


def _is_ring(pairs: set[tuple[int, int]]) -> bool:
    """Return whether every rank sends to one other, none sends back, and all come round."""
    to = dict(pairs)
    if len(to) != len(pairs) or len(pairs) < _LEAST_RING or set(to.values()) != set(to):
        return False
    return not any((target, source) in pairs for source, target in pairs)
