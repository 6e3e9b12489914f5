"""The JSON form of the kernels of a capture."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ..kernel_places import NO_AXIS, NO_STAGE
from ..kernels import PLACE, KernelReport, kernel_report
from ..trace import Trace
from ..words import is_missing, sentence

DEFAULT_TOP = 20


def kernels_to_json(trace: Trace, top: int = DEFAULT_TOP) -> dict[str, Any]:
    """Return where the device time went by kernel, phase and rank; ``docs/kernels.md`` has the keys.

    Args:
        trace: The capture.
        top: Kernels of each list, longest first.
    """
    report = kernel_report(trace)
    return {
        "version": 1,
        "ranks": {str(row.pop("rank")): row for row in _rows(report.ranks)},
        "kernel_count": len(report.kernels),
        "kernels": _kernels(report.kernels, top),
        "places": [
            row | {"kernels": _kernels(_of_place(report, row), top)} for row in _rows(report.places)
        ],
        "limits": [*map(sentence, trace.limits), *report.limits],
    }


def _of_place(report: KernelReport, place: dict[str, Any]) -> pd.DataFrame:
    frame = report.kernels
    unknown = {"axis": NO_AXIS, "stage": NO_STAGE}
    for column in PLACE:
        wanted = unknown[column] if place[column] is None else place[column]
        frame = frame[frame[column] == wanted]
    return frame


def _kernels(frame: pd.DataFrame, top: int) -> list[dict[str, Any]]:
    return _rows(frame.head(top))


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows with null for what is not known; whole times are integers."""
    rows: Any = frame.to_dict("records")
    return [{str(key): _value(str(key), value) for key, value in row.items()} for row in rows]


def _value(key: str, value: Any) -> Any:
    if is_missing(value) or (key, value) in (("stage", NO_STAGE), ("axis", NO_AXIS)):
        return None
    return round(value) if key.endswith("_ns") else value
