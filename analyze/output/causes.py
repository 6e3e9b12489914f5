"""Which causes a reader is shown, and the sum of the waiting, the same in every report and page."""

from __future__ import annotations

from ..tables.results import Cause, Diagnosis
from ..wording.message import Message, message

_LEAST_FRAC = 5e-5
"""Below it a share is written 0.00 %: a row of zeros tells a reader nothing, and JSON has it."""


def shown_causes(result: Diagnosis) -> list[Cause]:
    """Return the causes that cost or return anything."""
    return [
        cause
        for cause in result.causes
        if max(abs(cause.share_frac), abs(cause.removal_gain_frac)) >= _LEAST_FRAC
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
