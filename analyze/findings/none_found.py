"""What may be said of a run that has no finding: an all-clear, or that it is not known."""

from __future__ import annotations

from meshscope.probe.schema.terms import FindingKind

from ..tables.classes import UNATTRIBUTED, UNSEPARATED
from ..tables.results import Diagnosis
from ..wording.message import Message, message
from .rules.grading import MIN_COST

_SLOW = (FindingKind.STRAGGLER_RANK, FindingKind.STAGE_IMBALANCE, FindingKind.SLOW_LINK)


def unknown_places(result: Diagnosis) -> Message:
    """Return what is not known where no causes are reported; some may be named all the same."""
    named = {finding.kind for finding in result.findings}
    if FindingKind.STRAGGLER_RANK in named:
        return message("none_found.cost_of_slow_ranks")
    if named.intersection(_SLOW):
        return message("none_found.gain_of_repairs")
    return message("none_found.slow_places")


def nothing_found(result: Diagnosis) -> Message:
    """Return what stands where there are no findings: as much of an all-clear as is known."""
    if result.unknown_causes:
        return message("none_found.unknown", because=list(result.unknown_causes))
    unknown = sum(bar.frac for bar in result.waterfall if bar.name in (UNATTRIBUTED, UNSEPARATED))
    costly = [cause for cause in result.causes if cause.worth_frac >= MIN_COST]
    if costly:
        named = [
            message("none_found.cause", kind=cause.kind.replace("_", " "), cost=cause.worth_frac)
            for cause in costly
        ]
        return message("none_found.no_place", causes=named)
    if unknown < MIN_COST:
        return message("none_found.nothing", least=MIN_COST)
    return message(
        "none_found.nothing_known", least=MIN_COST, attributed=1 - unknown, unknown=unknown
    )
