"""The account of the step time as a waterfall whose bars sum to 100 %."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from meshscope.analyze import Bar
from meshscope.analyze.output.palette import HATCHED, class_colour, class_meanings
from meshscope.analyze.wording.words import class_label

from ..plain import units
from .theme import INK, MUTED, plain, styled, with_columns

_WORDS_PX = 66
"""Room for the words beside the outermost bar."""
_ROW_PX = 34
_BORDER_PX = 56
_MIN_PX = 140
"""Below this plotly has no room for the title of the axis under its ticks."""

_TOTAL = "#CBD2D9"


def shown_bars(bars: Sequence[Bar]) -> tuple[Bar, ...]:
    """Return the bars that hold time; those left out are 0.00 % of the step."""
    return tuple(bar for bar in bars if bar.is_shown)


def meanings(bars: Sequence[Bar]) -> dict[str, str]:
    """Return what each colour of a waterfall stands for, by colour."""
    return class_meanings(bar.name for bar in shown_bars(bars))


def waterfall(bars: Sequence[Bar]) -> go.Figure:
    """Return the waterfall: each bar begins where the one above it ends.

    Args:
        bars: Shares of the step time that sum to 1.
    """
    rows = _rows(bars)
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=[*range(len(rows))],
            base=[100 * row.begin for row in rows],
            x=[100 * row.frac for row in rows],
            width=0.68,
            marker={
                "color": [row.colour for row in rows],
                "pattern": {
                    "shape": ["/" if row.colour in HATCHED else "" for row in rows],
                    "size": 6,
                },
            },
            hovertext=[f"{row.label}<br>{row.value} of the step, {row.time}" for row in rows],
            hoverinfo="text",
        )
    )
    for at, row in enumerate(rows):
        _annotate(figure, at, row, is_last=at == len(rows) - 1)
    figure.update_yaxes(
        autorange="reversed",
        tickmode="array",
        tickvals=[*range(len(rows))],
        ticktext=[row.label for row in rows],
        showgrid=False,
    )
    figure.update_xaxes(
        range=[0, 104], tickvals=[0, 20, 40, 60, 80, 100], title="share of the step time, %"
    )
    with_columns(figure, "class", "share of the step time, %")
    styled(figure, max(_BORDER_PX + _ROW_PX * len(rows), _MIN_PX))
    # Words beside the last bars stand beyond the axis, which may be as narrow as they are.
    return figure.update_layout(margin={"r": _WORDS_PX})


class _Row(NamedTuple):
    """One line of the figure; ``begin`` and ``frac`` are shares of the step time."""

    label: str
    begin: float
    frac: float
    value: str
    time: str
    colour: str


def _rows(bars: Sequence[Bar]) -> list[_Row]:
    """Return one line a bar that is not 0.00 %, and the total of all below them."""
    rows, end = [], 0.0
    for bar in shown_bars(bars):
        label, value = plain(class_label(bar.name)), units.percent(bar.frac)
        rows.append(
            _Row(label, end, bar.frac, value, units.duration(bar.dur_ns), class_colour(bar.name))
        )
        end += bar.frac
    total = sum(bar.frac for bar in bars)
    value, time = f"<b>{units.percent(total)}</b>", units.duration(sum(bar.dur_ns for bar in bars))
    return [*rows, _Row("<b>step time</b>", 0.0, total, value, time, _TOTAL)]


def _annotate(figure: go.Figure, at: int, row: _Row, *, is_last: bool) -> None:
    """Write the value after the bar, and lead a thin line to the next one."""
    end = row.begin + row.frac
    figure.add_annotation(
        x=100 * max(row.begin, end),
        y=at,
        text=row.value,
        showarrow=False,
        xanchor="left",
        xshift=6,
        font={"color": INK},
    )
    if not is_last:
        line = {"color": MUTED, "width": 1, "dash": "dot"}
        figure.add_shape(
            type="line", x0=100 * end, x1=100 * end, y0=at, y1=at + 1, line=line, layer="below"
        )
