"""Use of one port over time, with the phases of the steps below it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..plain import units
from .theme import INK, plain, styled

Row = Mapping[str, Any]
_DASHES = {"tx": "solid", "rx": "dot"}
_WAYS = {"tx": "sends", "rx": "receives"}
_COLOURS = {
    "gradient_sum": "#D55E00",
    "optimizer": "#CC79A7",
    "backward": "#0072B2",
    "forward": "#56B4E9",
    "waiting": "#CBD2D9",
}
_HEIGHT_PX = 360


def port_figure(ports: Sequence[Row], words: Mapping[str, str]) -> go.Figure:
    """Return the rate of both directions of one port, and the share of each phase in the same intervals.

    Args:
        ports: One row a direction, with direction, speed_bytes_per_s and series.
        words: Name of each phase.
    """
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, row_heights=[0.62, 0.38], vertical_spacing=0.08
    )
    rates = [rate for port in ports for rate in port["series"]["bytes_per_s"]]
    size, unit = units.axis_unit(rates, "B/s")
    for port in ports:
        figure.add_trace(_rate(port, size), row=1, col=1)
    speed = ports[0]["speed_bytes_per_s"]
    if speed:
        figure.add_hline(y=speed / size, line={"color": "#D55E00", "dash": "dash"}, row=1, col=1)
    for bar in _phases(ports[0]["series"], words):
        figure.add_trace(bar, row=2, col=1)
    figure.update_yaxes(title=unit, rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title="phases", tickformat=".0%", range=[0, 1], row=2, col=1)
    figure.update_xaxes(title="s from the first analysed step", row=2, col=1)
    styled(figure, _HEIGHT_PX)
    figure.update_layout(
        barmode="stack",
        bargap=0,
        showlegend=True,
        legend={"orientation": "h", "y": 1.16, "traceorder": "normal"},
        margin={"t": 44},
    )
    return figure


def _rate(port: Row, size: float) -> go.Scatter:
    """Return the rate of one direction in some unit, constant within each interval of the samples."""
    series = port["series"]
    edges = [*series["begin_ns"][:1], *series["end_ns"]]
    rates = [rate / size for rate in series["bytes_per_s"]]
    words = [units.rate(one, "B/s") for one in series["bytes_per_s"]]
    dash = _DASHES[port["direction"]]
    return go.Scatter(
        x=[edge / 1e9 for edge in edges],
        y=[*rates[:1], *rates],
        mode="lines",
        line={"shape": "vh", "color": INK, "dash": dash, "width": 1.5},
        name=_WAYS[port["direction"]],
        customdata=[*words[:1], *words],
        hovertemplate="%{customdata} until %{x:.2f} s<extra></extra>",
    )


def _phases(series: Row, words: Mapping[str, str]) -> Iterator[go.Bar]:
    """Yield the share of each phase in the intervals of the samples."""
    ends = list(zip(series["begin_ns"], series["end_ns"], strict=True))
    for phase, shares in series["phase_frac"].items():
        name = plain(words.get(phase, phase))
        yield go.Bar(
            x=[(begin + end) / 2e9 for begin, end in ends],
            y=shares,
            width=[(end - begin) / 1e9 for begin, end in ends],
            name=name,
            marker={"color": _COLOURS[phase], "line": {"width": 0}},
            hovertemplate=f"{name} %{{y:.0%}}<extra></extra>",
        )
