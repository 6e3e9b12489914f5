"""How much room the names at a figure's axes take: what plotly finds too little for makes it draw all twice."""

from __future__ import annotations

import plotly.graph_objects as go

_SIDE_PX, _TOP_PX, _RIGHT_PX = 12, 8, 16
_TICKS_PX, _TITLE_PX, _GAP_PX = 26, 27, 8
_POWERS_PX = 16
"""Below an axis of powers: its numbers stand higher."""
_LOW_ROW_PX = 20
_OVERHANG_PX = 20, 3
"""Above and below rows of less height than their names."""
_COLOURS_PX = 80
"""Beside the cells: the scale of colours with its numbers."""
_EM = {**dict.fromkeys("iljtfrI.,:;'|()/ -", 0.34), **dict.fromkeys("mwMW%@", 0.9)}
_WIDE, _CAPITAL = 0.58, 0.75
"""Of other letters, and of capitals and signs; a font may be narrower, which leaves some room."""
_NUMBER = "0,000"
"""About as long as a number at an axis gets."""
_FONT_PX = 13


def margins(figure: go.Figure, height: int) -> dict[str, int]:
    """Return about the margins that plotly would find for a figure; it corrects what is too narrow.

    Args:
        figure: With its traces and the names of its axes.
        height: Pixels.
    """
    left = _SIDE_PX + _GAP_PX + max(map(text_px, _row_names(figure)), default=0)
    has_colours = any(trace.type == "heatmap" for trace in figure.data)
    above, below = _OVERHANG_PX if has_colours or _has_low_rows(figure, height) else (_TOP_PX, 0)
    title = {axis: _TITLE_PX * bool(figure.layout[f"{axis}axis"].title.text) for axis in "xy"}
    return {
        "l": round(left + title["y"]),
        "r": _RIGHT_PX + _COLOURS_PX * has_colours,
        "t": above,
        "b": _TICKS_PX + title["x"] + below + _POWERS_PX * (figure.layout.xaxis.type == "log"),
    }


def text_px(text: str) -> float:
    """Return about how wide a text is in the letters of a figure."""
    return _FONT_PX * sum(map(_em, text))


def _em(letter: str) -> float:
    is_wide = not letter.isascii() or letter.isupper()
    return _EM.get(letter, _CAPITAL if is_wide else _WIDE)


def _row_names(figure: go.Figure) -> list[str]:
    """Return the names at the rows, numbers as one of usual length."""
    if figure.layout.yaxis.ticktext is not None:
        return [str(name) for name in figure.layout.yaxis.ticktext]
    rows = [row for trace in figure.data if trace.y is not None for row in trace.y]
    return [row for row in rows if isinstance(row, str)] or [_NUMBER]


def _has_low_rows(figure: go.Figure, height: int) -> bool:
    ends = figure.layout.yaxis.range
    is_named = figure.layout.yaxis.ticktext is not None and ends is not None
    return is_named and height < _LOW_ROW_PX * abs(ends[1] - ends[0])
