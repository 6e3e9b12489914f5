"""The tables as CSV, one file a table, safe to open in a spreadsheet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from ...tables.trace import Trace

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def export_csv(trace: Trace, folder: Path) -> list[Path]:
    """Write every table that has rows; return the files.

    A text that a spreadsheet would run as a formula gets a quote in front.

    Raises:
        OSError: A file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name in trace.tables:
        if not trace.row_count(name):
            continue
        files.append(folder / f"{name}.csv")
        with files[-1].open("w", encoding="utf-8", newline="") as stream:
            for number, frame in enumerate(_parts(trace, name)):
                harmless(frame).to_csv(stream, index=False, header=number == 0)
    return files


def _parts(trace: Trace, name: str) -> Iterator[pd.DataFrame]:
    """Yield the rows of a table; one that is on disk rank by rank."""
    if trace.stored(name) is None:
        yield trace.frame(name)
        return
    yield from (trace.rank_frame(name, rank) for rank in trace.ranks)


def harmless(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with a quote before each text that a spreadsheet would run as a formula."""
    texts = frame.select_dtypes(include=["object", "category", "string"]).columns
    changed = {}
    for column in texts:
        text = frame[column].astype(str).where(frame[column].notna(), "")
        changed[column] = text.where(~text.str.startswith(_FORMULA_STARTS), "'" + text)
    return frame.assign(**changed)
