"""The critical path over a timeline: outlined bars, and thin lines where it changes the rank.

The pieces have thin borders if they are wide enough, and what follows one another on a rank
a dark one, so that many short pieces do not blacken the colours below them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from meshscope.analyze.tables.arrays import FloatArray
from meshscope.analyze.wording.words import class_label

from ..plain import units
from ..timeline.paths import Outlines
from .theme import INK, plain

NAME = "critical path"
"""Name of the trace whose bars are the pieces."""

_BAR_WIDTH = 0.8
"""A little less than a slice: of two bars below the mouse, the narrower one says its text."""
_FRAME_WIDTH = 0.9
"""A little more than a slice, whose colour then stays visible inside the frame."""
_MIN_BORDERED = 0.003
"""Share of the window, some pixels, below which a piece has no border of its own."""
_CLEAR = "rgba(0,0,0,0)"
_NS_PER_MS = 1e6


class _Piece(NamedTuple):
    """What the hover text of one bar needs."""

    rank: int
    kind: str
    microbatch: int
    group_id: str
    link: str
    dur_ns: int
    pieces: int
    total_ns: int


def path_traces(drawn: Outlines) -> list[go.Bar | go.Scatter]:
    """Return the traces that lie over the slices."""
    least_ns = _MIN_BORDERED * (drawn.window_ns[1] - drawn.window_ns[0])
    return [_jumps(drawn.jumps), _frames(drawn.stretches), _bars(drawn.pieces, least_ns)]


def _bars(pieces: pd.DataFrame, least_bordered_ns: float) -> go.Bar:
    length = pieces["end_ns"] - pieces["start_ns"]
    border = np.where(length < least_bordered_ns, 0.0, 0.5)
    columns = ["rank", "class", "microbatch", "group_id", "link", "dur_ns", "pieces", "total_ns"]
    rows = pieces[columns].itertuples(index=False, name=None)
    return go.Bar(
        orientation="h",
        name=NAME,
        y=pieces["row"],
        base=pieces["start_ns"] / _NS_PER_MS,
        x=length / _NS_PER_MS,
        width=_BAR_WIDTH,
        marker={"color": _CLEAR, "line": {"width": border, "color": INK}},
        hovertext=[_hover(_Piece(*row)) for row in rows],
        hoverinfo="text",
        textposition="none",
    )


def _hover(piece: _Piece) -> str:
    """Return what a bar says: class, length, and the group or link or microbatch if there is one."""
    what = [f"<b>{NAME}</b>, rank {piece.rank}"]
    if piece.pieces > 1:
        what.append(f"{units.duration(piece.total_ns)} in {piece.pieces:,} pieces, the longest:")
    what.append(f"{plain(class_label(piece.kind))}: {units.duration(piece.dur_ns)}")
    if piece.link or piece.group_id:
        name = f"link {piece.link}" if piece.link else f"group {piece.group_id}"
        what.append(plain(name))
    if piece.microbatch >= 0:
        what.append(f"microbatch {piece.microbatch}")
    return "<br>".join(what)


def _jumps(jumps: pd.DataFrame) -> go.Scatter:
    """Return one line for all jumps: a gap after each keeps them apart."""
    at_ms = jumps["at_ns"].to_numpy(np.float64) / _NS_PER_MS
    gap = np.full(len(jumps), np.nan)
    before, after = (jumps[name].to_numpy(np.float64) for name in ("row_before", "row_after"))
    x, y = np.column_stack([at_ms, at_ms, gap]), np.column_stack([before, after, gap])
    return _lines(x, y, width=1)


def _frames(stretches: pd.DataFrame) -> go.Scatter:
    """Return one line around all stretches, each a closed rectangle."""
    start = stretches["start_ns"].to_numpy(np.float64) / _NS_PER_MS
    end = stretches["end_ns"].to_numpy(np.float64) / _NS_PER_MS
    row = stretches["row"].to_numpy(np.float64)
    top, bottom, gap = row - _FRAME_WIDTH / 2, row + _FRAME_WIDTH / 2, np.full(len(row), np.nan)
    x = np.column_stack([start, end, end, start, start, gap])
    y = np.column_stack([top, top, bottom, bottom, top, gap])
    return _lines(x, y, width=2)


def _lines(x: FloatArray, y: FloatArray, *, width: int) -> go.Scatter:
    line = {"color": INK, "width": width}
    return go.Scatter(x=x.ravel(), y=y.ravel(), mode="lines", line=line, hoverinfo="skip")
