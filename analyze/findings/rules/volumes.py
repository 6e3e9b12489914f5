"""Volumes of communication that differ from the formulas of the plan."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import Axis, FindingKind, Severity

from ...explain.run_account import Account
from ...explain.volumes.compare import ExpectedSeen, VolumeRow, expected_and_seen
from ...explain.volumes.reasons import REMEDIES, ReasonCode, kind_label, reason_text
from ...tables.classes import WIRE_CLASSES
from ...tables.results import Finding
from ...wording.quantities import percent_change
from ...wording.words import axis_label
from .grading import SEVERITIES, severity

_USUAL = frozenset({ReasonCode.EARLY_STOP, ReasonCode.OTHER_FORM})
"""Forms that are no fault: shown beside the volumes, and no finding."""


def unexpected_volumes(account: Account) -> Iterator[Finding]:
    """Raise one finding for each kind on an axis that differs by more than 2 %.

    The cost is the share of the axis' exposed transfers that the surplus has of its bytes: the
    most that sending as much as expected can return.
    """
    found = expected_and_seen(account.trace, account.windows)
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
            remedy=REMEDIES.get(
                row.code, "Compare with meshscope plan for the same model and mesh"
            ),
            cause=row.code.value,
        )


def _claim(row: VolumeRow) -> str:
    axis, kind = axis_label(row.axis), kind_label(row.kind)
    if row.code is ReasonCode.SMALL_BUCKETS:
        return f"{row.seen_count:,.0f} {kind} per step on the {axis} axis carry what few would"
    if row.difference_frac is None:
        return (
            f"{row.seen_bytes / 1e6:,.1f} MB of {kind} per step on the {axis} axis are not expected"
        )
    return f"{kind[:1].upper()}{kind[1:]} on the {axis} axis carry {percent_change(row.difference_frac)} against the plan"


def _evidence(found: ExpectedSeen, row: VolumeRow) -> Iterator[str]:
    if row.code is not None:
        text = reason_text(row.code, row.kind, row.amount, row.element_bytes)
        yield f"likely reason: {text}"
    yield (
        f"expected {row.expected_count:,.0f} operations of {row.expected_bytes / 1e6:,.3f} MB together "
        "per step of one pipeline"
    )
    yield f"seen {row.seen_count:,.0f} of {row.seen_bytes / 1e6:,.3f} MB"
    if not found.has_type:
        yield f"assumed {found.element_bytes} bytes per activation: the type is not recorded"


def _cost(account: Account, found: ExpectedSeen, row: VolumeRow) -> float | None:
    surplus = row.seen_bytes - row.expected_bytes
    if surplus <= 0 or row.axis not in {axis.value for axis in Axis}:
        return None
    total = sum(one.seen_bytes for one in found.rows if one.axis == row.axis)
    names = dict(zip(Axis, WIRE_CLASSES, strict=True))
    return account.class_frac(names[Axis(row.axis)]) * surplus / total
