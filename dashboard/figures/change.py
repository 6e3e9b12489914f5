"""The change from one run to another as bars of which each begins where the one above ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import plotly.graph_objects as go

from ..plain import units
from .theme import INK, plain, styled, with_columns

_LONGER, _SHORTER, _TOTAL, _CHANCE = "#D55E00", "#0072B2", "#CBD2D9", "#ADB5BD"
_ROW_PX, _BORDER_PX, _MIN_PX = 34, 56, 140
_ROOM = 0.16
"""Of the figure, for the words beside the outermost bars."""
_NS_PER_MS = 1e6


class Change(NamedTuple):
    """By how much a class of time became longer, per step."""

    label: str
    change_ns: float
    words: str
    error_ns: float | None
    """Half the 95 % interval of the change, from noise between steps; None where it is not known."""


def is_beyond_chance(change_ns: float, error_ns: float | None) -> bool:
    """Tell whether a change is larger than chance of the steps makes; one of unknown error may not be."""
    return error_ns is not None and abs(change_ns) > error_ns


def change_waterfall(changes: Sequence[Change], total: Change) -> go.Figure:
    """Return a bar for each change, and below them the one that they sum to.

    Args:
        changes: In order from top to bottom.
        total: Their sum.
    """
    ends = [0.0, *accumulate(change.change_ns / _NS_PER_MS for change in changes)]
    rows = [*changes, total]
    bases = [*ends[: len(changes)], 0.0]
    lengths = [row.change_ns / _NS_PER_MS for row in rows]
    colours = [_colour(change) for change in changes]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=[*range(len(rows))],
            base=bases,
            x=lengths,
            width=0.68,
            marker={"color": [*colours, _TOTAL]},
            hovertext=[f"{plain(row.label)}<br>{plain(row.words)}" for row in rows],
            hoverinfo="text",
        )
    )
    for at, row in enumerate(rows):
        figure.add_annotation(
            x=max(bases[at], bases[at] + lengths[at]), y=at, text=signed(row.change_ns),
            showarrow=False, xanchor="left", xshift=6, font={"color": INK},
        )  # fmt: skip
    labels = [*(plain(row.label) for row in changes), f"<b>{plain(total.label)}</b>"]
    figure.update_yaxes(
        autorange="reversed", tickmode="array", tickvals=[*range(len(rows))], ticktext=labels,
        showgrid=False,
    )  # fmt: skip
    low, high = min(*ends, 0.0), max(*ends, 0.0)
    room = _ROOM * max(high - low, 1e-6)
    figure.update_xaxes(range=[low - room / 4, high + room], title="change of the step time, ms")
    with_columns(figure, "class", "change of the step time, ms")
    return styled(figure, max(_BORDER_PX + _ROW_PX * len(rows), _MIN_PX))


def _colour(change: Change) -> str:
    if not is_beyond_chance(change.change_ns, change.error_ns):
        return _CHANCE
    return _LONGER if change.change_ns > 0 else _SHORTER


def signed(change_ns: float) -> str:
    """Return a change with its sign, also where it is longer.

    >>> signed(1_999_000)
    '+2 ms'
    """
    return ("+" if change_ns > 0 else "") + units.duration(change_ns)
