"""Rows of long tables as data: the browser makes cells of them, many times faster than Dash makes components."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dash import html

_LEAST_CELLS = 40
"""Of a table whose cells the browser makes."""
_TEXT = (str, int, float)
_NAMED = {"children", "title", "className"}


def plain_rows(rows: Sequence[Sequence[Any]], numeric_from: int, marked: int) -> str | None:
    """Return the rows for ``sheets.js``; None of a short table, or one with cells that are more than text.

    Args:
        rows: The cells of each row.
        numeric_from: From which column on cells are right-aligned.
        marked: How many rows stand out, from the first one on.
    """
    if sum(map(len, rows)) < _LEAST_CELLS:
        return None
    cells = [[_plain(cell) for cell in row] for row in rows]
    if any(cell is None for row in cells for cell in row):
        return None
    found = {"numeric_from": numeric_from, "marked": marked, "rows": cells}
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def _plain(cell: Any) -> str | list[str] | None:
    """Return the text of a cell; with a title and a class where it is a name; None if it is anything else."""
    if cell is None:
        return ""
    if isinstance(cell, _TEXT):
        return str(cell)
    if isinstance(cell, html.Span) and isinstance(cell.children, str):
        named = {name: vars(cell)[name] for name in cell.available_properties if name in vars(cell)}
        if named.keys() <= _NAMED:
            return [cell.children, named.get("title", ""), named.get("className", "")]
    return None
