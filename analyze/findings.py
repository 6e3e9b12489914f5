"""All findings of a run, in the order in which to look at them."""

from __future__ import annotations

from dataclasses import replace

from meshscope.probe.schema.terms import FindingKind, Severity

from .account import Account
from .results import Finding, Where
from .rules import RULES
from .steps import WHOLE_CAPTURE
from .whereabouts import located

_SEVERITIES = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
_BY_DESIGN = (
    FindingKind.PIPELINE_BUBBLE,
    FindingKind.EXPOSED_COMMUNICATION,
    FindingKind.LAUNCH_BOUND,
)


def _place(finding: Finding) -> tuple[int, bool, float]:
    cost = max(finding.cost_frac or 0.0, finding.removal_gain_frac or 0.0)
    return _SEVERITIES.index(finding.severity), finding.kind in _BY_DESIGN, -cost


def find(account: Account) -> tuple[Finding, ...]:
    """Return all findings in the order in which to look at them.

    By severity; within it what is broken before what is designed so (the bubble
    of the schedule, communication without overlap); then by cost.
    """
    found = [_with_real_steps(finding) for rule in RULES for finding in rule(account)]
    return tuple(located(finding, account.trace) for finding in sorted(found, key=_place))


def _with_real_steps(finding: Finding) -> Finding:
    """Return the finding without its steps, where the capture has no step marks to count by."""
    if WHOLE_CAPTURE not in finding.where.get("steps", ()):
        return finding
    where: Where = {**finding.where}
    del where["steps"]
    return replace(finding, where=where)
