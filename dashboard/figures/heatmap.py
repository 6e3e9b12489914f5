"""Heatmaps of the mesh: rank x step, and DP x PP for each tensor rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..mesh import Blocks, FloatMatrix, MeshFacet, RankStepMatrix, in_blocks
from ..theme import DIVERGING, SEQUENTIAL, styled, with_columns

_FRAME = "#111820"
_MIN_SPREAD = 0.05
"""Least distance of the colour scale's ends from its middle, so that noise stays pale."""
_MAX_SPREAD = 1.0
"""Largest such distance: one extreme cell must not make all others white."""

_BORDER_PX = 110
"""Height of a figure beside its cells: ticks and title of the axis."""
_WIDTH_PX = 600
"""Cells are at least this wide together, in the narrowest window that the pages are made for."""
_MIN_CELL_PX = 2
"""Cells below this would be drawn as nothing, or as noise: the ranks in them share one."""
_GAP_CELL_PX = 5
"""Cells from this size on keep a line between them; smaller ones would be nothing but line."""
_TEXT_CELL_PX = (30, 34)
"""Least height and width of a cell with words in it."""


def rank_step_heatmap(
    matrix: RankStepMatrix, rank: int | None = None, step: int | None = None
) -> go.Figure:
    """Return the heatmap of one metric by rank and step.

    Args:
        matrix: What to draw.
        rank: Rank whose row is framed, None for none.
        step: Step whose column is framed.
    """
    ranks, _ = matrix.values.shape
    height = int(np.clip(_BORDER_PX + 26 * ranks, 240, 720))
    blocks = rank_step_blocks(matrix)
    shown = blocks.values.shape
    is_ratio = matrix.middle is not None
    unit = "%{z:.3f} x" if is_ratio else "%{z:.1%} of the step"
    rank_of, step_of = np.array(matrix.ranks)[blocks.row], np.array(matrix.steps)[blocks.column]
    figure = go.Figure(
        go.Heatmap(
            z=blocks.values,
            x=[str(step) for step in matrix.steps[:: blocks.columns_each]],
            y=[f"rank {rank}" for rank in matrix.ranks[:: blocks.rows_each]],
            customdata=np.dstack([rank_of, step_of]),
            xgap=_gap(_WIDTH_PX / shown[1], 1),
            ygap=_gap((height - _BORDER_PX) / shown[0], 1),
            colorbar={
                "thickness": 12,
                "tickformat": ".2f" if is_ratio else ".0%",
                "outlinewidth": 0,
            },
            hovertemplate="rank %{customdata[0]}, step %{customdata[1]}<br>"
            + unit
            + "<extra></extra>",
            hoverongaps=False,
            **_scale(matrix.values, matrix.middle),
        )
    )
    figure.update_xaxes(title="step", type="category", nticks=24, showgrid=False)
    figure.update_yaxes(autorange="reversed", type="category", nticks=32, showgrid=False)
    if rank is not None and rank in matrix.ranks:
        at = matrix.ranks.index(rank) // blocks.rows_each
        _frame(figure, (-0.5, shown[1] - 0.5), (at - 0.5, at + 0.5))
    if step is not None and step in matrix.steps:
        at = matrix.steps.index(step) // blocks.columns_each
        _frame(figure, (at - 0.5, at + 0.5), (-0.5, shown[0] - 0.5))
    return with_columns(styled(figure, height), "rank", "step", matrix.meaning)


def _frame(figure: go.Figure, x: tuple[float, float], y: tuple[float, float]) -> None:
    """Draw a frame around cells, which are numbered from 0."""
    # Cells are light in both themes, and so this ink is not exchanged in the dark one.
    line = {"color": _FRAME, "width": 2}
    figure.add_shape(type="rect", x0=x[0], x1=x[1], y0=y[0], y1=y[1], line=line)


