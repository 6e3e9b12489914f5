"""Figures of communication: bandwidth against size, and the matrix of sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from meshscope.analyze.wording.labels import axis_label

from ..theme import SEQUENTIAL, plain, styled

Row = Mapping[str, Any]

AXIS_COLOURS = {
    "tp": "#0072B2",
    "pp": "#D55E00",
    "dp": "#009E73",
    "cp": "#CC79A7",
    "ep": "#E69F00",
    "other": "#5F6B7A",
}
"""Of Okabe and Ito."""
_MARKS = ("circle", "square", "diamond", "cross", "triangle-up", "star", "x", "pentagon")
_HEIGHT_PX = 340
_CELL_PX, _BORDER_PX, _MOST_PX = 26, 90, 640


def bandwidth_figure(rows: Sequence[Row]) -> go.Figure:
    """Return bus bandwidth against message size; a line joins the sizes of one group and operation.

    Args:
        rows: group_id, axis, kind, size_from_bytes, median_bytes_per_s, best_bytes_per_s, count.
    """
    figure = go.Figure()
    kinds = {kind: at for at, kind in enumerate(dict.fromkeys(row["kind"] for row in rows))}
    series: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        series.setdefault((row["axis"], row["kind"], row["group_id"]), []).append(row)
    named = set()
    for (axis, kind, group), own in series.items():
        own = sorted(own, key=lambda row: row["size_from_bytes"])
        name = f"{axis_label(axis)} {kind}"
        figure.add_trace(
            go.Scatter(
                x=[row["size_from_bytes"] for row in own],
                y=[row["median_bytes_per_s"] / 1e9 for row in own],
                mode="lines+markers",
                name=plain(name),
                legendgroup=name,
                meta=f"group {plain(group)}",
                showlegend=name not in named,
                line={"color": AXIS_COLOURS.get(axis, AXIS_COLOURS["other"]), "width": 1},
                marker={"symbol": _MARKS[kinds[kind] % len(_MARKS)], "size": 8},
                hovertext=[
                    f"{plain(name)}, group {plain(group)}<br>{row['count']} of "
                    f"{row['size_from_bytes']:,} bytes or more<br>median {row['median_bytes_per_s'] / 1e9:.3g}, "
                    f"best {row['best_bytes_per_s'] / 1e9:.3g} GB/s"
                    for row in own
                ],
                hoverinfo="text",
            )
        )
        named.add(name)
    figure.update_xaxes(type="log", title="message size, bytes", exponentformat="power")
    figure.update_yaxes(type="log", title="bus bandwidth, GB/s", exponentformat="power")
    styled(figure, _HEIGHT_PX)
    figure.update_layout(showlegend=True, legend={"orientation": "h", "y": 1.14}, margin={"t": 44})
    return figure


def pair_figure(pairs: Row) -> go.Figure:
    """Return the matrix of sends: colour is the bandwidth, or the bytes where none is known.

    Args:
        pairs: ranks, total_bytes and bus_bandwidth_bytes_per_s (source, target), None without.
    """
    speed = _matrix(pairs["bus_bandwidth_bytes_per_s"]) / 1e9
    amount = _matrix(pairs["total_bytes"]) / 1e6
    has_speed = bool(np.isfinite(speed).any())
    values = speed if has_speed else amount
    names = [str(rank) for rank in pairs["ranks"]]
    gap = 1 if len(names) <= 64 else 0
    figure = go.Figure(
        go.Heatmap(
            z=values,
            x=names,
            y=names,
            customdata=np.dstack([amount, speed]),
            colorscale=SEQUENTIAL,
            zmin=0,
            xgap=gap,
            ygap=gap,
            colorbar={
                "thickness": 12,
                "outlinewidth": 0,
                "title": "GB/s" if has_speed else "MB",
            },
            hovertemplate="rank %{y} to rank %{x}<br>%{customdata[0]:.3g} MB, %{customdata[1]:.3g} GB/s<extra></extra>",
            hoverongaps=False,
        )
    )
    figure.update_xaxes(title="to rank", type="category", nticks=32, showgrid=False)
    figure.update_yaxes(
        title="from rank", type="category", nticks=32, autorange="reversed", showgrid=False
    )
    return styled(figure, min(_BORDER_PX + _CELL_PX * len(names), _MOST_PX))


def _matrix(rows: Sequence[Sequence[float | None]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([[np.nan if one is None else one for one in row] for row in rows], np.float64)
