"""The tables as CSV, one file a table, safe to open in a spreadsheet."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ..trace import Trace

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
        frame = trace.frame(name)
        if frame.empty:
            continue
        files.append(folder / f"{name}.csv")
        _harmless(frame).to_csv(files[-1], index=False)
    return files


def _harmless(frame: pd.DataFrame) -> pd.DataFrame:
    texts = frame.select_dtypes(include=["object", "category", "string"]).columns
    changed = {}
    for column in texts:
        text = frame[column].astype(str).where(frame[column].notna(), "")
        changed[column] = text.where(~text.str.startswith(_FORMULA_STARTS), "'" + text)
    return frame.assign(**changed)
