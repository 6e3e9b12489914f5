"""Memory by stage: stacked terms, measured and expected side by side, against the capacity; and over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from meshscope.analyze.output.palette import MEMORY_COLOURS

from ..plain import units
from .theme import INK, styled

_GIB = 1 << 30
_ROW_PX = 26
_BORDER_PX = 90
_LINES_PX = 320
_SHADES = "Viridis"
"""Scale of the lines: stages have an order."""

Row = Mapping[str, Any]


def parts_of(row: Row) -> tuple[dict[str, float], dict[str, float]]:
    """Return the bytes by term of a stage: measured, and expected; empty where not known."""
    return _measured(row), _expected(row)


def memory_bars(rows: Sequence[Row]) -> go.Figure:
    """Return two stacked bars a stage, measured above expected, and the capacity as a mark.

    Args:
        rows: Stages of the JSON of the memory of a run.
    """
    lines = [
        (f"stage {row['stage']} {word}" if row["stage"] >= 0 else word, parts, row["stage"])
        for row in rows
        for word, parts in zip(("measured", "expected"), parts_of(row), strict=True)
        if parts
    ]
    figure = go.Figure()
    for name, colour in MEMORY_COLOURS.items():
        held = [(label, parts[name], stage) for label, parts, stage in lines if parts.get(name)]
        if held:
            figure.add_trace(
                go.Bar(
                    orientation="h",
                    name=name,
                    y=[label for label, _, _ in held],
                    x=[size / _GIB for _, size, _ in held],
                    customdata=[stage for _, _, stage in held],
                    marker={"color": colour},
                    hovertext=[f"{label}<br>{name} {units.size(size)}" for label, size, _ in held],
                    hoverinfo="text",
                )
            )
    capacity = [float(row["capacity_bytes"]) for row in rows if row["capacity_bytes"] is not None]
    if capacity:
        figure.add_vline(x=min(capacity) / _GIB, line={"color": INK, "width": 2, "dash": "dash"})
    order = [label for label, _, _ in lines]
    figure.update_yaxes(categoryorder="array", categoryarray=order, autorange="reversed")
    figure.update_xaxes(title="GiB", rangemode="tozero")
    figure.update_layout(barmode="stack", bargap=0.25)
    styled(figure, _BORDER_PX + _ROW_PX * max(len(lines), 2))
    return figure.update_layout(showlegend=True)


def memory_after_balance(before: Row, after: Row) -> go.Figure:
    """Return what each pipeline rank holds with the present layers, and with others.

    Args:
        before: The present split of the JSON of a balance.
        after: A proposal.
    """
    figure = go.Figure()
    for name, split, colour in (("now", before, "#8A94A0"), ("then", after, "#0072B2")):
        sizes = split["memory_by_stage_bytes"]
        label = f"{name}: {','.join(map(str, split['layers']))}"
        figure.add_trace(
            go.Bar(
                name=label,
                x=[f"stage {at}" for at in range(len(sizes))],
                y=[size / _GIB for size in sizes],
                marker={"color": colour},
                hovertext=[f"{label}<br>stage {at} {units.size(s)}" for at, s in enumerate(sizes)],
                hoverinfo="text",
            )
        )
    figure.update_yaxes(title="GiB", rangemode="tozero")
    return styled(figure, _LINES_PX).update_layout(showlegend=True, barmode="group")


def memory_over_time(series: Sequence[Row]) -> go.Figure:
    """Return what each stage held, step by step."""
    figure = go.Figure()
    # Neither end of the scale: one is hard to see on dark paper, the other on white.
    places = [0.3 + 0.45 * at / max(len(series) - 1, 1) for at in range(len(series))]
    shades = sample_colorscale(_SHADES, places)
    for one, shade in zip(series, shades, strict=True):
        figure.add_trace(
            go.Scatter(
                x=one["steps"],
                y=[size / _GIB for size in one["bytes"]],
                mode="lines+markers" if len(one["steps"]) < 64 else "lines",
                name=f"stage {one['stage']}" if one["stage"] >= 0 else "all",
                line={"color": shade},
            )
        )
    figure.update_xaxes(title="step")
    figure.update_yaxes(title="GiB", rangemode="tozero")
    return styled(figure, _LINES_PX).update_layout(showlegend=len(series) > 1)


def _measured(row: Row) -> dict[str, float]:
    held = row["steady_bytes"] if row["steady_bytes"] is not None else row["peak_bytes"]
    held = row["rss_bytes"] if held is None else held
    if held is None:
        return {}
    names = ("parameters", "gradients", "optimizer", "activations", "other")
    sizes = {name: row[f"{name}_bytes"] for name in names}
    parts = {name: float(size) for name, size in sizes.items() if size is not None}
    # Categories are read at one moment; what the peak has beyond them has no category.
    return {**parts, "not separated": max(float(held) - sum(parts.values()), 0.0)}


def _expected(row: Row) -> dict[str, float]:
    if row["expected_bytes"] is None:
        return {}
    names = ("parameters", "gradients", "optimizer", "activations", "other")
    parts = {name: float(row[f"expected_{name}_bytes"]) for name in names}
    logits = float(row["expected_logits_bytes"])
    return {**parts, "activations": parts["activations"] - logits, "logits": logits}
