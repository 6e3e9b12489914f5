"""From which cost on a cause becomes a finding, how that is graded, and why a repair returns less."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import Severity

from ..results import Cause

MIN_COST = 0.01
"""Causes that cost less of a step than this are not worth a finding."""


def severity(cost_frac: float | None) -> Severity:
    """Return how much a cost matters: from 5 % of the step critical, from 2 % a warning."""
    if cost_frac is None:
        return Severity.INFO
    if cost_frac >= 0.05:
        return Severity.CRITICAL
    return Severity.WARNING if cost_frac >= 0.02 else Severity.INFO


def relief_words(cause: Cause, step_time_ns: float) -> Iterator[str]:
    """Say what else is faster while a cause is there."""
    if cause.relief_ns:
        yield (
            f"while it is so, all else in a step is faster than in the other steps: by {cause.relief_ns / 1e6:.2f} ms of "
            f"the mean step ({cause.relief_ns / step_time_ns:.1%}), which a repair takes back; share and gain are without it"
        )


def hidden_note(cause: Cause, them: str = "it") -> str:
    """Return why repairing a cause alone returns less than is worth a finding; empty if it does not.

    What a cause has a share in, it costs once others are repaired: these hide it. Without a
    share it costs nothing, whatever is repaired, because ranks wait there for the schedule.
    """
    gain, share = cause.removal_gain_frac, cause.share_frac
    if gain >= MIN_COST:
        return ""
    returned = "nothing" if f"{max(gain, 0):.1%}" == "0.0%" else f"only {gain:.1%} of the step"
    if share < MIN_COST:
        return f"; repairing {them} returns {returned}, because ranks have time to spare there"
    if gain > share / 2:
        return ""
    return f"; repairing {them} alone returns {returned}, because another cause hides it"
