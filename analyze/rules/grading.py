"""How a finding is graded, and from which cost on a cause becomes one."""

from __future__ import annotations

from meshscope.probe.schema.terms import Severity

MIN_COST = 0.01
"""Causes that cost less of a step than this are not worth a finding."""


def severity(cost_frac: float | None) -> Severity:
    """Return how much a cost matters: from 5 % of the step critical, from 2 % a warning."""
    if cost_frac is None:
        return Severity.INFO
    if cost_frac >= 0.05:
        return Severity.CRITICAL
    return Severity.WARNING if cost_frac >= 0.02 else Severity.INFO
