"""The mesh as DP x PP grids, one for each tensor rank: one trace, because each further one takes the browser 80 ms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from meshscope.analyze.tables.arrays import FloatArray

from ..runs.mesh import Blocks, FloatMatrix, MeshFacet, in_blocks
from .heatmap import BORDER_PX, MIN_CELL_PX, WIDTH_PX, cell_gap, colour_scale
from .theme import styled, with_table

_TEXT_CELL_PX = (30, 34)
"""Least height and width of a cell with words in it."""
_TITLE_PX, _BETWEEN_PX = 26, 14
"""Between the grids: room above each for its title, and beside each."""
_TICK_PX = (16, 30)
"""Least height and width of a name at the axes."""


class _Places(NamedTuple):
    """How the grids share the figure."""

    rows: int
    columns: int
    grid_height: int
    """Of the cells of one grid, px."""
    grid_width: int
    title: int
    """Height of the titles, px; 0 without any."""

    @property
    def lead(self) -> int:
        """Return how many lines are above each grid."""
        return 1 if self.title else 0

    @property
    def height(self) -> int:
        """Return the height of the figure, px."""
        return BORDER_PX + self.rows * (self.grid_height + self.title)


def mesh_heatmap(facets: Sequence[MeshFacet]) -> go.Figure:
    """Return the DP x PP grids, one beside the other for each tensor rank."""
    places = _places(facets)
    blocks = [_grid_blocks(facet.slowdown, places) for facet in facets]
    down, across = blocks[0].values.shape
    cell = places.grid_height / down, places.grid_width / across
    grids = [_cells(facet, own, cell) for facet, own in zip(facets, blocks, strict=True)]
    spacer = _lines_of(grids, places)
    y = _edges(places.rows, down, cell[0], places.title)
    x = _edges(places.columns, across, cell[1], _BETWEEN_PX, is_before=False)
    values = np.concatenate([facet.slowdown.ravel() for facet in facets])
    figure = go.Figure(
        go.Heatmap(
            z=spacer.values,
            x=x,
            y=y,
            text=spacer.text,
            texttemplate="%{text}" if _is_roomy(cell) else None,
            customdata=spacer.hover,
            xgap=cell_gap(cell[1], 2),
            ygap=cell_gap(cell[0], 2),
            colorbar={"thickness": 12, "tickformat": ".2f", "outlinewidth": 0},
            hovertemplate="rank %{customdata[0]} (%{customdata[1]})<br>slowdown %{z:.3f}<extra></extra>",
            hoverongaps=False,
            **colour_scale(values, 1.0),
        )
    )
    _name_axes(figure, places, blocks[0], (x, y))
    if places.title:
        for index, facet in enumerate(facets):
            row, column = divmod(index, places.columns)
            figure.add_annotation(
                text=f"tensor rank {facet.tp}",
                x=(x[column * (across + 1)] + x[column * (across + 1) + across]) / 2,
                y=y[row * (down + 1) + 1],
                yanchor="bottom",
                showarrow=False,
            )
    rows = [
        [f"tp{facet.tp}", *row]
        for facet, own in zip(facets, blocks, strict=True)
        for row in _rows(own)
    ]
    with_table(figure, ["panel", "data rank", "pipeline rank", "slowdown"], rows)
    return styled(figure, places.height)


def mesh_rows_each(facets: Sequence[MeshFacet]) -> int:
    """Return how many data ranks share one row of the grids."""
    return _grid_blocks(facets[0].slowdown, _places(facets)).rows_each


def _places(facets: Sequence[MeshFacet]) -> _Places:
    columns = min(len(facets), 4)
    rows = -(-len(facets) // columns)
    title = _TITLE_PX if len(facets) > 1 else 0
    # A grid keeps room for its cells, however many tensor ranks there are.
    height = int(np.clip(46 * facets[0].slowdown.shape[0], 110, max(790 // rows, 150)))
    return _Places(rows, columns, height, WIDTH_PX // columns, title)


def _grid_blocks(slowdown: FloatMatrix, places: _Places) -> Blocks:
    most = max(places.grid_height // MIN_CELL_PX, 1), places.grid_width // MIN_CELL_PX
    return in_blocks(slowdown, *most)


def _is_roomy(cell: tuple[float, float]) -> bool:
    return cell[0] >= _TEXT_CELL_PX[0] and cell[1] >= _TEXT_CELL_PX[1]


class _Cells(NamedTuple):
    """Cells of one grid, or of all."""

    values: FloatArray
    text: Any
    """Words in the cells; empty where there is no room."""
    hover: Any
    """Rank and place, for who points at a cell."""


def _cells(facet: MeshFacet, blocks: Blocks, cell: tuple[float, float]) -> _Cells:
    rank = facet.rank[blocks.row, blocks.column]
    text, hover = np.full(rank.shape, "", dtype=object), np.empty((*rank.shape, 2), dtype=object)
    for at, one in np.ndenumerate(rank):
        hover[at] = one, f"tp{facet.tp}, dp{blocks.row[at]}, pp{blocks.column[at]}"
        if one >= 0 and _is_roomy(cell):
            text[at] = f"r{one}<br>{blocks.values[at]:.2f}"
    return _Cells(blocks.values, text, hover)


def _lines_of(grids: Sequence[_Cells], places: _Places) -> _Cells:
    """Return the grids as one, with a line of nothing above each row of them and between its columns."""
    down, across = grids[0].values.shape
    shape = places.rows * (down + places.lead), places.columns * (across + 1) - 1
    values = np.full(shape, np.nan)
    text, hover = np.full(shape, "", dtype=object), np.full((*shape, 2), "", dtype=object)
    for index, grid in enumerate(grids):
        row, column = divmod(index, places.columns)
        top, left = row * (down + places.lead) + places.lead, column * (across + 1)
        at = slice(top, top + down), slice(left, left + across)
        values[at], text[at], hover[at] = grid.values, grid.text, grid.hover
    return _Cells(values, text, hover)


def _edges(
    grids: int, cells: int, cell_px: float, between_px: float, *, is_before: bool = True
) -> FloatArray:
    """Return the edges of all cells along an axis, px, with the room before each grid, or between them."""
    one = [between_px, *[cell_px] * cells] if is_before else [*[cell_px] * cells, between_px]
    sizes = one[1:] if is_before and not between_px else one * grids
    return np.append(0.0, np.cumsum(sizes if is_before else sizes[:-1]))


def _name_axes(
    figure: go.Figure, places: _Places, blocks: Blocks, edges: tuple[FloatArray, FloatArray]
) -> None:
    """Name rows and columns of all grids, as many as there is room for."""
    x, y = edges
    down, across = blocks.values.shape
    every = _every(down, y, _TICK_PX[0]), _every(across, x, _TICK_PX[1])
    rows = [
        (row * (down + places.lead) + places.lead + at, at)
        for row in range(places.rows)
        for at in range(0, down, every[0])
    ]
    columns = [
        (column * (across + 1) + at, at)
        for column in range(places.columns)
        for at in range(0, across, every[1])
    ]
    middle = (y[:-1] + y[1:]) / 2, (x[:-1] + x[1:]) / 2
    figure.update_yaxes(
        title="data rank",
        range=[y[-1], y[0]],
        tickvals=[middle[0][place] for place, _ in rows],
        ticktext=[f"dp{at * blocks.rows_each}" for _, at in rows],
        showgrid=False,
    )
    figure.update_xaxes(
        title="pipeline rank",
        range=[x[0], x[-1]],
        tickvals=[middle[1][place] for place, _ in columns],
        ticktext=[f"pp{at * blocks.columns_each}" for _, at in columns],
        showgrid=False,
    )


def _every(count: int, edges: FloatArray, tick_px: int) -> int:
    """Return that each so many-th cell has a name."""
    size = float(np.diff(edges)[1 if count > 1 else 0]) if len(edges) > 2 else float(edges[-1])
    return max(1, int(np.ceil(tick_px / max(size, 1e-9))))


def _rows(blocks: Blocks) -> list[list[Any]]:
    return [
        [f"dp{blocks.row[at]}", f"pp{blocks.column[at]}", float(value)]
        for at, value in np.ndenumerate(blocks.values)
        if np.isfinite(value)
    ]
