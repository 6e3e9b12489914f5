"""The JSON form of what is known of the mesh and its process groups."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

from meshscope.probe.schema.layout import MESH_AXES, ParallelLayout
from meshscope.probe.schema.message import cell_to_json
from meshscope.probe.schema.terms import Axis

from ...align.topology.axes import UNKNOWN, contradictions
from ...align.topology.kept import kept_topology
from ...align.topology.layout import layout_of_names
from ...align.topology.stated import StatedTopology
from ...tables.trace import Trace, knows_members
from ...wording.limits import limit_text, limit_texts, limits_to_json
from ...wording.message import Text, cells_to_json, message, message_to_json
from ...wording.words import is_missing
from .placement import placement_to_json

_MOST_RANKS = 4096
"""Ranks whose coordinates are listed; those of larger jobs follow from the layout."""


def topology_to_json(trace: Trace, stated: StatedTopology | None = None) -> dict[str, Any]:
    """Return layout, axes, groups and coordinates, each with the evidence.

    Args:
        trace: The capture, with what is stated already applied.
        stated: What the user gave, so that the evidence can name it.
    """
    layout, shown = trace.layout, limit_texts(contradictions(trace))
    why = _evidence(trace, stated)
    rows = trace.frame("group").to_dict("records")
    groups = [
        {
            "group_id": str(row["group_id"]),
            "axis": str(row["axis"]),
            "ranks": [int(rank) for rank in row["ranks"]] if knows_members(trace) else [],
            "description": _known(row["description"]),
            **cells_to_json(row, "evidence"),
        }
        for row in sorted(rows, key=_place)
    ]
    return {
        "version": 1,
        "world_size": _known(trace.run.get("world_size")) or None,
        "captured_ranks": list(trace.ranks),
        "layout": None if layout is None else layout.to_json(),
        "layout_evidence": str(why),
        "messages": {"layout_evidence": message_to_json(why)},
        "axes": _axes(groups, layout),
        "groups": groups,
        "ranks": _coordinates(layout),
        "placement": placement_to_json(trace),
        "contradictions": shown,
        "template": template(trace) if _is_incomplete(layout, groups) else None,
        **limits_to_json(one for one in trace.limits if limit_text(one) not in shown),
    }


def _evidence(trace: Trace, stated: StatedTopology | None) -> Text:
    for given in (stated, kept_topology(trace)):
        if given is not None and (given.sizes or given.order):
            return message("axis.stated", source=given.source)
    if trace.layout is None:
        _, why_not = layout_of_names(trace)
        return why_not or message("mesh.not_named")
    inferred, _ = layout_of_names(trace)
    if trace.capabilities.states_mesh and trace.run.get("dp") is not None:
        return message("mesh.recorded")
    if inferred == trace.layout:
        return message("mesh.only_one")
    return message("mesh.described")


def _axes(groups: list[dict[str, Any]], layout: ParallelLayout | None) -> list[dict[str, Any]]:
    """Return one entry an axis that has groups or more than one rank."""
    found = []
    for axis in Axis:
        own = [group for group in groups if group["axis"] == axis]
        size = getattr(layout, axis) if layout is not None and axis is not Axis.OTHER else None
        if own or (size or 1) > 1:
            sizes = sorted({len(group["ranks"]) for group in own} - {0})
            entry = {"axis": axis.value, "size": size, "groups": len(own), "group_sizes": sizes}
            found.append(entry)
    return found


def _coordinates(layout: ParallelLayout | None) -> dict[str, dict[str, int]]:
    if layout is None or layout.world_size > _MOST_RANKS:
        return {}
    return {str(rank): layout.coordinates(rank) for rank in range(layout.world_size)}


def _is_incomplete(layout: ParallelLayout | None, groups: list[dict[str, Any]]) -> bool:
    """Return whether a topology file could add something: no mesh, or a group without an axis."""
    return layout is None or any(
        _is_unknown(group["ranks"], group["messages"]["evidence"]) for group in groups
    )


def _is_unknown(ranks: Sized, evidence: Mapping[str, Any] | None) -> bool:
    return len(ranks) > 1 and evidence is not None and evidence["code"] == UNKNOWN


def _place(group: Mapping[Any, Any]) -> tuple[int, int, list[int], str]:
    """Return the order of groups for a reader: by axis, then by first member."""
    ranks = list(group["ranks"])
    return (list(Axis).index(Axis(group["axis"])), -len(ranks), ranks, str(group["group_id"]))


def template(trace: Trace) -> str:
    """Return the text of a topology file for this trace, with what is known filled in."""
    layout, world = trace.layout, trace.run.get("world_size") or None
    sizes = {axis: 1 if layout is None else getattr(layout, axis) for axis in MESH_AXES}
    if layout is None and isinstance(world, int):
        sizes["dp"] = world
    product = "" if is_missing(world) else f"  # their product is the {world} ranks of the job"
    lines = ["# Put in what you know, and leave out the rest."]
    lines += [f"[layout]{product}", *(f"{axis} = {size}" for axis, size in sizes.items())]
    order = ParallelLayout().order if layout is None else layout.order
    lines.append(f'order = "{order}"  # from the slowest to the fastest varying axis')
    unknown = [
        row
        for row in trace.frame("group").to_dict("records")
        if knows_members(trace) and _is_unknown(row["ranks"], cell_to_json(str(row["evidence"])))
    ]
    used = _used(trace)
    unknown.sort(key=lambda row: str(row["group_id"]) not in used)
    for row in unknown[:_MOST_GROUPS]:
        ranks = [int(rank) for rank in row["ranks"]]
        lines += ["", "[[group]]", f"id = {_quoted(str(row['group_id']))}"]
        lines += [f"ranks = {ranks}"] if len(ranks) <= _SHOWN else [f"# {len(ranks)} ranks"]
        lines.append('axis = "other"  # tp, pp, dp, cp, ep')
    if len(unknown) > _MOST_GROUPS:
        lines += ["", f"# and {len(unknown) - _MOST_GROUPS} groups more"]
    return "\n".join(lines) + "\n"


def _used(trace: Trace) -> set[str]:
    """Return the groups that have operations."""
    return {
        str(group_id)
        for name in ("collective", "p2p")
        for group_id in trace.frame(name)["group_id"].unique()
    }


_SHOWN = 32
"""Members that the template spells out."""
_MOST_GROUPS = 4
"""Groups that the template spells out, those in use first."""


def _quoted(text: str) -> str:
    """Return a TOML string."""
    escaped = (
        f"\\u{ord(letter):04x}" if letter in '"\\' or not letter.isprintable() else letter
        for letter in text
    )
    return f'"{"".join(escaped)}"'


def _known(value: Any) -> Any:
    return None if is_missing(value) else value
