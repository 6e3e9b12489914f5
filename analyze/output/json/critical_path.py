"""The JSON form of the critical path of a step."""

from __future__ import annotations

from typing import Any

from ...align.steps.whole_capture import WHOLE_CAPTURE
from ...findings.critical_path import CriticalPath
from ...wording.limits import Limit, limits_to_json
from ...wording.message import message_to_json

FROM_LAST_END = "from the end of the step before on its last rank to that of this one"
FROM_FIRST_BEGIN = "from where the first rank begins to where the last one ends"


def critical_path_to_json(path: CriticalPath, limits: tuple[Limit, ...]) -> dict[str, Any]:
    """Return the path in pieces, and its length by class and by rank.

    Args:
        path: The path of one step.
        limits: What the account of the run cannot tell.
    """
    return {
        "version": 1,
        "step": None if path.step == WHOLE_CAPTURE else path.step,
        "step_because": "" if path.because is None else str(path.because),
        "step_because_message": None if path.because is None else message_to_json(path.because),
        "step_time_ns": path.end_ns - path.start_ns,
        "step_time_of": FROM_LAST_END if path.is_chained else FROM_FIRST_BEGIN,
        "longest_rank_ns": path.longest_ns,
        "by_class": path.by("class").to_dict("records"),
        "by_rank": path.by("rank", "stage").to_dict("records"),
        "pieces": path.pieces.assign(
            start_ns=path.pieces["start_ns"] - path.start_ns,
            end_ns=path.pieces["end_ns"] - path.start_ns,
        ).to_dict("records"),
        **limits_to_json(limits),
    }
