"""How figures look, and what keeps them local and safe: fonts, colours, config, escaping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from meshscope.probe.schema.terms import Severity

from .margins import margins

GRAPH_CONFIG: Any = {
    # plotly's default toolbar offers to send the figure to its vendor's cloud.
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "displaylogo": False,
    "displayModeBar": "hover",
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    "responsive": True,
}
"""The config of every ``dcc.Graph``; figures must not be made with any other."""

FONT = "'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
INK = "#1F2933"
MUTED = "#5F6B7A"
GRID = "#E4E7EB"
PAPER = "#FFFFFF"

DIVERGING = [[0.0, "#0072B2"], [0.5, "#F7F7F7"], [1.0, "#D55E00"]]
"""Blue, white, vermillion: below, at and above the middle."""

SEQUENTIAL = [[0.0, "#F7F7F7"], [1.0, "#D55E00"]]
"""White to vermillion, the colour of waiting: from none to much."""

SEVERITY_COLOUR: dict[str, str] = {
    Severity.CRITICAL: "red",
    Severity.WARNING: "orange",
    Severity.INFO: "blue",
}
"""Mantine colour of a severity badge; the badge also says the word."""


def plain(text: str) -> str:
    """Return text that plotly shows as it is.

    plotly reads a part of HTML and ``%{...}`` in every text that it draws, so a
    kernel named ``f<b>`` would lose letters and a hostile name gain a link.
    """
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return escaped.replace("%{", "%\u200b{")


def with_columns(figure: go.Figure, *names: str) -> go.Figure:
    """Name the columns of a figure's table where its axes do not.

    Args:
        figure: Changed in place and returned.
        names: Of bars and points the key and the value; of a heatmap the row, the column and the value.
    """
    return figure.update_layout(meta={"columns": list(names)})


def with_table(
    figure: go.Figure, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> go.Figure:
    """Give a figure the rows of its table, where these are not what it draws one by one.

    Args:
        figure: Changed in place and returned; what else its ``meta`` holds stays.
        columns: Names with their units.
        rows: One value a column.
    """
    table = {"columns": list(columns), "rows": [list(row) for row in rows]}
    return figure.update_layout(meta={**(figure.layout.meta or {}), "table": table})


LOOK: Mapping[str, Any] = {
    "paper_bgcolor": PAPER,
    "plot_bgcolor": PAPER,
    "font": {"family": FONT, "size": 13, "color": INK},
    "hoverlabel": {"font": {"family": FONT, "size": 12}, "align": "left"},
    "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "xanchor": "left", "x": 0.0},
    "showlegend": False,
}
AXIS: Mapping[str, Any] = {
    "automargin": True,
    "gridcolor": GRID,
    "zeroline": False,
    "linecolor": GRID,
    "title": {"font": {"size": 12, "color": MUTED}},
}
"""The look of a figure and of its axes, for one that is made of them: to change a figure takes ten times as long."""


def styled(figure: go.Figure, height: int) -> go.Figure:
    """Give a figure the look of the dashboard.

    Args:
        figure: Changed in place and returned.
        height: Pixels.
    """
    figure.update_layout(height=height, margin=margins(figure, height), **LOOK)
    figure.update_xaxes(**AXIS)
    figure.update_yaxes(**AXIS)
    # Titles of subplots.
    figure.update_annotations(font_size=13)
    return figure
