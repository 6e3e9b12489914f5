"""Heatmaps: that of ranks and steps, made of what all of them share."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from ..runs.mesh import Blocks, FloatMatrix, RankStepMatrix, in_blocks
from .theme import DIVERGING, SEQUENTIAL, styled, with_columns

_FRAME = "#111820"
_MIN_SPREAD = 0.05
"""Least distance of the colour scale's ends from its middle, so that noise stays pale."""
_MAX_SPREAD = 1.0
"""Largest such distance: one extreme cell must not make all others white."""

BORDER_PX = 110
"""Height of a figure beside its cells: ticks and title of the axis."""
WIDTH_PX = 600
"""Cells are at least this wide together, in the narrowest window that the pages are made for."""
MIN_CELL_PX = 2
"""Cells below this would be drawn as nothing, or as noise: the ranks in them share one."""
_GAP_CELL_PX = 5
"""Cells from this size on keep a line between them; smaller ones would be nothing but line."""


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
    height = int(np.clip(BORDER_PX + 26 * ranks, 240, 720))
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
            xgap=cell_gap(WIDTH_PX / shown[1], 1),
            ygap=cell_gap((height - BORDER_PX) / shown[0], 1),
            colorbar={
                "thickness": 12,
                "tickformat": ".2f" if is_ratio else ".0%",
                "outlinewidth": 0,
            },
            hovertemplate="rank %{customdata[0]}, step %{customdata[1]}<br>"
            + unit
            + "<extra></extra>",
            hoverongaps=False,
            **colour_scale(matrix.values, matrix.middle),
        )
    )
    figure.update_xaxes(title="step", type="category", nticks=12, showgrid=False)
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
    return in_blocks(matrix.values, (720 - BORDER_PX) // MIN_CELL_PX, WIDTH_PX // MIN_CELL_PX)


def cell_gap(cell_px: float, gap_px: int) -> int:
    """Return the line between cells; none where it would take the cell."""
    return gap_px if cell_px >= _GAP_CELL_PX else 0


def colour_scale(values: FloatMatrix, middle: float | None) -> dict[str, object]:
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
