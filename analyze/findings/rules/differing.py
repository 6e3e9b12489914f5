"""Operations that ended although their members issued different things: nothing hung, and a result is wrong."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.sampling import FIRST_SEQ_BITS
from meshscope.probe.schema.terms import FindingKind, Severity

from ...account.differing import Differing, Shifted, differing_collectives
from ...account.differing_transfers import DifferingTransfers, differing_transfers
from ...explain.run_account import Account
from ...tables.results import Finding, Where
from ...tables.trace import Trace
from ...wording.message import Message, message
from .issued import differing_message, issued_by
from .mismatch import REMEDIES
from .standstill_words import SHOWN, group_message, where_of

_SURE = 0.9
"""Confidence where most members agree, so that it is plain who is wrong."""


def differing_operations(account: Account) -> Iterator[Finding]:
    """Collectives and messages of a recorded job that ended although their members differed."""
    yield from differing_findings(account.trace)


def differing_findings(trace: Trace) -> Iterator[Finding]:
    """Yield one finding for the members of a group that differ in one thing, however often."""
    found, shifted = differing_collectives(trace)
    for one in sorted(found, key=lambda one: -one.operations)[:SHOWN]:
        yield _of_collectives(trace, one)
    for astray in shifted[:SHOWN]:
        yield _of_shift(trace, astray)
    for transfers in differing_transfers(trace)[:SHOWN]:
        yield _of_transfers(trace, transfers)


def _of_collectives(trace: Trace, found: Differing) -> Finding:
    ranks = tuple(found.different)
    group = group_message(trace, found.group_id)
    if found.usual_ranks:
        claim = message(
            "mismatch.often",
            ranks=ranks,
            own=differing_message(found.what, next(iter(found.different.values()))),
            usual=differing_message(found.what, found.usual),
            operations=found.operations,
            group=group,
        )
    else:
        claim = message(
            "mismatch.different_often", ranks=ranks, operations=found.operations, group=group
        )
    evidence = [message("mismatch.all_ended")]
    evidence.append(_when(found.first_step, found.steps, found.seq))
    evidence += [
        issued_by(trace, found.group_id, (rank,), own)
        for rank, own in list(found.different.items())[:SHOWN]
    ]
    if found.usual_ranks:
        evidence.append(issued_by(trace, found.group_id, found.usual_ranks, found.usual))
    return _finding(
        where={**_where(ranks, trace), "group_id": found.group_id},
        claim=claim,
        evidence=tuple(evidence),
        confidence=_SURE if found.usual_ranks else 0.7,
        remedy=REMEDIES[found.what],
        cause=f"mismatch_{found.what}",
    )


def _of_shift(trace: Trace, found: Shifted) -> Finding:
    what = "extra" if found.own > found.usual else "left_out"
    return _finding(
        where={**_where((found.rank,), trace), "group_id": found.group_id},
        claim=message(
            "mismatch.shifted",
            ranks=(found.rank,),
            own=found.own,
            usual=found.usual,
            step=found.step,
            group=group_message(trace, found.group_id),
        ),
        evidence=(message("mismatch.shifted_after", step=found.step),),
        confidence=0.7,
        remedy=REMEDIES[what],
        cause=f"mismatch_{what}",
    )


def _of_transfers(trace: Trace, found: DifferingTransfers) -> Finding:
    ends = (found.source, found.target)
    sent, expected = found.sent, found.expected
    place = {
        "source": found.source,
        "target": found.target,
        "messages": found.messages,
        "group": group_message(trace, found.group_id),
    }
    if sent.size_bytes != expected.size_bytes:
        sizes = {"sent": max(sent.size_bytes, 0), "expected": max(expected.size_bytes, 0)}
        claim = message("mismatch.transfers", **place, **sizes)
    else:
        types = {"sent": sent.dtype, "expected": expected.dtype}
        claim = message("mismatch.transfers_typed", **place, **types)
    return _finding(
        where={**where_of(ends, trace), "group_id": found.group_id},
        claim=claim,
        evidence=(
            message("mismatch.messages_ended"),
            _when(found.first_step, found.steps, found.seq),
            issued_by(trace, found.group_id, (found.source,), sent, peer=found.target),
            issued_by(trace, found.group_id, (found.target,), expected, peer=found.source),
        ),
        confidence=0.7,
        remedy=message("mismatch.remedy_transfer"),
        cause="mismatch_transfer",
    )


def _when(step: int, steps: int, seq: int) -> Message:
    if step < 0:
        return message("mismatch.first_number", seq=seq)
    if seq >= 1 << FIRST_SEQ_BITS:
        return message("mismatch.first_in_step", step=step, steps=steps)
    return message("mismatch.first_step", step=step, seq=seq, steps=steps)


def _where(ranks: tuple[int, ...], trace: Trace) -> Where:
    where = where_of(ranks, trace)
    if len(ranks) == 1:
        where["rank"] = ranks[0]
    return where


def _finding(
    *,
    where: Where,
    claim: Message,
    evidence: tuple[Message, ...],
    confidence: float,
    remedy: Message,
    cause: str,
) -> Finding:
    return Finding(
        kind=FindingKind.MISMATCH,
        # Of two that differ one may be meant: a longer buffer can be filled in part.
        severity=Severity.CRITICAL if confidence >= _SURE else Severity.WARNING,
        where=where,
        claim=claim,
        cost_frac=None,
        removal_gain_frac=None,
        confidence=confidence,
        evidence=evidence,
        remedy=remedy,
        cause=cause,
    )
