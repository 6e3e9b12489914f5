"""The mesh and its process groups as a document."""

from __future__ import annotations

from typing import Any

from meshscope.probe.schema.layout import MESH_AXES

from ...wording.words import counted
from ..document import Block, Lines, Table, Verbatim, facts, section
from .amounts import left_out, limits_section
from .placement import placement_blocks

_MOST_MEMBERS = 8
_MOST_COORDINATES = 64
_MOST_GROUPS = 64
_MOST_OF_AXIS = 8
"""Groups of one axis that are shown where there are more groups than that."""


_STATE = "What is not known can be stated in a file, given with --topology FILE.toml"


def topology_document(result: dict[str, Any]) -> list[Block]:
    """Return layout, axes, groups with their evidence, coordinates and contradictions."""
    template = result["template"]
    return [
        Lines([_layout_line(result), f"because: {result['layout_evidence']}"]),
        *section("Axes", _axes(result)),
        *section("Groups", _groups(result)),
        *section("Coordinates", _coordinates(result)),
        *placement_blocks(result),
        *section("Contradictions", facts(result["contradictions"])),
        *section(_STATE, Verbatim(template.rstrip().split("\n") if template is not None else [])),
        *limits_section(result["limits"]),
    ]


def _axes(result: dict[str, Any]) -> Table:
    rows = [
        (
            axis["axis"],
            "unknown" if axis["size"] is None else axis["size"],
            axis["groups"],
            ", ".join(map(str, axis["group_sizes"])) or ("unknown" if axis["groups"] else "none"),
        )
        for axis in result["axes"]
    ]
    return Table(("axis", "size", "groups", "group sizes"), rows)


def _coordinates(result: dict[str, Any]) -> Table:
    places = list(result["ranks"].items())
    rows = [(rank, *(place[a] for a in MESH_AXES)) for rank, place in places[:_MOST_COORDINATES]]
    return Table(("rank", *MESH_AXES), rows, notes=left_out(len(places) - len(rows), "ranks"))


def _layout_line(result: dict[str, Any]) -> str:
    world = result["world_size"]
    job = f"{len(result['captured_ranks'])} of {'unknown' if world is None else world} ranks"
    layout = result["layout"]
    if layout is None:
        return f"{job}; layout unknown"
    sizes = " x ".join(f"{axis.upper()}{layout[axis]}" for axis in ("tp", "pp", "dp", "cp"))
    more = "".join(f", {name.upper()}{layout[name]}" for name in ("ep", "vpp") if layout[name] > 1)
    return f"{job}; {sizes}{more}; from the slowest to the fastest varying: {layout['order']}"


def _groups(result: dict[str, Any]) -> Table:
    """Return the groups; where there are many, the first ones of each axis."""
    alone = [one for one in result["groups"] if len(one["ranks"]) == 1]
    several = [one for one in result["groups"] if len(one["ranks"]) != 1]
    found = several
    if len(found) > _MOST_GROUPS:
        axes = dict.fromkeys(group["axis"] for group in found)
        by_axis = ([one for one in found if one["axis"] == axis] for axis in axes)
        found = [one for own in by_axis for one in own[:_MOST_OF_AXIS]]
    rows = [
        (group["group_id"], group["axis"], _members(group["ranks"]), group["evidence"] or "none")
        for group in found
    ]
    more = left_out(len(several) - len(rows), "groups")
    if alone:
        more.append(f"Not shown: {counted(len(alone), 'group')} of a single rank")
    return Table(("group", "axis", "ranks", "evidence"), rows, notes=more)


def _members(ranks: list[int]) -> str:
    """Return the members, shortened where they are many."""
    if len(ranks) <= _MOST_MEMBERS:
        return " ".join(map(str, ranks)) or "unknown"
    return f"{ranks[0]} {ranks[1]} … {ranks[-1]} ({len(ranks)})"
