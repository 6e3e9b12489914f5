"""Axes whose transfers take longer at times than undisturbed ones, and where and when most of it is.

Not what transfers take that nothing hides, which is there on an undisturbed wire too, nor a
place that is known to be bad (``links``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.listing import listed
from meshscope.probe.schema.terms import FindingKind

from ..account import Account
from ..causes import MIN_CONCENTRATION, MIN_OVER_OTHERS, both_ways, places, wire_excess
from ..causes.wires import WIRE_REFERENCE, WireExcess
from ..labels import axis_label
from ..results import Cause, Finding, Where
from .bad_steps import BadSteps, bad_steps
from .grading import MIN_COST, severity
from .starved import CONFIDENCE, REMEDY, starved_ends

MOST_TIMES = 1000.0
"""From so many times the undisturbed wire on, clocks and not wires make the ratio."""


class _Most(NamedTuple):
    """Where and when most of the excess of an axis is; the whole axis, or all steps, if nowhere."""

    who: str
    where: Where
    places: tuple[str, ...]
    """The links or groups that it is on; empty where no place holds most of it."""
    place_frac: float
    """Share of the excess that is on them."""
    when: BadSteps
    """The steps that carry it."""
    longer: str
    """By how much the wire time exceeds the undisturbed one there, in words."""


def uneven_wires(account: Account) -> Iterator[Finding]:
    """An axis whose wires are slower at times, by what even wires would return."""
    causes = [
        cause
        for cause in account.causes("slow_wire")
        if max(cause.share_frac, cause.removal_gain_frac) >= MIN_COST
    ]
    excess = wire_excess(account.transfers()) if causes else None
    for cause in causes:
        if excess is not None:
            yield _finding(account, cause, _most(account, cause, excess))


def _finding(account: Account, cause: Cause, most: _Most) -> Finding:
    where = most.where if most.when.are_all else {**most.where, **most.when.where}
    when = "on average" if most.when.are_all else most.when.words
    evidence = [
        f"undisturbed is the fastest {WIRE_REFERENCE:.0%} of like transfers; what those of the "
        f"{axis_label(cause.where['axis'])} axis take longer costs {cause.share_frac:.1%} of the step",
    ]
    if most.places:
        evidence.append(f"{most.place_frac:.0%} of that time is on {listed(most.places, most=8)}")
    if not most.when.are_all:
        evidence.append(f"{most.when.held_frac:.0%} of it is {most.when.words}")
    starved = starved_ends(account, account.windows.ranks.tolist())
    evidence += starved
    return Finding(
        kind=FindingKind.SLOW_WIRE,
        steps=most.when.steps,
        severity=severity(cause.removal_gain_frac),
        where=where,
        claim=f"Transfers on {most.who} take {most.longer} {when}",
        cost_frac=cause.share_frac,
        removal_gain_frac=cause.removal_gain_frac,
        confidence=CONFIDENCE if starved else 0.6,
        evidence=tuple(evidence),
        remedy=(REMEDY if starved else "") + _remedy(most),
    )


def _remedy(most: _Most) -> str:
    if len(most.places) > 1:
        return f"Check the hardware path of {listed(most.places, most=8)}, and what they share"
    if most.places:
        return (
            f"Record more steps: if {most.places[0]} is slow again, check its hardware path (errors, "
            "congestion, placement); if not, it was a passing disturbance"
        )
    return (
        "Look at what else uses the network at that time: other jobs, checkpoints, storage, paths "
        "that collide; no single link or group explains it"
    )


def _most(account: Account, cause: Cause, excess: WireExcess) -> _Most:
    """Return where most of the excess of an axis is.

    On the slow places that have no cause of their own, if they hold it; else on one place, by the
    rule that places stalls of the host.
    """
    axis, cost_frac = cause.where["axis"], max(cause.share_frac, cause.removal_gain_frac)
    rows = _rows(account.transfers(), axis, excess)
    total = float(rows["excess_ns"].sum())
    where: Where = {"axis": axis}
    names: tuple[str, ...] = ()
    by_place = rows.groupby("place")["excess_ns"].sum()
    name, top = str(by_place.idxmax()), float(by_place.max())
    others = (total - top) / max(len(by_place) - 1, 1)
    if rows.loc[rows["is_slow_place"], "excess_ns"].sum() > MIN_CONCENTRATION * total:
        rows = rows[rows["is_slow_place"]]
        names = tuple(_name(own.where) for own in excess.unnamed if own.where["axis"] == axis)
    elif len(by_place) > 1 and top > max(MIN_CONCENTRATION * total, MIN_OVER_OTHERS * others):
        rows = rows[rows["place"] == name]
        where = {"axis": axis, "link": name}
        if not rows["is_p2p"].iloc[0]:
            where = {"axis": axis, "group_id": name}
        names = (_name(where),)
    place_frac = float(rows["excess_ns"].sum()) / total
    when = bad_steps(account.windows, rows.groupby("step")["excess_ns"].sum(), cost_frac)
    rows = rows[rows["step"].isin(when.steps)]
    who = f"the {axis_label(axis)} axis"
    if names:
        who = f"{names[0] if len(names) == 1 else f'{len(names)} more slow places'} of {who}"
    return _Most(who, where, names, place_frac, when, longer(rows))


def longer(rows: pd.DataFrame) -> str:
    """Return by how much transfers take longer than undisturbed ones; these may take no time that is seen."""
    wire_ns, excess_ns = float(rows["wire_ns"].sum()), float(rows["excess_ns"].sum())
    if wire_ns - excess_ns < wire_ns / MOST_TIMES:
        return f"{excess_ns / len(rows) / 1e6:.2f} ms longer than undisturbed ones, which take next to none,"
    return f"{wire_ns / (wire_ns - excess_ns):.1f} x as long as undisturbed ones"


def _rows(frame: pd.DataFrame, axis: str, excess: WireExcess) -> pd.DataFrame:
    """Return place, step and excess of the transfers of an axis whose wire time is known."""
    is_slow_place = np.zeros(len(frame), dtype=bool)
    for own in excess.unnamed:
        is_slow_place |= own.events
    at = np.flatnonzero((frame["axis"] == axis).to_numpy() & frame["wire_ns"].notna().to_numpy())
    columns = {name: frame[name].to_numpy()[at] for name in ("is_p2p", "step", "wire_ns")}
    return pd.DataFrame(
        {
            "place": both_ways(places(frame)).to_numpy()[at],
            "excess_ns": excess.rest[at],
            "is_slow_place": is_slow_place[at],
            **columns,
        }
    )


def _name(where: Where) -> str:
    return f"link {where['link']}" if "link" in where else f"group {where['group_id']}"
