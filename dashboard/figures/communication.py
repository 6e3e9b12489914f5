"""Figures of communication: bandwidth against size, and the matrix of sends."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from meshscope.analyze.output.json.bandwidth import Pair
from meshscope.analyze.tables.arrays import FloatArray, IntArray
from meshscope.analyze.wording.words import axis_label

from ..plain import units
from .theme import SEQUENTIAL, plain, styled, with_table

Row = Mapping[str, Any]
ObjectArray = npt.NDArray[np.object_]

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
_MOST_POINTS, _PLACES_A_DECADE = 128, 60
"""Points of a series that are all drawn and joined; beyond, those that lie on one another are one."""
MOST_PAIRS = 2_000
"""Pairs in the table of the matrix: the slowest."""
_MOST_CELLS, _MOST_BLOCKS = 64, 110
"""Ranks of a matrix whose cells are all drawn; beyond, ranks share so many rows and columns."""
_PAIR_TEXT = "rank %{y} to rank %{x}<br>%{customdata[0]}, %{customdata[1]}<extra></extra>"


def bandwidth_figure(rows: Sequence[Row]) -> go.Figure:
    """Return bus bandwidth against message size; a line joins the sizes of one group and operation.

    Args:
        rows: group_id, axis, kind, size_from_bytes, median_bytes_per_s, best_bytes_per_s, count.
    """
    figure = go.Figure()
    kinds = {kind: at for at, kind in enumerate(dict.fromkeys(row["kind"] for row in rows))}
    order = sorted(rows, key=lambda row: (row["group_id"], row["size_from_bytes"]))
    series: dict[tuple[str, str], list[Row]] = {}
    size, unit = units.axis_unit((row["median_bytes_per_s"] for row in rows), "B/s")
    for row in order:
        series.setdefault((row["axis"], row["kind"]), []).append(row)
    for (axis, kind), own in sorted(series.items()):
        name = f"{axis_label(axis)} {kind}"
        points, shared = _apart(own) if len(own) > _MOST_POINTS else (_with_gaps(own), {})
        figure.add_trace(
            go.Scatter(
                x=[row and row["size_from_bytes"] for row in points],
                y=[row and row["median_bytes_per_s"] / size for row in points],
                mode="markers" if shared else "lines+markers",
                name=plain(name),
                line={"color": AXIS_COLOURS.get(axis, AXIS_COLOURS["other"]), "width": 1},
                marker={"symbol": _MARKS[kinds[kind] % len(_MARKS)], "size": 8},
                hovertext=[
                    row and _point_text(name, row, shared.get(id(row), 0)) for row in points
                ],
                hoverinfo="text",
            )
        )
    figure.update_xaxes(type="log", title="message size, bytes", exponentformat="power")
    figure.update_yaxes(type="log", title=f"bus bandwidth, {unit}", exponentformat="power")
    styled(figure, _HEIGHT_PX)
    figure.update_layout(showlegend=True, legend={"orientation": "h", "y": 1.14}, margin={"t": 72})
    columns = ["group", "axis", "operation", "message size, bytes", "bus bandwidth, GB/s"]
    names = ("group_id", "axis", "kind", "size_from_bytes")
    cells = [[*(row[name] for name in names), row["median_bytes_per_s"] / 1e9] for row in order]
    return with_table(figure, columns, cells)


def _with_gaps(rows: Sequence[Row]) -> list[Row | None]:
    """Return the points of one line a group: one trace of all is drawn a hundred times faster than one each."""
    points: list[Row | None] = []
    for own in rows:
        if points and points[-1] is not None and points[-1]["group_id"] != own["group_id"]:
            points.append(None)
        points.append(own)
    return points


def _apart(rows: Sequence[Row]) -> tuple[list[Row], dict[int, int]]:
    """Return the points that do not lie on one another, and how many lie on each of them."""
    kept: dict[tuple[int, int], Row] = {}
    shared: Counter[int] = Counter()
    for row in rows:
        height = round(_PLACES_A_DECADE * math.log10(max(row["median_bytes_per_s"], 1.0)))
        first = kept.setdefault((row["size_from_bytes"], height), row)
        shared[id(first)] += first is not row
    return [*kept.values()], dict(shared)


def _point_text(name: str, row: Row, others: int = 0) -> str:
    also = f"<br>as fast: {others:,} other groups" if others else ""
    return (
        f"{plain(name)}, group {plain(row['group_id'])}<br>{row['count']} of "
        f"{row['size_from_bytes']:,} bytes or more<br>median {units.rate(row['median_bytes_per_s'], 'B/s')}, "
        f"best {units.rate(row['best_bytes_per_s'], 'B/s')}{also}"
    )


def pair_figure(pairs: Sequence[Pair]) -> go.Figure:
    """Return the matrix of sends: colour is the bandwidth, or the bytes where none is known.

    Of many ranks some share a row and a column, where the slowest pair wins; see ``pair_ranks_each``.

    Args:
        pairs: Those that sent.
    """
    source, target = (np.array([pair[end] for pair in pairs], np.int64) for end in (0, 1))
    speed = np.array([pair.bytes_per_s for pair in pairs], np.float64)
    amount = np.array([pair.total_bytes for pair in pairs], np.float64)
    has_speed = bool(np.isfinite(speed).any())
    values, unit = (speed, "B/s") if has_speed else (amount, "B")
    size, scale = units.axis_unit(values.tolist(), unit)
    values = values / size
    ranks = np.union1d(source, target)
    text = np.array(
        [[units.size(pair.total_bytes), units.rate(pair.bytes_per_s, "B/s")] for pair in pairs],
        dtype=object,
    )
    figure = go.Figure()
    if len(ranks) <= _MOST_CELLS:
        cells = np.full((len(ranks), len(ranks)), np.nan)
        words = np.full((len(ranks), len(ranks), 2), "", dtype=object)
        places = np.searchsorted(ranks, source), np.searchsorted(ranks, target)
        cells[places], words[places] = values, text
        figure.add_trace(_cells(ranks, cells, words, scale))
        figure.update_xaxes(type="category", nticks=32)
        figure.update_yaxes(type="category", nticks=32, autorange="reversed")
    else:
        blocks = _Blocks(pair_ranks_each(pairs), ranks, slow_is_bad=has_speed)
        figure.add_trace(_shared_cells(blocks, source, target, values, text, scale))
        figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title="to rank", showgrid=False)
    figure.update_yaxes(title="from rank", showgrid=False)
    listed = [pairs[at] for at in _worst_first(values, slow_is_bad=has_speed)[:MOST_PAIRS]]
    rows = [
        [
            *pair[:2],
            pair.total_bytes / 1e6,
            None if pair.bytes_per_s is None else pair.bytes_per_s / 1e9,
        ]
        for pair in (pairs if len(pairs) <= MOST_PAIRS else listed)
    ]
    figure = with_table(figure, ["from rank", "to rank", "MB", "GB/s"], rows)
    return styled(figure, min(_BORDER_PX + _CELL_PX * len(ranks), _MOST_PX))


def _worst_first(values: FloatArray, *, slow_is_bad: bool) -> list[int]:
    """Return the places of values from the worst on; what is not known comes last."""
    badness = values if slow_is_bad else -values
    return np.argsort(np.where(np.isfinite(values), badness, np.inf), kind="stable").tolist()  # type: ignore[no-any-return]


def _from_zero(values: FloatArray) -> dict[str, float]:
    """Return the range of a scale of colours; plotly follows neither end without the other."""
    known = values[np.isfinite(values)]
    return {"zmin": 0.0, "zmax": float(known.max(initial=0.0)) or 1.0}


def _cells(ranks: IntArray, values: FloatArray, text: ObjectArray, scale: str) -> go.Heatmap:
    names = [str(rank) for rank in ranks.tolist()]
    return go.Heatmap(
        z=values,
        x=names,
        y=names,
        customdata=text,
        colorscale=SEQUENTIAL,
        **_from_zero(values),
        xgap=1,
        ygap=1,
        colorbar={"thickness": 12, "outlinewidth": 0, "title": scale},
        hovertemplate=_PAIR_TEXT,
        hoverongaps=False,
    )


class _Blocks(NamedTuple):
    """How ranks share the rows and columns of a matrix."""

    each: int
    ranks: IntArray
    slow_is_bad: bool
    """Whether the lowest value of a cell is the one that it shows, else the highest."""


def pair_ranks_each(pairs: Sequence[Pair]) -> int:
    """Return how many ranks share a row and a column of the matrix of sends."""
    count = len({rank for pair in pairs for rank in pair[:2]})
    return 1 if count <= _MOST_CELLS else -(-count // _MOST_BLOCKS)


def _shared_cells(
    blocks: _Blocks,
    source: IntArray,
    target: IntArray,
    values: FloatArray,
    text: ObjectArray,
    scale: str,
) -> go.Heatmap:
    side = -(-len(blocks.ranks) // blocks.each)
    row, column = (np.searchsorted(blocks.ranks, ends) // blocks.each for ends in (source, target))
    cells = np.full((side, side), np.nan)
    words = np.full((side, side), "", dtype=object)
    counts = np.bincount(row * side + column, minlength=side * side).reshape(side, side)
    # The worst comes last, and stays; what is not known stands where nothing is.
    for at in reversed(_worst_first(values, slow_is_bad=blocks.slow_is_bad)):
        place = row[at], column[at]
        others = "" if counts[place] == 1 else f"<br>the worst of {counts[place]:,} pairs here"
        cells[place] = values[at]
        words[place] = (
            f"rank {source[at]} to rank {target[at]}<br>{text[at, 0]}, {text[at, 1]}{others}"
        )
    middles = blocks.ranks[:: blocks.each] + (blocks.each - 1) / 2
    return go.Heatmap(
        z=cells.astype(np.float32),
        x=middles,
        y=middles,
        text=words,
        colorscale=SEQUENTIAL,
        **_from_zero(cells),
        colorbar={"thickness": 12, "outlinewidth": 0, "title": scale},
        hovertemplate="%{text}<extra></extra>",
        hoverongaps=False,
    )
