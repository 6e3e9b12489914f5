"""The mesh of a run that does not state it, from the names and members of its groups.

A group that is named after mesh axes must lie along just these axes. The sizes come
from groups named after one axis; which axis varies fastest over the ranks comes
from the members. A mesh counts only if every named group agrees with it and no
other mesh would do as well: a wrong mesh blames the wrong stage.

For tensor groups [0, 1], data groups [0, 2] and pipeline groups [0, 4, 8, 12] of 16
ranks: rank = tp + 2 dp + 4 pp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations, product
from math import prod
from typing import NamedTuple

from meshscope.probe.schema.layout import MESH_AXES, ParallelLayout
from meshscope.probe.schema.terms import Axis

from ...tables.trace import Trace
from ...wording.message import Text, message
from .axes import named_axes, with_axes
from .group_traffic import not_pipelines, pipelines, traffic_axes, why_not_in_order
from .send_traffic import rings

_MESH = frozenset(map(Axis, MESH_AXES))
_SIZED = (Axis.TP, Axis.PP, Axis.CP)
"""Axes whose size a name must give; the rest of the world is data-parallel."""


class NamedGroup(NamedTuple):
    """A group whose name tells along which axes of the mesh it lies."""

    axes: frozenset[Axis]
    ranks: tuple[int, ...]


def with_inferred_layout(trace: Trace) -> Trace:
    """Return the trace with its mesh, where it states none and the names of groups give one."""
    if trace.layout is not None:
        return trace
    layout, why_not = layout_of_names(trace)
    if layout is None:
        limits = (
            (*trace.limits, message("unknown.mesh", reason=why_not)) if why_not else trace.limits
        )
        return replace(trace, limits=limits)
    found = replace(trace, layout=replace(layout, vpp=_chunks(trace, layout.pp)))
    # With one axis alone, the groups keep the evidence that this mesh was inferred from.
    return found if layout.dp == layout.world_size else with_axes(found)


def _chunks(trace: Trace, stages: int) -> int:
    """Return how many stages of the model each rank holds, as its passes say; 1 where they do not."""
    if stages < 2 or not trace.row_count("span"):
        return 1
    spans = trace.frame("span")
    held = spans.loc[spans["stage"] >= 0, ["rank", "stage", "chunk"]].drop_duplicates()
    counts = held.groupby("rank")["stage"].nunique()
    if held.empty or set(counts.index) != set(trace.ranks) or counts.nunique() != 1:
        return 1
    chunks = int(counts.iloc[0])
    is_whole = held["stage"].nunique() == stages * chunks and held["chunk"].nunique() == chunks
    return chunks if is_whole else 1


def layout_of_names(trace: Trace) -> tuple[ParallelLayout | None, Text]:
    """Return the mesh that names and members of the groups give, or None and the reason.

    A group without a name counts for the axis that its sends show; where no group is
    named after an axis, for that which its reductions show too. A job whose traffic
    shows data parallelism over all ranks and nothing else has no other axis.
    """
    world_size = trace.run.get("world_size")
    if not trace.row_count("group") or not isinstance(world_size, int) or world_size < 1:
        return None, ""
    groups = trace.tables["group"]
    group_ids, members = groups["group_id"].to_pylist(), groups["ranks"].to_pylist()
    traffic = traffic_axes(trace)
    names = [text or "" for text in groups["description"].to_pylist()]
    is_named = any(named_axes(name) & _MESH for name in names)
    named = []
    for group_id, ranks, name in zip(group_ids, members, names, strict=True):
        axes, by_traffic = named_axes(name), traffic.get(group_id)
        if not axes and by_traffic is not None and (by_traffic.axis is Axis.PP or not is_named):
            axes = frozenset({by_traffic.axis})
        named.append(NamedGroup(axes, tuple(ranks)))
    if not is_named and all(group.axes != {Axis.PP} for group in named):
        # Stages may send on the group of all ranks.
        named += [NamedGroup(frozenset({Axis.PP}), line) for line in pipelines(trace)]
    if not is_named:
        named = _with_rings(named, rings(trace))
    layout, why_not = infer_layout(named, world_size)
    is_all_data = bool(traffic) and all(
        by_traffic.axis is Axis.DP for by_traffic in traffic.values()
    )
    if layout is None and not why_not and is_all_data:
        return ParallelLayout(dp=world_size), ""
    if layout is None and not why_not:
        why_not = not_pipelines(trace)
    if layout is not None and layout.pp > 1 and (other := why_not_in_order(trace)):
        return None, other
    return layout, why_not


def _with_rings(named: list[NamedGroup], found: list[tuple[int, ...]]) -> list[NamedGroup]:
    """Return the groups and the rings beside them, whose ranks share gradients with the replicas."""
    if not found:
        return named
    data, both = frozenset({Axis.DP}), frozenset({Axis.DP, Axis.CP})
    shared = [group._replace(axes=both) if group.axes == data else group for group in named]
    return [*shared, *(NamedGroup(frozenset({Axis.CP}), tuple(sorted(ring))) for ring in found)]


def infer_layout(
    groups: Sequence[NamedGroup], world_size: int
) -> tuple[ParallelLayout | None, Text]:
    """Return the only mesh that explains all groups, or None and the reason.

    The reason is empty where no group is named after an axis.

    Args:
        groups: Groups with the axes that their names give; expert groups give the
            expert size only, because experts have a mesh of their own.
        world_size: Ranks of the job.
    """
    mesh = [group for group in groups if group.axes and group.axes <= _MESH and group.ranks]
    if not any(len(group.ranks) > 1 for group in mesh):
        return None, ""
    if max(max(group.ranks) for group in mesh) >= world_size:
        return None, message("mesh.rank_beyond", ranks=world_size)
    found: list[ParallelLayout] = []
    tried: set[tuple[tuple[str, int], ...]] = set()
    for layout in _candidates(mesh, world_size):
        spread = [(name, getattr(layout, name)) for name in layout.order.split("-")]
        # Where axes of one rank stand in the order makes no difference.
        key = tuple((name, size) for name, size in spread if size > 1)
        if key not in tried and _explains(layout, mesh):
            found.append(layout)
        tried.add(key)
    if not found:
        return None, message("mesh.none_agrees", ranks=world_size)
    if len(found) > 1:
        return None, message("mesh.several_agree", meshes=len(found))
    expert = {len(group.ranks) for group in groups if group.axes == {Axis.EP}}
    return replace(found[0], ep=expert.pop() if len(expert) == 1 else 1), ""


def _candidates(groups: Sequence[NamedGroup], world_size: int) -> Iterator[ParallelLayout]:
    """Yield the meshes of all sizes that the names give, the usual order of axes first."""
    sizes = [
        sorted({len(group.ranks) for group in groups if group.axes == {axis}}) or [1]
        for axis in _SIZED
    ]
    for tp, pp, cp in product(*sizes):
        dp, rest = divmod(world_size, tp * pp * cp)
        if rest or not dp:
            continue
        for order in permutations(MESH_AXES):
            yield ParallelLayout(tp=tp, pp=pp, cp=cp, dp=dp, order="-".join(order))


def _explains(layout: ParallelLayout, groups: Sequence[NamedGroup]) -> bool:
    """Return whether all groups lie along their axes, and every axis has a whole group."""
    places = [layout.coordinates(rank) for rank in range(layout.world_size)]
    whole: set[Axis] = set()
    for axes, ranks in groups:
        others = [axis for axis in MESH_AXES if axis not in axes]
        if len({tuple(places[rank][axis] for axis in others) for rank in ranks}) > 1:
            return False
        if len(ranks) == prod(getattr(layout, axis) for axis in axes):
            whole |= axes
    if _sharded_and_replicated(layout.dp, groups):
        whole.add(Axis.DP)
    return all(getattr(layout, axis) == 1 or axis in whole for axis in _MESH)


def _sharded_and_replicated(size: int, groups: Sequence[NamedGroup]) -> bool:
    """Return whether two data groups that meet in one rank span an axis of this size.

    Hybrid sharding has one group for the shards and one for their replicas, and none
    for both together (FSDP2 with a mesh of two dimensions).
    """
    of_rank: dict[int, list[tuple[int, ...]]] = {}
    for axes, ranks in groups:
        if axes == {Axis.DP}:
            for rank in ranks:
                of_rank.setdefault(rank, []).append(ranks)
    return any(
        len(one) * len(other) == size and len(set(one) & set(other)) == 1
        for members in of_rank.values()
        for one, other in combinations(members, 2)
    )
