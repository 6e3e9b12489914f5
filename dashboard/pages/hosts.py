"""The mesh on its machines: which positions run where, what lies badly, and the order to paste."""

from __future__ import annotations

from typing import Any

from dash import html
from dash.development.base_component import Component

from meshscope.analyze.output.text.placement import (
    BETTER_ORDER,
    hosts_table,
    paste_lines,
    unchecked_claim,
    unknown_placement,
    violation_claims,
)
from meshscope.analyze.wording.words import capitalised
from meshscope.probe.schema.printable import printable

from ..runs.loaded_run import LoadedRun, placement
from ..runs.page_maker import StillMeasuredError
from . import waiting
from .shell import card, empty, name_cell, table

_TITLE = "Mesh on the hosts"


def hosts_cards(run: LoadedRun) -> list[Component]:
    """Return where the mesh lies, with violations and their price, and the better order where there is one."""
    try:
        found, layout = placement(run), run.trace.layout
    except StillMeasuredError:
        return waiting.cards(_TITLE)
    if found["hosts"] is None or layout is None:
        return [card(_TITLE, [empty("Placement unknown", _because(unknown_placement(found)))])]
    shown = hosts_table(_with_coordinates(run, found))
    claims = violation_claims(found)
    named = [
        html.Ul([html.Li(printable(claim)) for claim in claims], className="ms-evidence")
        if claims
        else html.P("No placement problem found.", className="ms-caption")
    ]
    columns = [
        name.upper() if name in ("pp", "dp", "cp", "tp") else name.capitalize()
        for name in shown.columns
    ]
    rows = [[name_cell(str(first)), *map(str, others)] for first, *others in shown.rows]
    note = " ".join([*map(str, shown.notes), unchecked_claim(found)]).strip()
    cards = [card(_TITLE, [table(columns, rows), *named], note=note)]
    lines = paste_lines(found["better_order"])
    if lines:
        cards.append(
            card(
                BETTER_ORDER,
                [html.Pre("\n".join(map(printable, lines)), className="ms-code ms-paste")],
            )
        )
    return cards


def _because(sentence: str) -> str:
    """Return a sentence without what the title above it says already."""
    _, _, reason = sentence.rpartition("unknown: ")
    return capitalised(reason)


def _with_coordinates(run: LoadedRun, found: dict[str, Any]) -> dict[str, Any]:
    layout = run.trace.layout
    if layout is None:
        return {}
    places = {str(rank): layout.coordinates(rank) for rank in range(layout.world_size)}
    return {"layout": layout.to_json(), "ranks": places, "placement": found}
