"""All findings of a run, in the order in which to look at them."""

from __future__ import annotations

from meshscope.probe.schema.terms import FindingKind, Severity

from .account import Account
from .results import Finding
from .rules import RULES

_SEVERITIES = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
_BY_DESIGN = (
    FindingKind.PIPELINE_BUBBLE,
    FindingKind.EXPOSED_COMMUNICATION,
    FindingKind.LAUNCH_BOUND,
)


_STANDSTILL = (FindingKind.HANG, FindingKind.CRASH)


def place(finding: Finding) -> tuple[bool, int, bool, float]:
    """Return what findings are sorted by."""
    cost = max(finding.cost_frac or 0.0, finding.removal_gain_frac or 0.0)
    # A stall of all hosts alike is how the job is made; one of a single rank is a fault.
    by_design = finding.kind in _BY_DESIGN or (
        finding.kind is FindingKind.HOST_STALL and not finding.where
    )
    goes_on = finding.kind not in _STANDSTILL or finding.severity is Severity.INFO
    return goes_on, _SEVERITIES.index(finding.severity), by_design, -cost


def find(account: Account) -> tuple[Finding, ...]:
    """Return all findings in the order in which to look at them.

    A job that stands still, or seems to, comes first. Then by severity; within it what is broken before what is designed so (the bubble
    of the schedule, communication without overlap); then by cost.
    """
    found = [finding for rule in RULES for finding in rule(account)]
    return tuple(sorted(found, key=place))
