"""Heatmaps of the mesh: rank x step, and DP x PP for each tensor rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..mesh import MeshFacet, RankStepMatrix
from ..theme import DIVERGING, SEQUENTIAL, styled

_MIN_SPREAD = 0.05
"""Least distance of the colour scale's ends from its middle, so that noise stays pale."""
_MAX_SPREAD = 1.0
"""Largest such distance: one extreme cell must not make all others white."""


def rank_step_heatmap(matrix: RankStepMatrix) -> go.Figure:
    """Return the heatmap of one metric by rank and step."""
    scale = _scale(matrix.values, matrix.middle)
    is_ratio = matrix.middle is not None
    unit = "%{z:.3f} x" if is_ratio else "%{z:.1%} of the step"
    figure = go.Figure(
        go.Heatmap(
            z=matrix.values,
            x=[str(step) for step in matrix.steps],
            y=[f"rank {rank}" for rank in matrix.ranks],
            xgap=1,
            ygap=1,
            colorbar={
                "thickness": 12,
                "tickformat": ".2f" if is_ratio else ".0%",
                "outlinewidth": 0,
            },
            hovertemplate="%{y}, step %{x}<br>" + unit + "<extra></extra>",
            hoverongaps=False,
            **scale,
        )
    )
    figure.update_xaxes(title="step", type="category", nticks=24, showgrid=False)
    figure.update_yaxes(autorange="reversed", type="category", nticks=32, showgrid=False)
    return styled(figure, int(np.clip(110 + 26 * len(matrix.ranks), 240, 720)))


def mesh_heatmap(facets: Sequence[MeshFacet]) -> go.Figure:
    """Return the DP x PP grids, one beside the other for each tensor rank."""
    titles = [f"tensor rank {facet.tp}" if len(facets) > 1 else "" for facet in facets]
    columns = min(len(facets), 4)
    rows = -(-len(facets) // columns)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=titles,
        horizontal_spacing=0.06,
        vertical_spacing=0.16,
    )
    values = np.concatenate([facet.slowdown.ravel() for facet in facets])
    scale = _scale(values, 1.0)
    for index, facet in enumerate(facets):
        row, column = divmod(index, columns)
        figure.add_trace(_grid(facet, scale, show_scale=index == 0), row=row + 1, col=column + 1)
    figure.update_xaxes(title="pipeline rank", showgrid=False)
    figure.update_yaxes(title="data rank", autorange="reversed", showgrid=False)
    height = 110 + 46 * facets[0].slowdown.shape[0]
    styled(figure, int(np.clip(rows * height, 220, 900)))
    figure.update_layout(margin={"t": 36 if len(facets) > 1 else 8})
    return figure


def _grid(facet: MeshFacet, scale: dict[str, object], *, show_scale: bool) -> go.Heatmap:
    dp, pp = facet.slowdown.shape
    text = [
        [
            f"r{rank}<br>{value:.2f}" if rank >= 0 else ""
            for rank, value in zip(ranks, values, strict=True)
        ]
        for ranks, values in zip(facet.rank, facet.slowdown, strict=True)
    ]
    return go.Heatmap(
        z=facet.slowdown,
        x=[f"pp{index}" for index in range(pp)],
        y=[f"dp{index}" for index in range(dp)],
        text=text,
        texttemplate="%{text}" if dp * pp <= 128 else None,
        customdata=facet.rank,
        xgap=2,
        ygap=2,
        showscale=show_scale,
        colorbar={"thickness": 12, "tickformat": ".2f", "outlinewidth": 0},
        hovertemplate="rank %{customdata} (%{y}, %{x})<br>slowdown %{z:.3f}<extra></extra>",
        hoverongaps=False,
        **scale,
    )


def _scale(values: np.typing.NDArray[np.float64], middle: float | None) -> dict[str, object]:
    """Return colour scale and range: symmetric about the middle, else from zero."""
    finite = values[np.isfinite(values)]
    if middle is None:
        return {
            "colorscale": SEQUENTIAL,
            "zmin": 0.0,
            "zmax": max(float(finite.max(initial=0)), _MIN_SPREAD),
        }
    spread = float(np.clip(np.abs(finite - middle).max(initial=0.0), _MIN_SPREAD, _MAX_SPREAD))
    return {
        "colorscale": DIVERGING,
        "zmin": middle - spread,
        "zmax": middle + spread,
        "zmid": middle,
    }
