"""Which mesh axis a process group lies along, with the evidence.

What the user states first, then the known layout, then what the framework calls the
group, then its traffic. An axis that none of these gives stays ``other``; nothing is
guessed from sizes.

Experts that are spread over all ranks need no group of their own: tokens go to them and back in
all-to-alls on the group that reduces gradients. Before the first backward pass of a step there are
no gradients yet, so these exchanges are no data parallelism, and what speeds up a reduction does not help them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from math import prod

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.layout import MESH_AXES, ParallelLayout
from meshscope.probe.schema.message import message_to_cell
from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import Axis, CollectiveKind, SpanKind

from ...tables.trace import Trace
from ...wording.limits import Limit, has_code
from ...wording.message import Message, Text, message, message_of_cell
from ...wording.words import is_missing
from .group_traffic import TrafficAxis, traffic_axes

MIN_STEPS = 0.5
"""Share of the steps in which a group exchanges before there are gradients."""


def exchanging_groups(trace: Trace, among: Collection[str]) -> set[str]:
    """Return which of some groups exchange in all-to-alls between the first forward and backward.

    The rank with the lowest number stands for all, because all run the same program.
    """
    if not trace.ranks or not trace.row_count("span") or not among:
        return set()
    rank = trace.ranks[0]
    kinds = trace.rank_table("collective", rank, ["kind"])["kind"]
    if CollectiveKind.ALL_TO_ALL.value not in pc.unique(pc.cast(kinds, pa.string())).to_pylist():
        return set()
    spans = trace.rank_frame("span", rank, ["step", "kind", "start_ns"])
    rows = trace.rank_frame("collective", rank, ["step", "group_id", "kind", "issue_ns"])
    rows = rows[rows["kind"] == CollectiveKind.ALL_TO_ALL.value].dropna(subset=["issue_ns"])
    first = {
        kind: spans.loc[spans["kind"] == kind.value].groupby("step")["start_ns"].min()
        for kind in (SpanKind.FORWARD, SpanKind.BACKWARD)
    }
    steps = first[SpanKind.BACKWARD].index
    if rows.empty or not len(steps):
        return set()
    begun, over = (rows["step"].map(first[kind]) for kind in first)
    early = rows[(rows["issue_ns"] >= begun) & (rows["issue_ns"] < over)]
    share = early.groupby(early["group_id"].astype(str))["step"].nunique() / len(steps)
    return {str(name) for name in share.index[share >= MIN_STEPS]} & set(among)


def as_expert_all_to_alls(table: pa.Table, groups: Collection[str]) -> pa.Table:
    """Return the collectives with the all-to-alls of some groups on the expert axis."""
    if not groups or not table.num_rows:
        return table
    group, kind, axis = (pc.cast(table[name], pa.string()) for name in ("group_id", "kind", "axis"))
    moved = pc.and_(
        pc.is_in(group, pa.array(sorted(groups))), pc.equal(kind, CollectiveKind.ALL_TO_ALL.value)
    )
    at = table.column_names.index("axis")
    labelled = table.set_column(at, "axis", pc.if_else(moved, Axis.EP.value, axis))
    return TABLES["collective"].conform(labelled)


_WORDS: tuple[tuple[str, Axis], ...] = (
    (r"\bexpert|(^|[_\W])ep(\d|[_\W]|$)", Axis.EP),
    (r"pipeline|(^|[_\W])pp(\d|[_\W]|$)", Axis.PP),
    (r"context|ulysses|(^|[_\W])cp(\d|[_\W]|$)", Axis.CP),
    (r"tensor|(^|[_\W])tp(\d|[_\W]|$)", Axis.TP),
    (r"data|shard|replicate|fsdp|(^|[_\W])dp(\d|[_\W]|$)", Axis.DP),
)
"""What frameworks call a group."""
UNKNOWN = "axis.unknown"
"""Code of the evidence of a group of which nothing is known."""
_NOT_INFERRED = ("axis.recorded", "axis.synthetic", "axis.of_workers", "axis.members_by_use")
"""Codes of evidence that comes with the capture."""
_OLD_STATED = "stated in "
_OLD_INFERRED = (
    "its members lie along this axis",
    "the framework calls it",
    "it ",
    "its ",
    _OLD_STATED,
)
"""How evidence from here began where older versions wrote sentences."""


def with_axes(trace: Trace, *, stated: Mapping[str, Axis] | None = None, source: str = "") -> Trace:
    """Return the trace with ``axis`` filled in group, collective and p2p.

    Args:
        trace: The capture, with or without a layout.
        stated: Axes that the user gives, by group; they win.
        source: The file in which they are stated.
    """
    if not trace.row_count("group"):
        return trace
    groups = trace.tables["group"]
    traffic = traffic_axes(trace)
    axes: list[str] = []
    evidence: list[str] = []
    for row in groups.to_pylist():
        why: Text
        given = (stated or {}).get(str(row["group_id"]))
        if given is not None:
            axis, why = given, message("axis.stated", source=source)
        else:
            axis, why = _axis(
                tuple(row["ranks"]),
                _text(row["description"]),
                trace.layout,
                traffic.get(str(row["group_id"])),
            )
            if axis is Axis.OTHER and row["axis"] != Axis.OTHER and not _is_ours(row["evidence"]):
                axis, cell = Axis(row["axis"]), _text(row["evidence"])
                why = message_of_cell(cell) or message("axis.recorded")
        axes.append(axis.value)
        evidence.append(why if isinstance(why, str) else message_to_cell(why))
    by_group = dict(zip(groups["group_id"].to_pylist(), axes, strict=True))
    changes = {
        name: _relabel(trace.tables.get(name, TABLES[name].empty()), by_group, name)
        for name in ("collective", "p2p")
    }
    shared = {name for name, axis in by_group.items() if axis == Axis.DP} - set(stated or {})
    exchanging = exchanging_groups(trace, shared)
    changes["collective"] = as_expert_all_to_alls(changes["collective"], exchanging)
    if trace.layout is not None:
        changes["p2p"] = _by_peers(changes["p2p"], trace.layout)
    for name, values in (("axis", axes), ("evidence", evidence)):
        at = groups.column_names.index(name)
        groups = groups.set_column(at, name, pa.array(values, pa.string()))
    changes["group"] = TABLES["group"].conform(groups)
    return trace.with_tables(changes)


def _text(value: object) -> str:
    return "" if is_missing(value) else str(value)


def _is_ours(evidence: object) -> bool:
    """Return whether an axis was inferred here from what may be overruled now."""
    why = message_of_cell(evidence)
    if isinstance(why, str):
        return why.startswith(_OLD_INFERRED)
    return why.code.startswith("axis.") and why.code not in _NOT_INFERRED


def _axis(
    ranks: tuple[int, ...],
    description: str,
    layout: ParallelLayout | None,
    traffic: TrafficAxis | None,
) -> tuple[Axis, Text]:
    named = named_axes(description)
    if layout is not None and len(ranks) > 1:
        axis = layout.axis_of(ranks)
        if Axis.EP in named and layout.ep > 1 and axis not in {*named, Axis.PP, Axis.OTHER}:
            # Experts are shared by ranks that are neighbours on an axis of the mesh.
            return Axis.EP, message("axis.by_name", name=description)
        if axis is not Axis.OTHER:
            return axis, message("axis.by_layout")
    by_name = one_axis(named)
    if by_name is not None and layout is not None and _leaves(layout, by_name, ranks):
        by_name = Axis.EP if Axis.EP in named else None
    if by_name is not None:
        return by_name, message("axis.by_name", name=description)
    if traffic is not None and not (layout is not None and _leaves(layout, traffic.axis, ranks)):
        return traffic.axis, traffic.why
    return Axis.OTHER, _span(ranks, layout) or message("axis.unknown")


def _span(ranks: tuple[int, ...], layout: ParallelLayout | None) -> Message | None:
    """Return over which axes of the layout the members are spread, where they are on several."""
    if layout is None or len(ranks) < 2 or min(ranks) < 0 or max(ranks) >= layout.world_size:
        return None
    places = [layout.coordinates(rank) for rank in ranks]
    varying = [axis for axis in MESH_AXES if len({place[axis] for place in places}) > 1]
    is_whole = len(set(ranks)) == prod(getattr(layout, axis) for axis in varying)
    if is_whole:
        return message("axis.over_all", axes=varying)
    return message("axis.over_some", axes=varying)


def named_axes(description: str) -> frozenset[Axis]:
    """Return the axes that the words of a group's name stand for."""
    return frozenset(
        axis for pattern, axis in _WORDS if re.search(pattern, description, re.IGNORECASE)
    )


