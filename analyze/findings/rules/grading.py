"""From which cost on a cause becomes a finding, how that is graded, and why a repair returns less."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshscope.probe.schema.terms import Severity

from ...tables.results import Cause, Finding
from ...wording.message import Message, message

MIN_COST = 0.01
"""Causes that cost less of a step than this are not worth a finding."""

MIN_SURE = 0.5
"""Confidence below which a finding is never critical, and no hardware is to be swapped."""


SEVERITIES = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
"""From what matters most to what matters least."""

_LOWER = dict(zip(SEVERITIES, (*SEVERITIES[1:], Severity.INFO), strict=True))


def severity(cost_frac: float | None) -> Severity:
    """Return how much a cost matters: from 5 % of the step critical, from 2 % a warning."""
    if cost_frac is None:
        return Severity.INFO
    if cost_frac >= 0.05:
        return Severity.CRITICAL
    return Severity.WARNING if cost_frac >= 0.02 else Severity.INFO


def by_certainty(finding: Finding) -> Finding:
    """Return a finding with the severity that its certainty allows.

    That is the grade of what it costs times its confidence: what it is expected to cost. More likely wrong
    than right, it is one lower than that of its cost, whatever that is. An end of the job, or a capture that
    cannot be relied on, has no cost that could be expected.
    """
    grades = [finding.severity]
    cost = max(finding.cost_frac or 0.0, finding.removal_gain_frac or 0.0)
    if cost > 0 and not finding.is_end:
        grades.append(severity(cost * finding.confidence))
    if finding.confidence < MIN_SURE:
        grades.append(_LOWER[finding.severity])
    return replace(finding, severity=max(grades, key=SEVERITIES.index))


def relief_words(cause: Cause, step_time_ns: float) -> Iterator[Message]:
    """Say what else is faster while a cause is there."""
    if cause.relief_ns:
        share = cause.relief_ns / step_time_ns
        yield message("cause.relief", relief_ns=cause.relief_ns, share=share)


def hidden_facts(cause: Cause) -> Iterator[Message]:
    """Say why repairing a cause alone returns less than is worth a finding; nothing if it does not.

    What a cause has a share in, it costs once others are repaired: these hide it. Without a
    share it costs nothing, whatever is repaired, because ranks wait there for the schedule.
    """
    gain, share = cause.removal_gain_frac, cause.share_frac
    if gain >= MIN_COST:
        return
    if share < MIN_COST:
        yield message("cause.spare_time")
    elif gain > share / 2:
        return
    elif cause.hidden_by is None:
        yield message("cause.hidden_by_several")
    else:
        other = cause.hidden_by
        name = message("cause.name", kind=other.kind)
        if other.where:
            name = message("cause.name_at", kind=other.kind, where=other.where)
        yield message("cause.hidden_by", other=name, pair_gain=other.pair_gain_frac)
