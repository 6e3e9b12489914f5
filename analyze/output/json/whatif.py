"""The JSON form of a prediction."""

from __future__ import annotations

from typing import Any

from ...explain.whatif import Change, Prediction
from ...wording.limits import Limit, limit_text, limits_to_json
from ...wording.message import message_to_json


def prediction_to_json(
    changes: list[Change], result: Prediction, limits: tuple[Limit, ...]
) -> dict[str, Any]:
    """Return the changes and the step time that they would give.

    Args:
        changes: What was asked.
        result: The prediction.
        limits: What the account of the run cannot tell.
    """
    before, after = result.microbatches or (None, None)
    per_microbatch = None
    if before and after:
        per_microbatch = 1.0 - (result.predicted_ns / after) / (result.measured_ns / before)
    return {
        "version": 1,
        "changes": [
            {"name": c.name, "value": c.value or None, "is_fix": c.is_fix} for c in changes
        ],
        "step_time_ns": result.measured_ns,
        "predicted_step_time_ns": result.predicted_ns,
        "error_ns": result.error_ns,
        "error_unknown": limit_text(result.error_unknown) if result.error_unknown else None,
        "error_parts": result.error_parts,
        "gain_frac": result.gain_frac,
        "microbatches": after,
        "gain_per_microbatch_frac": per_microbatch,
        "assumptions": list(map(str, result.assumptions)),
        "messages": {
            "assumptions": list(map(message_to_json, result.assumptions)),
            "error_unknown": message_to_json(result.error_unknown)
            if result.error_unknown
            else None,
        },
        **limits_to_json(limits),
    }
