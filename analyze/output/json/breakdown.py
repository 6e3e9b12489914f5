"""The JSON form of the split of device time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from meshscope.probe.schema.errors import MeshscopeError

from ...account.kernels.breakdown import breakdown_by_device, device_breakdown
from ...tables.trace import Trace
from ...wording.limits import Limit, limit_text, limits_to_json
from ...wording.message import message
from .kernels import NO_KERNELS, known_of_device


def breakdown_to_json(trace: Trace, step: int | None = None) -> dict[str, Any]:
    """Return where the device time of each rank went, over all device events or one step.

    Times are null on a rank of which no device event was recorded.

    Raises:
        MeshscopeError: The step is not in the capture.
    """
    seen = (trace.rank_frame("kernel", rank, ["step"])["step"].unique() for rank in trace.ranks)
    known = sorted({int(step) for steps in seen for step in steps} - {-1})
    if step is not None and step not in known:
        raise MeshscopeError(
            message("refused.step_without_device_events", step=step),
            where=str(trace.path),
            remedy=message("advice.steps_with_device_events", first=known[0], last=known[-1])
            if known
            else limit_text(NO_KERNELS),
        )
    table = device_breakdown(trace, step)
    limits = [*trace.limits, *_unknown(table)]
    if not trace.row_count("kernel"):
        limits.append(NO_KERNELS)
    records: list[dict[str, Any]] = table.to_dict("records")  # type: ignore[assignment]
    rows = map(known_of_device, records)
    return {
        "version": 1,
        "ranks": {str(row.pop("rank")): row for row in rows},
        "devices": devices_to_json(trace, step),
        **limits_to_json(limits),
    }


def devices_to_json(trace: Trace, step: int | None = None) -> list[dict[str, Any]]:
    """Return the same of each device of ranks that compute on several, with rank and device."""
    if not trace.row_count("kernel"):
        return []
    rows: list[dict[str, Any]] = breakdown_by_device(trace, step).to_dict("records")  # type: ignore[assignment]
    return rows


def _unknown(table: pd.DataFrame) -> Iterator[Limit]:
    """Yield how much device time is of unknown kind, and how to say what it is."""
    rows = table[table["unknown_events"] > 0]
    if rows.empty:
        return
    most = rows.sort_values("unknown_ns").iloc[-1]
    yield message(
        "doubt.activities_of_unknown_kind",
        events=int(rows["unknown_events"].sum()),
        ranks=len(rows),
        rank=int(most["rank"]),
        most_ns=float(most["unknown_ns"]),
        exposed_ns=float(most["exposed_unknown_ns"]),
    )
