"""Pictures of an account: where the step time went, who is slow in the mesh, what stages hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...account.memory.by_stage import CATEGORIES
from ...tables.results import Bar, Diagnosis
from ...wording.message import message
from ...wording.quantities import duration, percent, size
from ...wording.words import class_label, is_missing
from ..document import Figure, Table
from ..palette import HATCHED, MEMORY_COLOURS, class_colour, class_meanings
from .svg import WIDTH, box, hatch, legend, line, picture, text

_LABEL_PX = 300
_ROW_PX = 24
_MOST_CELLS = 16_384
_MOST_NAMED = 16
"""Ranks in the table below the mesh."""
_MOST_COLUMNS = 128
_STRONG = 0.25
"""A rank that is slower than its peers by that has the full colour."""


def waterfall_figure(result: Diagnosis, table: Table) -> Figure:
    """Return the account of the step: each bar begins where the one above ends, all sum to 100 %."""
    bars = [bar for bar in result.waterfall if bar.is_shown]
    caption = message("report_page.waterfall", time_ns=result.step_time_ns)
    if not bars:
        return Figure("", caption, table)
    begins = np.append(0.0, np.cumsum([bar.frac for bar in bars]))
    room = WIDTH - _LABEL_PX - 70
    parts = [hatch(_waterfall_hatch(colour), colour) for colour in sorted(HATCHED)]
    for place, (bar, begin) in enumerate(zip(bars, begins, strict=False)):
        parts += _bar(place * _ROW_PX, bar, float(begin), room)
    names = [bar.name for bar in bars]
    meanings = [(_fill(colour), words) for colour, words in class_meanings(names).items()]
    legend_parts, height = legend(len(bars) * _ROW_PX + 8, meanings)
    return Figure(picture(height, str(caption), [*parts, *legend_parts]), caption, table)


def _bar(y: float, bar: Bar, begin: float, room: float) -> list[str]:
    x, width = _LABEL_PX + room * min(begin, begin + bar.frac), room * abs(bar.frac)
    words = f"{class_label(bar.name)}: {percent(bar.frac)}, {duration(bar.dur_ns)} a step"
    return [
        text(_LABEL_PX - 8, y + 16, class_label(bar.name), anchor="end"),
        box(x, y + 3, max(width, 1.0), _ROW_PX - 7, _fill(class_colour(bar.name)), words),
        text(x + width + 6, y + 16, percent(bar.frac)),
    ]


def _fill(colour: str) -> str:
    return f"url(#{_waterfall_hatch(colour)})" if colour in HATCHED else colour


def _waterfall_hatch(colour: str) -> str:
    return f"class-{colour.removeprefix('#')}"


def mesh_figure(result: Diagnosis) -> Figure | None:
    """Return every rank at its place in the mesh, in the colour of how much slower it is.

    Where ranks share a cell because there are too many, the slowest of them is shown.
    """
    ranks = result.stragglers
    if ranks.empty or ranks["slowdown"].isna().all():
        return None
    known = not (ranks[["pp", "dp", "tp"]] < 0).any(axis=None)
    cells = _cells_of_mesh(ranks) if known else _cells_in_order(ranks)
    slowest = ranks.sort_values("slowdown", ascending=False, na_position="last").head(_MOST_NAMED)
    rows = [
        (row["rank"], *(_place(row[axis]) for axis in ("pp", "dp", "tp")), _slower(row["slowdown"]))
        for row in slowest.to_dict("records")
    ]
    caption = message("report_page.mesh", count=len(ranks))
    if not known:
        caption = message("report_page.mesh_unknown", count=len(ranks))
    table = Table(("rank", "pp", "dp", "tp", "slower than peers"), rows)
    return Figure(_mesh(cells, str(caption)), caption, table)


def _place(value: int) -> object:
    return "-" if value < 0 else value


def _slower(slowdown: float) -> str:
    return "unknown" if is_missing(slowdown) else percent(slowdown - 1.0)


def _cells_of_mesh(ranks: pd.DataFrame) -> pd.DataFrame:
    """Return row, column, rank and slowdown: replicas below each other, stages side by side."""
    tensor = int(ranks["tp"].max()) + 1
    cells = pd.DataFrame(
        {
            "row": ranks["dp"],
            "column": ranks["pp"] * tensor + ranks["tp"],
            "rank": ranks["rank"],
            "slowdown": ranks["slowdown"],
        }
    )
    each = -(-(int(cells["row"].max()) + 1) * (int(cells["column"].max()) + 1) // _MOST_CELLS)
    cells["row"] //= each
    return cells.sort_values("slowdown", na_position="first").drop_duplicates(
        ["row", "column"], keep="last"
    )


def _cells_in_order(ranks: pd.DataFrame) -> pd.DataFrame:
    """Return the same in the order of ranks where the mesh is not known."""
    ordered = ranks.sort_values("rank").head(_MOST_CELLS)
    place = np.arange(len(ordered))
    columns = min(_MOST_COLUMNS, max(8, int(np.ceil(np.sqrt(len(ordered))))))
    return ordered.assign(row=place // columns, column=place % columns)


def _mesh(cells: pd.DataFrame, label: str) -> str:
    rows, columns = int(cells["row"].max()) + 1, int(cells["column"].max()) + 1
    width = min(90.0, WIDTH / columns)
    height = min(34.0, max(4.0, 640 / rows), width * 2)
    gap = 0.12 * min(width, height)
    parts = []
    for row, column, rank, slowdown in zip(
        *(cells[name].tolist() for name in ("row", "column", "rank", "slowdown")), strict=True
    ):
        x, y = column * width, row * height
        words = f"rank {rank}: {_slower(slowdown)} slower than its peers"
        parts.append(box(x, y, width - gap, height - gap, _slow_colour(slowdown), words))
        if width >= 60 and height >= 16:
            parts.append(
                f'<text x="{x + (width - gap) / 2:g}" y="{y + height / 2 + 3:g}" '
                f'text-anchor="middle" style="fill:#1f2933">{rank}: {_slower(slowdown)}</text>'
            )
    entries = [
        (_slow_colour(1.0 + share), words)
        for share, words in (
            (-_STRONG, f"{percent(_STRONG)} faster"),
            (0.0, "like its peers"),
            (_STRONG / 2, f"{percent(_STRONG / 2)} slower"),
            (_STRONG, f"{percent(_STRONG)} slower or more"),
        )
    ]
    legend_parts, bottom = legend(rows * height + 10, [*entries, ("#ADB5BD", "unknown")])
    return picture(bottom, label, [*parts, *legend_parts])


def _slow_colour(slowdown: float) -> str:
    """Return blue over white to vermillion: faster, like its peers, slower."""
    if is_missing(slowdown):
        return "#ADB5BD"
    share = float(np.clip((slowdown - 1.0) / _STRONG, -1.0, 1.0))
    end = (0xD5, 0x5E, 0x00) if share > 0 else (0x00, 0x72, 0xB2)
    mixed = (round(0xF7 + (one - 0xF7) * abs(share)) for one in end)
    return "#" + "".join(f"{value:02x}" for value in mixed)


def memory_figure(result: Diagnosis, table: Table) -> Figure | None:
    """Return what each stage held at its peak, by what it is for, against the capacity."""
    stages = [row for row in result.memory.to_dict("records") if not is_missing(row["peak_bytes"])]
    if not stages:
        return None
    lines = [(_stage(row), _held(row)) for row in stages]
    capacity = [row["capacity_bytes"] for row in stages if not is_missing(row["capacity_bytes"])]
    most = max(*(sum(held.values()) for _, held in lines), *capacity[:1], 1.0)
    room = WIDTH - 200
    parts: list[str] = []
    for place, (label, held) in enumerate(lines):
        parts += _stack(place * _ROW_PX, label, held, room / most)
    bottom = len(lines) * _ROW_PX
    if capacity:
        x = 120 + room * min(capacity) / most
        parts += [line(x, 0, x, bottom, dashed=True)]
    names = [name for name in MEMORY_COLOURS if any(name in held for _, held in lines)]
    legend_parts, height = legend(bottom + 8, [(MEMORY_COLOURS[name], name) for name in names])
    caption = message("report_page.memory")
    if capacity:
        caption = message("report_page.memory_capacity", capacity=min(capacity))
    return Figure(picture(height, str(caption), [*parts, *legend_parts]), caption, table)


def _stage(row: Mapping[Any, Any]) -> str:
    return "all stages" if row["stage"] < 0 else f"stage {row['stage']}"


def _held(row: Mapping[Any, Any]) -> dict[str, float]:
    """Return the bytes by term at the peak; what is not separated is one term."""
    held = {
        name: float(row[f"{name}_bytes"])
        for name in CATEGORIES
        if not is_missing(row[f"{name}_bytes"]) and row[f"{name}_bytes"] > 0
    }
    rest = float(row["peak_bytes"]) - sum(held.values())
    return held | ({"not separated": rest} if rest > 0 else {})


def _stack(y: float, label: str, held: Mapping[str, float], scale: float) -> Sequence[str]:
    parts = [text(112, y + 16, label, anchor="end")]
    x = 120.0
    for name, held_bytes in held.items():
        words = f"{label}, {name}: {size(held_bytes)}"
        width = held_bytes * scale
        parts.append(box(x, y + 3, width, _ROW_PX - 7, MEMORY_COLOURS[name], words))
        x += width
    return [*parts, text(x + 6, y + 16, size(sum(held.values())))]
