"""Transfers whose two ends do not fit: both ranks are named, with the lines of the program, and no link."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind, Severity

from ...account.hangs.crossed_transfers import crossed_transfers
from ...account.hangs.hang import WaitGraph
from ...account.hangs.stacks import stack_messages
from ...account.hangs.unequal_transfers import UnequalTransfer, unequal_transfers
from ...tables.results import Finding
from ...tables.trace import Trace
from ...wording.message import Message, message
from .issued import issued_by
from .standstill_words import SHOWN, group_message, where_of


def unequal_transfer_findings(trace: Trace) -> Iterator[Finding]:
    """Yield a finding for the first transfer of each pair whose ends differ: nobody can say which end is right."""
    for found in unequal_transfers(trace)[:SHOWN]:
        ends = (found.source, found.target)
        yield Finding(
            kind=FindingKind.HANG,
            severity=Severity.CRITICAL,
            where={**where_of(ends, trace), "group_id": found.group_id},
            claim=_claim(trace, found),
            cost_frac=None,
            removal_gain_frac=None,
            confidence=0.9,
            evidence=tuple(_evidence(trace, found)),
            remedy=message("mismatch.remedy_transfer"),
            cause="mismatch_transfer",
        )


def _evidence(trace: Trace, found: UnequalTransfer) -> Iterator[Message]:
    ends = (found.source, found.target)
    pair = (
        (found.source, found.sent, found.target, found.sent_id),
        (found.target, found.expected, found.source, found.expected_id),
    )
    issued = tuple(
        issued_by(trace, found.group_id, (rank,), issue, peer=peer, place=_place(trace, rank, at))
        for rank, issue, peer, at in pair
    )
    stacks = tuple(stack_messages(trace, ends, most=SHOWN))
    yield from (*issued, *stacks)
    is_live = trace.capabilities.records_whole_life
    if is_live and not stacks and all(one.code == "mismatch.issued" for one in issued):
        yield message("mismatch.no_line")


def crossed_transfer_findings(trace: Trace, graph: WaitGraph) -> Iterator[Finding]:
    """Yield a finding for each send to a rank that waits for a message of another one."""
    for found in crossed_transfers(trace, graph)[:SHOWN]:
        ends = (found.source, found.target)
        yield Finding(
            kind=FindingKind.HANG,
            severity=Severity.CRITICAL,
            where={**where_of(ends, trace), "group_id": found.group_id},
            claim=message(
                "mismatch.crossed",
                source=found.source,
                target=found.target,
                other=found.other,
                group=group_message(trace, found.group_id),
            ),
            cost_frac=None,
            removal_gain_frac=None,
            confidence=0.7,
            evidence=(
                _issued(
                    trace,
                    found.source,
                    message("mismatch.send_to", peer=found.target),
                    found.sent_id,
                ),
                _issued(
                    trace,
                    found.target,
                    message("mismatch.recv_from", peer=found.other),
                    found.received_id,
                ),
                message("mismatch.never_sent", other=found.other, target=found.target),
                *stack_messages(trace, ends, most=SHOWN),
            ),
            remedy=message("mismatch.remedy_crossed"),
            cause="mismatch_peer",
        )


def _claim(trace: Trace, found: UnequalTransfer) -> Message:
    sent, expected = found.sent, found.expected
    place = {"source": found.source, "target": found.target}
    group = group_message(trace, found.group_id)
    if sent.dtype and expected.dtype and sent.dtype != expected.dtype:
        types = {"sent": sent.dtype, "expected": expected.dtype}
        return message("mismatch.transfer_typed", **place, group=group, **types)
    if sent.size_bytes > 0 and expected.size_bytes > 0 and sent.size_bytes != expected.size_bytes:
        sizes = {"sent": sent.size_bytes, "expected": expected.size_bytes}
        return message("mismatch.transfer", **place, group=group, **sizes)
    counts = {"sent": sent.elements, "expected": expected.elements}
    return message("mismatch.transfer_counted", **place, group=group, **counts)


def _issued(trace: Trace, rank: int, what: Message, event_id: int) -> Message:
    """Return one end of a transfer, and where in the program, where that was recorded."""
    place = _place(trace, rank, event_id)
    if place is None:
        return message("mismatch.issued", ranks=(rank,), issue=what)
    return message("mismatch.issued_at", ranks=(rank,), issue=what, place=place)


def _place(trace: Trace, rank: int, event_id: int) -> str | None:
    calls = trace.frame("transfer_call")
    own = calls.loc[(calls["rank"] == rank) & (calls["event_id"] == event_id), "place"]
    return next((place for place in own if isinstance(place, str) and place), None)
