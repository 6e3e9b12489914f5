"""Time of most ranks in which the probe saw no pass, no communication and no known stall."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind, StepDetail

from ...account.ledger.unrecorded import UnrecordedPlace, unrecorded_places
from ...explain.run_account import Account
from ...tables.classes import UNATTRIBUTED
from ...tables.results import Finding
from ...wording.message import Message, message
from .bad_steps import bad_steps, per_step
from .grading import MIN_COST, severity
from .host import only_started

MIN_UNRECORDED = 0.05
"""Share of the step from which it is worth a finding: logging and bookkeeping stay below it."""
CONFIDENCE = 0.6
"""The time is measured; that it can be saved is not known."""
_MOST_PLACES = 3
"""The rest costs less than is worth a search."""


def unrecorded_time(account: Account) -> Iterator[Finding]:
    """Time that most ranks spend where a probe, which names all host time, has recorded nothing.

    What one rank loses there is a slow rank, and what devices idle has causes of its own: both
    have other rules.
    """
    trace = account.trace
    sees_all = trace.capabilities.names_host_time and account.windows.detail is StepDetail.FULL
    if not sees_all or trace.row_count("kernel") or only_started(account):
        return
    by_rank = account.ledger.by_step.groupby("rank")[["step_ns", UNATTRIBUTED]].sum()
    share = by_rank[UNATTRIBUTED] / by_rank["step_ns"]
    cost = float(share.quantile(0.5, interpolation="lower"))
    if cost < MIN_UNRECORDED:
        return
    by_step = account.class_by_step(UNATTRIBUTED)
    when = bad_steps(account.windows, by_step, cost, MIN_UNRECORDED)
    claim = message("unrecorded_time.claim", share=cost)
    if when.part is not None:
        claim = message("unrecorded_time.claim_when", share=cost, part=when.part)
    each = per_step(account.windows)
    step_ns = account.windows.step_time_ns
    places = unrecorded_places(account.ledger, MIN_COST)[:_MOST_PLACES]
    evidence = [_where(place, place.frac * step_ns, each) for place in places]
    if places:
        most = places[0]
        longest = {"longest_ns": most.longest_ns, "rank": most.rank, "step": most.step}
        evidence.append(message("unrecorded_time.longest", **longest))
    if len(share) > 1:
        least_ns, most_ns = float(share.min()) * step_ns, float(share.max()) * step_ns
        evidence.append(
            message("unrecorded_time.by_rank", least_ns=least_ns, most_ns=most_ns, each=each)
        )
    yield Finding(
        kind=FindingKind.HOST_STALL,
        severity=severity(cost),
        where=when.where,
        steps=when.steps,
        claim=claim,
        cost_frac=cost,
        removal_gain_frac=None,
        confidence=CONFIDENCE,
        evidence=tuple(evidence),
        remedy=message("unrecorded_time.remedy"),
        cause="unrecorded",
    )


def _where(place: UnrecordedPlace, own_ns: float, each: Message) -> Message:
    """Say how much lies between which two things that a rank does."""
    amount = {"own_ns": own_ns, "each": each}
    if place.after is None and place.before is None:
        return message("unrecorded_time.whole", **amount)
    if place.after is None:
        return message("unrecorded_time.first", before=place.before, **amount)
    if place.before is None:
        return message("unrecorded_time.last", after=place.after, **amount)
    return message("unrecorded_time.between", after=place.after, before=place.before, **amount)
