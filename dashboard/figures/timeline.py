"""One step as rows of ranks: real bars while they are few, else a picture of the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from meshscope.analyze.output.timeline.at_instant import StepTransfers, waiting_until
from meshscope.analyze.output.timeline.categories import COLOURS, COMMUNICATION, LABELS, Category
from meshscope.analyze.output.timeline.slices import MARK, StepSlices, is_in_window

from ..answers.rows import ShownRows
from ..answers.wait import WaitArrow
from ..plain import units
from ..timeline.paths import Outlines
from ..timeline.row_places import RowPlaces, row_places
from ..timeline.tile import embedded_tile
from ..timeline.window_sums import COLUMNS, sum_rows
from .critical_path import path_traces
from .margins import margins
from .theme import AXIS, LOOK, PAPER, plain
from .wait import wait_traces

MAX_BARS = 2500
"""Visible slices above which SVG bars become too slow to zoom."""

WAITING = ", waiting"
"""After the name of communication in which a rank waits for others."""
_LEAST_FOR_TEXT = 0.012
"""Share of the window from which a bar has room for the number of its microbatch."""
_ROW_PX = 30
_BORDER_PX = 110
_MIN_PX, _MAX_PX = 240, 760
_NS_PER_MS = 1e6
_MOST_MARKED = 16
_MOST_LABELS, _ROOMY_LABELS = 64, 32
"""Labels that the highest figure has room for, in small and in normal letters."""


def uses_tile(step: StepSlices, window_ns: tuple[int, int]) -> bool:
    """Return whether a window holds too many slices to draw them one by one."""
    return int(is_in_window(step.slices, window_ns).sum()) > MAX_BARS


def timeline(  # noqa: PLR0913 - what lies over each other in one figure
    step: StepSlices,
    window_ns: tuple[int, int],
    instant_url: str,
    path: Outlines | None = None,
    transfers: StepTransfers | None = None,
    *,
    rows: ShownRows | None = None,
    wait: WaitArrow | None = None,
) -> go.Figure:
    """Return the timeline of a window of one step.

    Args:
        step: What to draw.
        window_ns: Shown part, from the start of the step.
        instant_url: The address of what a row shows at an instant.
        path: What to outline of the critical path, None for nothing.
        transfers: The operations of the step, by which waiting is hatched; None where nothing tells it.
        rows: What its rows stand for, by which keys change them; None where they do not.
        wait: The wait that an arrow shows, None for none.
    """
    places = row_places(len(step.ranks), 0 if rows is None else rows.pinned)
    is_picture = uses_tile(step, window_ns)
    traces = [_corners(window_ns, places)] if is_picture else _bars_of(step, window_ns, transfers)
    traces += [] if path is None else path_traces(path)
    traces += [] if wait is None else wait_traces(wait)
    _place(traces, places)
    # Keys that zoom and move stay inside the step; what the pointer is at is asked of the server.
    meta = {
        "length_ms": step.length_ns / _NS_PER_MS,
        "instant_url": instant_url,
        "is_picture": is_picture,
        "ranks": list(step.ranks),
        "tall": [places.tall, places.each],
        **({} if rows is None else {"rows": rows.count, "spans": list(rows.spans)}),
        "table": {"columns": list(COLUMNS), "rows": [*map(list, sum_rows(step, window_ns))]},
    }
    title = AXIS["title"] | {"text": "time in the step, ms"}
    height = int(np.clip(_BORDER_PX + _ROW_PX * places.count, _MIN_PX, _MAX_PX))
    layout = {
        **LOOK,
        "height": height,
        # The grid would be drawn over a picture.
        "xaxis": {**AXIS, "range": _in_ms(window_ns), "title": title, "showgrid": not is_picture},
        "yaxis": {**AXIS, **_named_rows(step, places)},
        "images": [_picture(step, window_ns, places)] if is_picture else [],
        "barmode": "overlay",
        "bargap": 0,
        "dragmode": "zoom",
        "hovermode": "closest",
        "meta": meta,
    }
    figure = go.Figure(traces, layout)
    return figure.update_layout(margin=margins(figure, height))


def _in_ms(window_ns: tuple[int, int]) -> list[float]:
    return [border / _NS_PER_MS for border in window_ns]


def _place(traces: Sequence[Any], places: RowPlaces) -> None:
    """Move what is drawn in rows, of which all are alike, to where the rows are."""
    if places.each == 1:
        return
    for trace in traces:
        rows = np.asarray(trace.y, dtype=np.float64)
        if trace.type == "bar":
            trace.width = trace.width * places.heights()[rows.astype(np.int64)]
        trace.y = places.on_axis(rows)


def _named_rows(step: StepSlices, places: RowPlaces) -> dict[str, Any]:
    """Return an axis of a row a rank, from top to bottom, with as many names as there is room for."""
    count, total = places.count, places.total
    every = 1 if count <= _MOST_LABELS else -(-total // _ROOMY_LABELS)
    centres = places.on_axis(np.arange(count, dtype=np.float64)).tolist()
    ticks = _ticks(step.labels, every, centres)
    names = {centres[at]: plain(step.labels[at]) for at in ticks}
    if every > 1:
        names = _apart(names, every)
    return {
        "range": [total - 0.5, -0.5],
        "fixedrange": True,
        "tickmode": "array",
        "tickvals": list(names),
        "ticktext": list(names.values()),
        "tickfont": {"size": 10 if every == 1 and count > _ROOMY_LABELS else 13},
        "showgrid": False,
    }


def _apart(names: dict[float, str], every: int) -> dict[float, str]:
    """Return names by place without those that the one before has no room for; that one says how many."""
    kept: dict[float, str] = {}
    below: Counter[float] = Counter()
    for at, name in names.items():
        last = next(reversed(kept), -every)
        if at - last < every / 2:
            below[last] += 1
        else:
            kept[at] = name
    return {at: f"{name} +{below[at]}" if below[at] else name for at, name in kept.items()}


def _bars_of(
    step: StepSlices, window_ns: tuple[int, int], transfers: StepTransfers | None
) -> list[Any]:
    """Return the slices of a window as bars, by category; where operations are known, waiting is hatched."""
    traces: list[Any] = []
    seen = step.slices[is_in_window(step.slices, window_ns)]
    if transfers is not None:
        seen = _without_waits(seen, waits := waits_of(seen, transfers, step.origin_ns))
        for category, part in waits.groupby("category", sort=True):
            traces.append(_bars(part, Category(int(category)), window_ns, hatched=True))  # type: ignore[arg-type]
    for category, part in seen.groupby("category", sort=True):
        traces.append(_bars(part, Category(int(category)), window_ns))  # type: ignore[arg-type]
    return traces


def _ticks(labels: Sequence[str], every: int, centres: Sequence[float]) -> list[int]:
    """Return the rows with a label: each so many-th, and those of marked ranks in place of what is near."""
    marked = [at for at, label in enumerate(labels) if label.startswith(MARK)][:_MOST_MARKED]
    if every == 1:
        return [*range(len(labels))]
    regular = [
        at
        for at in range(0, len(labels), every)
        if all(abs(centres[at] - centres[other]) >= every / 2 for other in marked)
    ]
    return sorted({*regular, *marked})


def shown_categories(step: StepSlices, window_ns: tuple[int, int]) -> tuple[Category, ...]:
    """Return the categories that a window holds, for its legend."""
    category = step.slices["category"].to_numpy()[is_in_window(step.slices, window_ns)]
    return tuple(Category(value) for value in np.flatnonzero(np.bincount(category)).tolist())


def waits_of(seen: pd.DataFrame, transfers: StepTransfers, origin_ns: int) -> pd.DataFrame:
    """Return the parts of slices in which their ranks wait for others, as slices with the index of these."""
    moving = seen[seen["category"].isin(COMMUNICATION)]
    waits = moving.assign(end_ns=waiting_until(moving, transfers, origin_ns))
    return waits[waits["end_ns"] > waits["start_ns"]]


def _without_waits(seen: pd.DataFrame, waits: pd.DataFrame) -> pd.DataFrame:
    """Return slices from where the waiting in them ends."""
    start = seen["start_ns"].copy()
    start.loc[waits.index] = waits["end_ns"]
    return seen.assign(start_ns=start)[start < seen["end_ns"]]


def _bars(
    part: pd.DataFrame, category: Category, window_ns: tuple[int, int], *, hatched: bool = False
) -> go.Bar:
    length = part["end_ns"] - part["start_ns"]
    has_room = length >= _LEAST_FOR_TEXT * (window_ns[1] - window_ns[0])
    number = part["microbatch"].where(has_room & (part["microbatch"] >= 0), -1)
    return go.Bar(
        orientation="h",
        name=LABELS[category] + hatched * WAITING,
        y=part["row"],
        base=part["start_ns"] / _NS_PER_MS,
        x=length / _NS_PER_MS,
        width=0.82,
        marker={
            "color": COLOURS[category],
            "line": {"width": 0.5, "color": PAPER},
            "pattern": {"shape": "/" if hatched else "", "size": 6},
        },
        hovertext=[
            f"rank {rank}<br>{plain(text)}<br>{'waits ' * hatched}{units.duration(ns)} from {units.duration(start)}"
            for rank, text, ns, start in zip(
                part["rank"], part["text"], length, part["start_ns"], strict=True
            )
        ],
        hoverinfo="text",
        text=["" if microbatch < 0 else str(microbatch) for microbatch in number],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"size": 11},
    )


def _picture(step: StepSlices, window_ns: tuple[int, int], places: RowPlaces) -> dict[str, Any]:
    t0, t1 = _in_ms(window_ns)
    return {
        "source": embedded_tile(step, window_ns, places),
        "xref": "x",
        "yref": "y",
        "x": t0,
        "y": -0.5,
        "sizex": t1 - t0,
        "sizey": places.total,
        "sizing": "stretch",
        "layer": "below",
    }


def _corners(window_ns: tuple[int, int], places: RowPlaces) -> go.Scatter:
    """Return two points that nobody sees: an axis without a trace has no zoom, and no range."""
    return go.Scatter(
        x=_in_ms(window_ns),
        y=[0, places.count - 1],
        mode="markers",
        marker={"opacity": 0},
        hoverinfo="skip",
    )
