"""The causes as every report and page shows them, with the waiting that they add up to."""

from __future__ import annotations

from ..tables.results import LEAST_SHOWN, Cause, Diagnosis
from ..wording.message import Message, message


def shown_causes(result: Diagnosis) -> list[Cause]:
    """Return the causes that cost or return anything."""
    return [
        cause
        for cause in result.causes
        if max(abs(cause.share_frac), abs(cause.removal_gain_frac)) >= LEAST_SHOWN
    ]


def waiting_sum(result: Diagnosis) -> Message | None:
    """Return the waiting as the sum of its parts; None where it is not known."""
    waiting, step = result.waiting, result.step_time_ns
    if waiting is None:
        return None
    return message(
        "report.waiting",
        measured=waiting.measured_ns / step,
        bubble=waiting.bubble_ns / step,
        source=result.bubble_words,
        induced=waiting.induced_ns / step,
        rest=waiting.model_error_ns / step,
    )
