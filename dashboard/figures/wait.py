"""A wait over a timeline: an arrow from the rank that came last to the one that waited for it."""

from __future__ import annotations

import plotly.graph_objects as go

from ..answers.wait import WaitArrow
from ..plain import units
from .theme import INK, PAPER

NAME = "wait"
"""Name of the trace that is the arrow."""

_NS_PER_MS = 1e6
_SHAFT_PX, _HALO_PX = 2, 6
_HEAD_PX = 14


def wait_traces(arrow: WaitArrow) -> list[go.Scatter]:
    """Return the traces that lie over the slices: a light edge, so that any colour below shows the dark line."""
    words = (
        f"Rank {arrow.waited_for} came last, at {units.duration(arrow.came_ns)} of the step<br>"
        f"Rank {arrow.rank} waited for it until {units.duration(arrow.until_ns)}"
    )
    return [
        _line(arrow, PAPER, _HALO_PX, grown=4, name=f"edge of the {NAME}", hoverinfo="skip"),
        _line(arrow, INK, _SHAFT_PX, grown=0, name=NAME, hoverinfo="text", hovertext=words),
    ]


def _line(arrow: WaitArrow, colour: str, width: int, *, grown: int, **options: str) -> go.Scatter:
    return go.Scatter(
        x=[arrow.came_ns / _NS_PER_MS, arrow.until_ns / _NS_PER_MS],
        y=[arrow.from_row, arrow.row],
        mode="lines+markers",
        line={"color": colour, "width": width},
        marker={
            "symbol": "arrow",
            "angleref": "previous",
            "size": [0, _HEAD_PX + grown],
            "color": colour,
            "opacity": 1,
            "line": {"color": colour, "width": 0},
        },
        **options,
    )