def rank_step_blocks(matrix: RankStepMatrix) -> Blocks:
    """Return the cells of the rank x step heatmap."""
    return in_blocks(matrix.values, (720 - _BORDER_PX) // _MIN_CELL_PX, _WIDTH_PX // _MIN_CELL_PX)


def mesh_heatmap(facets: Sequence[MeshFacet]) -> go.Figure:
    """Return the DP x PP grids, one beside the other for each tensor rank."""
    titles = [f"tensor rank {facet.tp}" if len(facets) > 1 else "" for facet in facets]
    places = _places(facets)
    figure = make_subplots(
        rows=places.rows,
        cols=places.columns,
        subplot_titles=titles,
        horizontal_spacing=0.06,
        vertical_spacing=min(0.16, 0.48 / places.rows),
    )
    values = np.concatenate([facet.slowdown.ravel() for facet in facets])
    scale = _scale(values, 1.0)
    for index, facet in enumerate(facets):
        row, column = divmod(index, places.columns)
        grid = _grid(facet, places, scale, show_scale=index == 0)
        figure.add_trace(grid, row=row + 1, col=column + 1)
    figure.update_xaxes(title="pipeline rank", showgrid=False)
    figure.update_yaxes(title="data rank", autorange="reversed", showgrid=False)
    with_columns(figure, "data rank", "pipeline rank", "slowdown")
    styled(figure, places.height)
    figure.update_layout(margin={"t": 36 if len(facets) > 1 else 8})
    return figure


def mesh_rows_each(facets: Sequence[MeshFacet]) -> int:
    """Return how many data ranks share one row of the grids."""
    return _grid_blocks(facets[0].slowdown, _places(facets)).rows_each


class _Places(NamedTuple):
    """How the grids share the figure."""

    rows: int
    columns: int
    height: int
    """Of the figure, px."""
    grid_height: int
    """Of the cells of one grid, px."""
    grid_width: int


def _places(facets: Sequence[MeshFacet]) -> _Places:
    columns = min(len(facets), 4)
    rows = -(-len(facets) // columns)
    wanted = rows * (_BORDER_PX + 46 * facets[0].slowdown.shape[0])
    # A grid keeps room for its cells, however many tensor ranks there are.
    height = int(np.clip(wanted, 220, max(900, 260 * rows)))
    return _Places(rows, columns, height, height // rows - _BORDER_PX, _WIDTH_PX // columns)


def _grid_blocks(slowdown: FloatMatrix, places: _Places) -> Blocks:
    return in_blocks(
        slowdown, max(places.grid_height // _MIN_CELL_PX, 1), places.grid_width // _MIN_CELL_PX
    )


def _grid(
    facet: MeshFacet, places: _Places, scale: dict[str, object], *, show_scale: bool
) -> go.Heatmap:
    dp, pp = facet.slowdown.shape
    blocks = _grid_blocks(facet.slowdown, places)
    shown, rank = blocks.values, facet.rank[blocks.row, blocks.column]
    cell = (places.grid_height / shown.shape[0], places.grid_width / shown.shape[1])
    text = [
        [f"r{at}<br>{value:.2f}" if at >= 0 else "" for at, value in zip(*line, strict=True)]
        for line in zip(rank.tolist(), shown.tolist(), strict=True)
    ]
    roomy = cell[0] >= _TEXT_CELL_PX[0] and cell[1] >= _TEXT_CELL_PX[1]
    return go.Heatmap(
        z=shown,
        x=[f"pp{index}" for index in range(0, pp, blocks.columns_each)],
        y=[f"dp{index}" for index in range(0, dp, blocks.rows_each)],
        text=text,
        texttemplate="%{text}" if roomy else None,
        customdata=rank,
        name=f"tp{facet.tp}",
        xgap=_gap(cell[1], 2),
        ygap=_gap(cell[0], 2),
        showscale=show_scale,
        colorbar={"thickness": 12, "tickformat": ".2f", "outlinewidth": 0},
        hovertemplate="rank %{customdata} (%{y}, %{x})<br>slowdown %{z:.3f}<extra></extra>",
        hoverongaps=False,
        **scale,
    )


def _gap(cell_px: float, gap_px: int) -> int:
    """Return the line between cells; none where it would take the cell."""
    return gap_px if cell_px >= _GAP_CELL_PX else 0


def _scale(values: FloatMatrix, middle: float | None) -> dict[str, object]:
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
