"""The tables of pages as CSV, safe to open in a spreadsheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from meshscope.analyze.output.export.csv import harmless


def to_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return rows as CSV with a line of names; what is not known is empty.

    Args:
        rows: The table.
        columns: What of it, in this order.
    """
    cells = [{name: _cell(row[name]) for name in columns} for row in rows]
    return str(harmless(pd.DataFrame(cells, columns=list(columns))).to_csv(index=False))


def _cell(value: Any) -> Any:
    """Return a value as one cell; of several each apart by a semicolon."""
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {_cell(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return "; ".join(map(str, value))
    return value
