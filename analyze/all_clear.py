"""What may be said of a run of which no finding is told: an all-clear, or that it is not known."""

from __future__ import annotations

from meshscope.probe.schema.terms import FindingKind

from .ledger.classes import UNATTRIBUTED, UNSEPARATED
from .results import Diagnosis
from .rules.grading import MIN_COST

_SLOW = (FindingKind.STRAGGLER_RANK, FindingKind.STAGE_IMBALANCE, FindingKind.SLOW_LINK)


def untold_of(result: Diagnosis) -> str:
    """Return what is not known where no causes are told; some may be named all the same."""
    named = {finding.kind for finding in result.findings}
    if FindingKind.STRAGGLER_RANK in named:
        return "What slow ranks cost, and slow stages and links"
    if named.intersection(_SLOW):
        return "What repairing slow ranks, stages and links returns"
    return "Slow ranks, stages and links"


def nothing_found(result: Diagnosis) -> str:
    """Return what stands where there are no findings: as much of an all-clear as is known."""
    if result.untold:
        return "What costs time is not known: " + " ".join(result.untold)
    unknown = sum(bar.frac for bar in result.waterfall if bar.name in (UNATTRIBUTED, UNSEPARATED))
    clear = f"Nothing that costs {MIN_COST:.0%} of the step or more"
    if unknown < MIN_COST:
        return clear
    return (
        f"{clear} in the {1 - unknown:.1%} of it that is attributed; what the other {unknown:.1%} was "
        "spent on is not known"
    )
