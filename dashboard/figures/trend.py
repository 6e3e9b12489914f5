"""The length of every step as a line, with the median as a dashed one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..plain import units
from .theme import GRID, MUTED, styled

_NS_PER_MS = 1e6
_HEIGHT_PX = 200
_MOST_MARKED = 64
"""Steps up to which each has a dot."""
MAX_POINTS = 1500
"""Beyond it a point is the longest of several steps: a slow one must not be thinned out."""
_LINE = "#0072B2"
_FEW = 6
"""Steps that each have a number at the axis."""


def thinned(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return at most so many rows as can be seen, of several steps the longest."""
    each = -(-len(rows) // MAX_POINTS)
    groups = (rows[at : at + each] for at in range(0, len(rows), max(each, 1)))
    return [max(group, key=lambda row: row["step_ns"]) for group in groups]


def trend_figure(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Return the step time over steps; pointing at one tells its MFU where that is known."""
    shown = thinned(rows)
    median_ms = float(np.median([row["step_ns"] for row in rows])) / _NS_PER_MS
    figure = go.Figure(
        go.Scatter(
            x=[row["step"] for row in shown],
            y=[row["step_ns"] / _NS_PER_MS for row in shown],
            mode="lines+markers" if len(shown) <= _MOST_MARKED else "lines",
            line={"color": _LINE, "width": 1.5},
            hovertext=[_words(row) for row in shown],
            hoverinfo="text",
        )
    )
    figure.add_hline(y=median_ms, line={"color": MUTED, "width": 1, "dash": "dash"})
    figure.update_xaxes(title="step")
    if len(shown) <= _FEW:
        # Else an axis of two steps has one at 1.5.
        figure.update_xaxes(tickvals=[row["step"] for row in shown])
    figure.update_yaxes(title="step time, ms", rangemode="tozero", gridcolor=GRID)
    return styled(figure, _HEIGHT_PX)


def _words(row: Mapping[str, Any]) -> str:
    mfu = "" if row["mfu"] is None else f", MFU {units.percent(row['mfu'])}"
    return f"step {row['step']}: {units.duration(row['step_ns'])}{mfu}"
