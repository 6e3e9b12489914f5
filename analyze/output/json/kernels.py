"""The JSON form of the kernels of a capture."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ...account.kernels.breakdown import breakdown_by_device
from ...account.kernels.host_table import annotation_sums, host_operators, host_time
from ...account.kernels.host_waits import host_waits
from ...account.kernels.operators import operator_report
from ...account.kernels.places import NO_AXIS, NO_STAGE
from ...account.kernels.table import PLACE, KernelReport, kernel_report
from ...tables.trace import Trace
from ...wording.limits import limits_to_json
from ...wording.message import message
from ...wording.words import is_missing

DEFAULT_TOP = 20
"""What fits a screen; ``--top`` shows more."""
NO_KERNELS = message("unknown.no_kernels")


def kernels_to_json(trace: Trace, top: int = DEFAULT_TOP) -> dict[str, Any]:
    """Return where the device time went by kernel, phase and rank; ``docs/kernels.md`` has the keys.

    Args:
        trace: The capture.
        top: Kernels of each list, longest first.
    """
    report = kernel_report(trace)
    operators = operator_report(trace)
    own_limits = (*report.limits, *operators.limits) if len(report.kernels) else (NO_KERNELS,)
    limits = (*trace.limits, *own_limits)
    return {
        "version": 1,
        "ranks": {str(row.pop("rank")): row for row in map(known_of_device, _rows(report.ranks))},
        "devices": _rows(breakdown_by_device(trace)) if len(report.kernels) else [],
        "kernel_count": len(report.kernels),
        "kernels": _kernels(report.kernels, top),
        "places": [
            row | {"kernels": _kernels(_of_place(report, row), top)} for row in _rows(report.places)
        ],
        "peak_flops": operators.peak_flops,
        "peak_source": operators.peak_source,
        "operator_count": len(operators.operators),
        "operators": _operators(operators.operators.head(top), report.ranks),
        "host_waits": _host_waits(host_waits(trace).head(top), report.ranks),
        "annotations": _rows(annotation_sums(trace).head(top)),
        "host_operators": _rows(host_operators(trace).head(top)),
        "host_time": _rows(host_time(trace)),
        **limits_to_json(limits),
    }


def known_of_device(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row about a device, with null for times where nothing of the device was recorded."""
    if row["device_events"]:
        return row
    unknown = ("_ns", "_frac")
    return {name: None if name.endswith(unknown) else value for name, value in row.items()}


def _of_place(report: KernelReport, place: dict[str, Any]) -> pd.DataFrame:
    frame = report.kernels
    unknown = {"axis": NO_AXIS, "stage": NO_STAGE}
    for column in PLACE:
        wanted = unknown[column] if place[column] is None else place[column]
        frame = frame[frame[column] == wanted]
    return frame


def _kernels(frame: pd.DataFrame, top: int) -> list[dict[str, Any]]:
    return _rows(frame.head(top))


def _operators(frame: pd.DataFrame, ranks: pd.DataFrame) -> list[dict[str, Any]]:
    """Return operators with their share of the busy time of all devices."""
    named = frame.drop(columns=["flops", "counted_ns", "covered_ns"]).astype({"operator": object})
    named[["operator", "shapes"]] = named[["operator", "shapes"]].where(lambda text: text != "")
    return _rows(named.assign(busy_frac=_share(frame["covered_ns"], ranks["device_busy_ns"])))


def _host_waits(frame: pd.DataFrame, ranks: pd.DataFrame) -> list[dict[str, Any]]:
    """Return calls that wait, with what they cost as a share of the spans of all ranks."""
    named = frame.assign(operator=frame["operator"].where(frame["operator"] != ""))
    return _rows(named.assign(span_frac=_share(frame["starved_ns"], ranks["span_ns"])))


def _share(part: pd.Series[Any], whole: pd.Series[Any]) -> pd.Series[float]:
    total = float(whole.sum())
    return part / (total if total > 0 else float("nan"))


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows with null for what is not known; whole times are integers."""
    rows: Any = frame.to_dict("records")
    return [{str(key): _value(str(key), value) for key, value in row.items()} for row in rows]


def _value(key: str, value: Any) -> Any:
    if is_missing(value) or (key, value) in (("stage", NO_STAGE), ("axis", NO_AXIS)):
        return None
    return round(value) if key.endswith("_ns") else value