def one_axis(named: frozenset[Axis]) -> Axis | None:
    """Return the axis that a description with these words means, None if it is not one.

    An expert group with another axis in its name runs along that axis; gradients
    are reduced over data and context together, which counts as data.
    """
    if len(named) > 1:
        named = named - {Axis.EP}
    if named == {Axis.DP, Axis.CP}:
        return Axis.DP
    return next(iter(named)) if len(named) == 1 else None


def _leaves(layout: ParallelLayout, axis: Axis, ranks: tuple[int, ...]) -> bool:
    """Return whether members differ in more than their place on an axis of the mesh.

    Gradients are reduced over data and context together, which counts as data.
    """
    if axis not in MESH_AXES or not ranks or max(ranks) >= layout.world_size:
        return False
    own = {Axis.DP, Axis.CP} if axis is Axis.DP else {axis}
    others = [name for name in MESH_AXES if name not in own]
    places = map(layout.coordinates, ranks)
    return len({tuple(place[name] for name in others) for place in places}) > 1


def contradictions(trace: Trace) -> list[Limit]:
    """Return where names, stated axes and peers of sends disagree with the mesh."""
    layout = trace.layout
    if layout is None:
        return []
    found: list[Limit] = []
    for row in trace.frame("group").to_dict("records"):
        ranks, group_id = tuple(row["ranks"]), row["group_id"]
        if len(ranks) < 2:
            continue
        named, by_layout = named_axes(_text(row["description"])), layout.axis_of(ranks)
        by_name, own = one_axis(named), Axis(row["axis"])
        if by_name is not None and Axis.EP not in named and _leaves(layout, by_name, ranks):
            found.append(_named_otherwise(str(group_id), repr(row["description"]), by_layout))
        why = message_of_cell(row["evidence"])
        is_stated = has_code(why, "axis.stated") or str(why).startswith(_OLD_STATED)
        if is_stated and own in MESH_AXES and _leaves(layout, own, ranks):
            found.append(
                message("assumed.group_stated_otherwise", group=str(group_id), axis=own.value)
            )
    return [*found, *_crossing_sends(trace, layout)]


