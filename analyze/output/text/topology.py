"""The mesh and its process groups as text."""

from __future__ import annotations

from typing import Any

from meshscope.probe.schema.layout import MESH_AXES

from ...wording.text_table import text_table
from .amounts import left_out, limit_lines
from .page import page
from .placement import placement_lines

_MOST_MEMBERS = 8
_MOST_COORDINATES = 64
_MOST_GROUPS = 64
_MOST_OF_AXIS = 8
"""Groups of one axis that are shown where there are more groups than that."""


def topology_to_text(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return layout, axes, groups with their evidence, coordinates and contradictions."""
    lines = [_layout_line(result), f"  because: {result['layout_evidence']}"]
    if markdown:
        lines = [lines[0], "", lines[1].strip()]
    axes = [
        (
            axis["axis"],
            "unknown" if axis["size"] is None else axis["size"],
            axis["groups"],
            ", ".join(map(str, axis["group_sizes"])) or "none",
        )
        for axis in result["axes"]
    ]
    lines += _block("Axes", ("axis", "size", "groups", "group sizes"), axes, markdown=markdown)
    groups = _groups(result)
    headers = ("group", "axis", "ranks", "evidence")
    lines += _block("Groups", headers, groups, markdown=markdown)
    lines += left_out(len(result["groups"]) - len(groups), "groups")
    places = list(result["ranks"].items())
    rows = [(rank, *(place[a] for a in MESH_AXES)) for rank, place in places[:_MOST_COORDINATES]]
    lines += _block("Coordinates", ("rank", *MESH_AXES), rows, markdown=markdown)
    lines += left_out(len(places) - len(rows), "ranks")
    lines += placement_lines(result, markdown=markdown)
    if result["contradictions"]:
        lines += ["", "Contradictions", *(f"- {line}" for line in result["contradictions"])]
    if result["template"] is not None:
        fence = ["```toml", *result["template"].rstrip().split("\n"), "```"]
        plain = [f"  {line}".rstrip() for line in result["template"].rstrip().split("\n")]
        lines += ["", "What is not known can be stated in a file, given with --topology FILE.toml"]
        lines += ["", *(fence if markdown else plain)]
    return page([*lines, *limit_lines(result["limits"])], markdown=markdown)


def _layout_line(result: dict[str, Any]) -> str:
    world = result["world_size"]
    job = f"{len(result['captured_ranks'])} of {'unknown' if world is None else world} ranks"
    layout = result["layout"]
    if layout is None:
        return f"{job}; layout unknown"
    sizes = " x ".join(f"{axis.upper()}{layout[axis]}" for axis in ("tp", "pp", "dp", "cp"))
    more = "".join(f", {name.upper()}{layout[name]}" for name in ("ep", "vpp") if layout[name] > 1)
    return f"{job}; {sizes}{more}; from the slowest to the fastest varying: {layout['order']}"


def _groups(result: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return the groups; where there are many, the first ones of each axis."""
    found = result["groups"]
    if len(found) > _MOST_GROUPS:
        axes = dict.fromkeys(group["axis"] for group in found)
        by_axis = ([one for one in found if one["axis"] == axis] for axis in axes)
        found = [one for own in by_axis for one in own[:_MOST_OF_AXIS]]
    return [
        (group["group_id"], group["axis"], _members(group["ranks"]), group["evidence"] or "none")
        for group in found
    ]


def _members(ranks: list[int]) -> str:
    """Return the members, shortened where they are many."""
    if len(ranks) <= _MOST_MEMBERS:
        return " ".join(map(str, ranks)) or "unknown"
    return f"{ranks[0]} {ranks[1]} … {ranks[-1]} ({len(ranks)})"


def _block(
    title: str, headers: tuple[str, ...], rows: list[tuple[Any, ...]], *, markdown: bool
) -> list[str]:
    if not rows:
        return []
    heading = ["", f"### {title}", ""] if markdown else ["", title]
    return [*heading, *text_table(headers, rows, markdown=markdown)]
