"""Volumes of communication that differ from the formulas of the plan."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import Axis, FindingKind, Severity

from ...explain.run_account import Account
from ...explain.volumes.compare import ExpectedSeen, VolumeRow, expected_and_seen
from ...explain.volumes.reasons import REMEDIES, ReasonCode, reason_message
from ...tables.classes import WIRE_CLASSES
from ...tables.results import Finding
from ...wording.message import Message, message
from .grading import SEVERITIES, severity

_USUAL = frozenset({ReasonCode.EARLY_STOP, ReasonCode.OTHER_FORM})
"""Forms that are no fault: shown beside the volumes, and no finding."""


def unexpected_volumes(account: Account) -> Iterator[Finding]:
    """Raise one finding for each kind on an axis that differs by more than 2 %.

    The cost is the share of the axis' exposed transfers that the surplus has of its bytes: the
    most that sending as much as expected can return.
    """
    found = expected_and_seen(account.trace, account.windows, account.events.frame)
    unseen = set(account.unseen)
    for row in found.rows:
        if row.code is None or row.code in _USUAL or row.axis in unseen:
            continue
        cost = _cost(account, found, row)
        yield Finding(
            kind=FindingKind.COMMUNICATION_VOLUME,
            severity=max(severity(cost), Severity.WARNING, key=SEVERITIES.index),
            where={"axis": row.axis},
            claim=_claim(row),
            cost_frac=cost,
            removal_gain_frac=None,
            confidence=0.4 if row.code is ReasonCode.UNEXPLAINED else 0.7,
            evidence=tuple(_evidence(found, row)),
            remedy=REMEDIES.get(row.code, message("communication_volume.remedy")),
            cause=row.code.value,
        )


def _claim(row: VolumeRow) -> Message:
    place = {"axis": row.axis, "kind": row.kind}
    if row.code is ReasonCode.SMALL_BUCKETS:
        return message("communication_volume.claim_small", count=round(row.seen_count), **place)
    if row.difference_frac is None:
        return message("communication_volume.claim_not_expected", seen=row.seen_bytes, **place)
    return message("communication_volume.claim", change=row.difference_frac, **place)


def _evidence(found: ExpectedSeen, row: VolumeRow) -> Iterator[Message]:
    if row.code is not None:
        reason = reason_message(row.code, row.kind, row.amount, row.element_bytes)
        yield message("communication_volume.reason", reason=reason)
    yield message(
        "communication_volume.expected", count=round(row.expected_count), size=row.expected_bytes
    )
    yield message("communication_volume.seen", count=round(row.seen_count), size=row.seen_bytes)
    if not found.has_type:
        yield message("communication_volume.assumed", element_bytes=found.element_bytes)


def _cost(account: Account, found: ExpectedSeen, row: VolumeRow) -> float | None:
    surplus = row.seen_bytes - row.expected_bytes
    if surplus <= 0 or row.axis not in {axis.value for axis in Axis}:
        return None
    total = sum(one.seen_bytes for one in found.rows if one.axis == row.axis)
    names = dict(zip(Axis, WIRE_CLASSES, strict=True))
    return account.class_frac(names[Axis(row.axis)]) * surplus / total
