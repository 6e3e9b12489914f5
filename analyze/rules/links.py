"""Transfers: exposed on an axis, or slower in one group than in its like."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshscope.probe.schema.terms import Axis, FindingKind

from ..account import Account
from ..ledger import WIRE_CLASSES
from ..results import Finding, Where
from .grading import severity

MIN_EXPOSED = 0.03
"""Share of the step from which exposed transfers of an axis are worth a finding."""
MIN_LINK_GAIN = 0.02
MIN_LINK_RATIO = 1.3
"""A group is called slow when its wire time is that many times the others' of its axis."""


def exposed_communication(account: Account) -> Iterator[Finding]:
    """Wire time of one axis that no compute hides."""
    for axis, name in zip(Axis, WIRE_CLASSES, strict=True):
        cost = account.class_frac(name)
        if cost < MIN_EXPOSED:
            continue
        yield Finding(
            kind=FindingKind.EXPOSED_COMMUNICATION,
            severity=severity(cost),
            where={"axis": axis.value},
            claim=f"Transfers on the {axis.value} axis that no compute hides take {cost:.1%} of the step",
            cost_frac=cost,
            removal_gain_frac=None,
            confidence=0.8,
            evidence=(
                f"ledger class {name}: {cost * account.windows.step_time_ns / 1e6:.2f} ms per step",
            ),
            remedy={
                Axis.DP: "Overlap gradient reduction with the backward pass; larger buckets; compress",
                Axis.TP: "Keep the group inside one node; sequence parallelism with overlapped collectives",
                Axis.PP: "Overlap sends and receives with compute; fewer, larger microbatches",
            }.get(axis, "Overlap it with compute, or send less"),
        )


def slow_wires(account: Account) -> Iterator[Finding]:
    """Wire times of one axis far above those of its own undisturbed operations."""
    for cause in account.causes("slow_wire"):
        if cause.removal_gain_frac < MIN_LINK_GAIN:
            continue
        axis = cause.where["axis"]
        where, ratio = _slowest(account, axis)
        if ratio < MIN_LINK_RATIO:
            continue
        place = f"link {where['link']}" if "link" in where else f"group {where['group_id']}"
        yield Finding(
            kind=FindingKind.SLOW_LINK,
            severity=severity(cause.removal_gain_frac),
            where=where,
            claim=f"Transfers on {place} of the {axis} axis take {ratio:.1f} x as long as on the others",
            cost_frac=cause.share_frac,
            removal_gain_frac=cause.removal_gain_frac,
            confidence=0.7,
            evidence=(f"median wire time of {place} is {ratio:.2f} x that of its like",),
            remedy=f"Check the hardware path of {place}: errors, congestion, placement",
        )


def _slowest(account: Account, axis: str) -> tuple[Where, float]:
    """Return the group or link with the largest wire time against its like, and the ratio.

    Sends and receives are compared by their two ends, since many links share a group.
    """
    frame = account.events.frame
    frame = frame[(frame["axis"] == axis) & frame["wire_ns"].notna()]
    like = frame.groupby(["kind", "size_bytes"])["wire_ns"].transform("median")
    place = frame["link"].where(frame["is_p2p"], frame["group_id"])
    relative = (frame["wire_ns"] / like).groupby([frame["is_p2p"], place]).median()
    top = int(relative.to_numpy().argmax())
    is_link, name = relative.index[top]
    others = np.delete(relative.to_numpy(), top)
    ratio = float(relative.iloc[top] / np.median(others)) if len(others) else 1.0
    where: Where = {"axis": axis}
    where["link" if is_link else "group_id"] = str(name)
    return where, ratio