def _named_otherwise(group: str, name: str, along: Axis) -> Limit:
    if along is Axis.OTHER:
        return message("assumed.group_named_along_none", group=group, name=name)
    return message("assumed.group_named_otherwise", group=group, name=name, axis=along.value)


def _crossing_sends(trace: Trace, layout: ParallelLayout) -> list[Limit]:
    """Return a limit if sends join ranks that differ on several axes of the mesh."""
    pairs = trace.frame("p2p")[["rank", "peer"]].drop_duplicates()
    size = layout.world_size
    inside = pairs[pairs["rank"].between(0, size - 1) & pairs["peer"].between(0, size - 1)]
    crossing = []
    for rank, peer in inside.itertuples(index=False):
        here, there = layout.coordinates(rank), layout.coordinates(peer)
        if sum(here[axis] != there[axis] for axis in MESH_AXES) > 1:
            crossing.append((rank, peer))
    if not crossing:
        return []
    rank, peer = min(crossing)
    return [
        message(
            "assumed.sends_across_axes",
            crossing=len(crossing),
            pairs=len(inside),
            rank=int(rank),
            peer=int(peer),
        )
    ]


def _relabel(table: pa.Table, by_group: dict[str, str], name: str) -> pa.Table:
    if table.num_rows == 0:
        return table
    group_id = table["group_id"].combine_chunks()
    known = [by_group.get(str(own), Axis.OTHER.value) for own in group_id.dictionary.to_pylist()]
    axis = pa.DictionaryArray.from_arrays(group_id.indices, pa.array(known, pa.string()))
    column = table.column_names.index("axis")
    relabelled = table.set_column(column, "axis", axis.cast(pa.string()))
    return TABLES[name].conform(relabelled)


def _by_peers(table: pa.Table, layout: ParallelLayout) -> pa.Table:
    """Return sends and receives with the axis that joins their two ranks.

    Frameworks send between stages on the group of all ranks, which lies along no axis; rings of
    context parallelism may, whose gradients are reduced over data and context together.
    """
    if not table.num_rows:
        return table
    ends = table.select(["rank", "peer", "axis"]).to_pandas()
    size = layout.world_size
    is_open = ends["axis"].astype(str).isin([Axis.OTHER.value, Axis.DP.value])
    is_open &= ends["rank"].between(0, size - 1) & ends["peer"].between(0, size - 1)
    if not is_open.any():
        return table
    pairs = pd.MultiIndex.from_frame(ends.loc[is_open, ["rank", "peer"]].astype(int))
    distinct = pairs.unique()
    along = pd.Series([_joining(layout, *pair) for pair in distinct], index=distinct)
    labels = ends["axis"].astype(str)
    joining = along.loc[pairs].to_numpy()
    labels[is_open] = np.where(joining == Axis.OTHER.value, labels[is_open], joining)
    at = table.column_names.index("axis")
    return TABLES["p2p"].conform(table.set_column(at, "axis", pa.array(labels, pa.string())))


def _joining(layout: ParallelLayout, rank: int, peer: int) -> str:
    """Return the one axis on which two ranks differ, else ``other``."""
    here, there = layout.coordinates(rank), layout.coordinates(peer)
    differing = [axis for axis in MESH_AXES if here[axis] != there[axis]]
    return differing[0] if len(differing) == 1 else Axis.OTHER.value
