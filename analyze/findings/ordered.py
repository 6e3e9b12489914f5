"""All findings of a run, in the order in which to look at them."""

from __future__ import annotations

from dataclasses import replace

from meshscope.probe.schema.terms import FindingKind

from ..explain.run_account import Account
from ..tables.results import Finding, Where
from .location import located
from .rules import RULES
from .rules.grading import SEVERITIES, by_certainty
from .rules.idle import IDLE_WORDS
from .rules.starved import CONTENTION

_BY_DESIGN = (
    FindingKind.PIPELINE_BUBBLE,
    FindingKind.EXPOSED_COMMUNICATION,
    FindingKind.LAUNCH_BOUND,
    FindingKind.JITTER,
    FindingKind.COMMUNICATION_VOLUME,
)
_STALLS = (FindingKind.DATA_STALL, FindingKind.GC_PAUSE, FindingKind.CHECKPOINT_STALL)


def place(finding: Finding) -> tuple[bool, int, bool, bool, float]:
    """Return what findings are sorted by."""
    is_late_for_it = finding.cause != CONTENTION and finding.kind is not FindingKind.MISMATCH
    return (
        not finding.is_end,
        SEVERITIES.index(finding.severity),
        is_late_for_it,
        is_by_design(finding),
        -_cost(finding),
    )


def _cost(finding: Finding) -> float:
    """Return the share of the step that a finding costs, or what its repair returns if that is more."""
    return max(finding.cost_frac or 0.0, finding.removal_gain_frac or 0.0)


def is_by_design(finding: Finding) -> bool:
    """Return whether a finding tells how the job or its machines are made, not what is broken.

    A stall of all hosts alike is how the job is made, and wires that vary everywhere and all
    the time are how the network is; one rank, one link or some steps are a fault.
    """
    if finding.kind is FindingKind.HOST_STALL:
        return "rank" not in finding.where
    if finding.kind is FindingKind.SLOW_WIRE:
        return finding.where.keys() <= {"axis"}
    return finding.kind in _BY_DESIGN


def by_size(findings: list[Finding]) -> list[Finding]:
    """Return sorted findings with idle time of the devices before a stall of all hosts alike that costs less.

    Both are how the job is made, and the account gives each its own time: neither explains the other. Idle time
    of an unknown cause explains nothing.
    """
    alike = [
        at for at, one in enumerate(findings) if one.kind in _STALLS and "rank" not in one.where
    ]
    if not alike:
        return findings
    stall, behind = findings[alike[0]], findings[alike[0] :]
    ahead = [
        one
        for one in behind
        if one.cause in IDLE_WORDS and one.severity is stall.severity and _cost(one) > _cost(stall)
    ]
    return [*findings[: alike[0]], *ahead, *(one for one in behind if one not in ahead)]


def find(account: Account) -> tuple[Finding, ...]:
    """Return all findings in the order in which to look at them.

    A job that stands still, or seems to, comes first. Then by severity; within it operations whose result is
    wrong, and a host that is short of processors, because it explains much of the rest (what it explains has a
    lower severity), then what is broken before what is designed so (the bubble of the schedule, communication without
    overlap, what is alike on all hosts or wires); then by cost. Stalls alike on all hosts and idle devices are by cost.
    """
    found = [by_certainty(finding) for rule in RULES for finding in rule(account)]
    if not account.windows.has_marks:
        found = [_of_whole_capture(finding) for finding in found]
    return tuple(located(one, account.trace) for one in by_size(sorted(found, key=place)))


def _of_whole_capture(finding: Finding) -> Finding:
    """Return the finding without its steps, where there are no step marks to count by."""
    where: Where = {**finding.where}
    where.pop("steps", None)
    return replace(finding, where=where, steps=())
