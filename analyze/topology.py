"""Which mesh axis a process group lies along, with the evidence.

Known layout first, then what the framework calls the group, then its traffic.
An axis that none of these gives stays ``other``; nothing is guessed from sizes.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.layout import MESH_AXES, ParallelLayout
from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import Axis

from .trace import Trace
from .words import is_missing

_WORDS: tuple[tuple[str, Axis], ...] = (
    (r"\bexpert|(^|[_\W])ep(\d|[_\W]|$)", Axis.EP),
    (r"pipeline|(^|[_\W])pp(\d|[_\W]|$)", Axis.PP),
    (r"context|(^|[_\W])cp(\d|[_\W]|$)", Axis.CP),
    (r"tensor|(^|[_\W])tp(\d|[_\W]|$)", Axis.TP),
    (r"data|shard|replicate|fsdp|(^|[_\W])dp(\d|[_\W]|$)", Axis.DP),
)
"""What frameworks call a group."""


def with_axes(trace: Trace) -> Trace:
    """Return the trace with ``axis`` filled in group, collective and p2p."""
    groups = trace.frame("group")
    if groups.empty:
        return trace
    traffic = _traffic(trace)
    axes, evidence = [], []
    for row in groups.to_dict("records"):
        axis, why = _axis(
            tuple(row["ranks"]),
            "" if is_missing(row["description"]) else str(row["description"]),
            trace.layout,
            traffic.get(row["group_id"]),
        )
        if axis is Axis.OTHER and row["axis"] != Axis.OTHER:
            axis, why = Axis(row["axis"]), "recorded by the probe"
        axes.append(axis.value)
        evidence.append(why)
    tables = dict(trace.tables)
    tables["group"] = TABLES["group"].conform(
        pa.Table.from_pandas(groups.assign(axis=axes, evidence=evidence), preserve_index=False)
    )
    by_group = dict(zip(groups["group_id"].astype(str), axes, strict=True))
    for name in ("collective", "p2p"):
        tables[name] = _relabel(tables.get(name, TABLES[name].empty()), by_group, name)
    return replace(trace, tables=tables, _frames={})


def _axis(
    ranks: tuple[int, ...], description: str, layout: ParallelLayout | None, traffic: str | None
) -> tuple[Axis, str]:
    if layout is not None and len(ranks) > 1:
        axis = layout.axis_of(ranks)
        if axis is not Axis.OTHER:
            return axis, "its members lie along this axis of the layout"
    named = named_axes(description)
    told = _one_of(named)
    if told is not None and layout is not None and _leaves(layout, told, ranks):
        told = Axis.EP if Axis.EP in named else None
    if told is not None:
        return told, f"the framework calls it {description!r}"
    if traffic == "p2p":
        return Axis.PP, "it carries sends and receives only"
    if traffic == "only":
        return Axis.DP, "it is the only group, and it has no sends or receives"
    return Axis.OTHER, "neither layout, name nor traffic tells"


def named_axes(description: str) -> frozenset[Axis]:
    """Return the axes that the words of a group's name stand for."""
    return frozenset(
        axis for pattern, axis in _WORDS if re.search(pattern, description, re.IGNORECASE)
    )


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


def _one_of(named: frozenset[Axis]) -> Axis | None:
    """Return the axis that a description with these words means, None if it is not one.

    An expert group with another axis in its name runs along that axis; gradients
    are reduced over data and context together, which counts as data.
    """
    if len(named) > 1:
        named = named - {Axis.EP}
    if named == {Axis.DP, Axis.CP}:
        return Axis.DP
    return next(iter(named)) if len(named) == 1 else None


def _traffic(trace: Trace) -> dict[str, str]:
    """Return ``p2p`` or ``only`` for the groups whose traffic tells their axis."""
    collectives = set(trace.frame("collective")["group_id"].astype(str))
    sends = set(trace.frame("p2p")["group_id"].astype(str))
    told = dict.fromkeys(sends - collectives, "p2p")
    if not sends and len(collectives) == 1:
        told[collectives.pop()] = "only"
    return told


def _relabel(table: pa.Table, by_group: dict[str, str], name: str) -> pa.Table:
    if table.num_rows == 0:
        return table
    group_id = table["group_id"].combine_chunks()
    labels = pd.Series(group_id.dictionary.to_pandas().astype(str))
    known = labels.map(by_group).fillna(Axis.OTHER.value)
    axis = pa.DictionaryArray.from_arrays(group_id.indices, pa.array(known, pa.string()))
    column = table.column_names.index("axis")
    relabelled = table.set_column(column, "axis", axis.cast(pa.string()))
    return TABLES[name].conform(relabelled)
