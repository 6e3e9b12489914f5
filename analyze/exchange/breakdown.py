"""The JSON form of the split of device time."""

from __future__ import annotations

from typing import Any

from meshscope.probe.schema.errors import MeshscopeError

from ..breakdown import device_breakdown
from ..trace import Trace
from ..words import sentence


def breakdown_to_json(trace: Trace, step: int | None = None) -> dict[str, Any]:
    """Return where the device time of each rank went, over all device events or one step.

    Raises:
        MeshscopeError: The step is not in the capture.
    """
    known = sorted(set(trace.frame("kernel")["step"].tolist()) - {-1})
    if step is not None and step not in known:
        raise MeshscopeError(
            f"step {step} has no device events",
            where=str(trace.path),
            remedy=f"Steps with device events: {known[0]}..{known[-1]}" if known else "",
        )
    rows = device_breakdown(trace, step).to_dict("records")
    limits = list(map(sentence, trace.limits))
    if not known and trace.frame("kernel").empty:
        limits.append("The capture has no device events: use diagnose for a host capture.")
    return {
        "version": 1,
        "ranks": {str(row.pop("rank")): row for row in rows},
        "limits": limits,
    }
