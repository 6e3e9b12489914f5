"""Axes whose transfers take longer at times than undisturbed ones, and where and when most of it is.

Not what transfers take that nothing hides, which is there on an undisturbed wire too, nor a
place that is known to be bad (``links``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import FindingKind

from ...explain.causes import MIN_CONCENTRATION, MIN_OVER_OTHERS, both_ways, places
from ...explain.causes.like_wires import WIRE_REFERENCE
from ...explain.causes.wires import WireExcess
from ...explain.run_account import Account
from ...tables.results import Cause, Finding, Where
from ...wording.message import Message, message
from .bad_steps import BadSteps, bad_steps
from .grading import MIN_COST, severity
from .ports import other_traffic
from .starved import CONFIDENCE, PROCESSORS_FIRST, starved_ends

MOST_TIMES = 1000.0
"""From so many times the undisturbed wire on, clocks and not wires make the ratio."""


class Excess(NamedTuple):
    """By how much transfers take longer than undisturbed ones."""

    longer_ns: float
    """The mean of a transfer."""
    ratio: float | None
    """Of its time to the undisturbed one; None where that takes no time that is seen."""


class _Most(NamedTuple):
    """Where and when most of the excess of an axis is; the whole axis, or all steps, if nowhere."""

    who: Message
    where: Where
    places: tuple[Message, ...]
    """The links or groups that it is on; empty where no place holds most of it."""
    place_frac: float
    """Share of the excess that is on them."""
    when: BadSteps
    """The steps that carry it."""
    excess: Excess
    """By how much the wire time exceeds the undisturbed one there."""


def uneven_wires(account: Account) -> Iterator[Finding]:
    """An axis whose wires are slower at times, by what even wires would return."""
    causes = [cause for cause in account.causes("slow_wire") if cause.worth_frac >= MIN_COST]
    excess = account.wires() if causes else None
    for cause in causes:
        if excess is not None:
            yield _finding(account, cause, _most(account, cause, excess))


def _finding(account: Account, cause: Cause, most: _Most) -> Finding:
    where = most.where if most.when.are_all else {**most.where, **most.when.where}
    evidence: list[Message] = [message("slow_wire.baseline", share=WIRE_REFERENCE)]
    if most.places:
        share, named = most.place_frac, most.places
        evidence.append(message("slow_wire.on_places", share=share, places=named))
    if not most.when.are_all:
        when = most.when
        evidence.append(message("slow_wire.in_steps", share=when.held_frac, when=when.message))
    starved = starved_ends(account, account.windows.ranks.tolist())
    evidence += starved
    remedy = _remedy(account, most)
    if starved:
        remedy = message("slow_wire.remedy_starved", first=PROCESSORS_FIRST, then=remedy)
    return Finding(
        kind=FindingKind.SLOW_WIRE,
        steps=most.when.steps,
        severity=severity(cause.removal_gain_frac),
        where=where,
        claim=_claim(most),
        cost_frac=cause.share_frac,
        removal_gain_frac=cause.removal_gain_frac,
        confidence=CONFIDENCE if starved else 0.6,
        evidence=tuple(evidence),
        remedy=remedy,
    )


def _claim(most: _Most) -> Message:
    longer_ns, ratio = most.excess
    when = message("slow_wire.on_average") if most.when.are_all else most.when.message
    if ratio is None:
        return message("slow_wire.claim_longer", place=most.who, longer_ns=longer_ns, when=when)
    return message("slow_wire.claim", place=most.who, ratio=ratio, when=when)


def _remedy(account: Account, most: _Most) -> Message:
    if len(most.places) > 1:
        return message("slow_wire.remedy_places", places=most.places)
    if most.places:
        return message("slow_wire.remedy_place", place=most.places[0])
    if _stays_in_hosts(account, most.where["axis"]):
        return message("slow_wire.remedy_in_host")
    busy = next(other_traffic(account), None)
    if busy is not None:
        return message("slow_wire.remedy_traffic", host=busy.host, extra=busy.extra_bytes_per_s)
    return message("slow_wire.remedy_no_place")


def _stays_in_hosts(account: Account, axis: str) -> bool:
    """Tell whether all groups of an axis are inside one host each."""
    groups, clocks = account.trace.frame("group"), account.trace.clocks
    own = groups.loc[groups["axis"].astype(str) == axis, "ranks"]
    hosts = [{clocks.get(int(rank)) for rank in ranks} for ranks in own]
    return bool(hosts) and all(len(one) == 1 and None not in one for one in hosts)


def _most(account: Account, cause: Cause, excess: WireExcess) -> _Most:
    """Return where most of the excess of an axis is.

    On the slow places that have no cause of their own, if they hold it; else on one place, by the
    rule that places stalls of the host.
    """
    axis, cost_frac = cause.where["axis"], cause.worth_frac
    rows = _rows(account.transfers(), axis, excess)
    total = float(rows["excess_ns"].sum())
    where: Where = {"axis": axis}
    names: tuple[Message, ...] = ()
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
    return _Most(_who(axis, names), where, names, place_frac, when, excess_of(rows))


def _who(axis: str, names: tuple[Message, ...]) -> Message:
    if not names:
        return message("slow_wire.axis", axis=axis)
    if len(names) > 1:
        return message("slow_wire.places", places=len(names), axis=axis)
    return message("slow_wire.place", place=names[0], axis=axis)


def excess_of(rows: pd.DataFrame) -> Excess:
    """Return by how much transfers take longer than undisturbed ones; these may take no time that is seen."""
    wire_ns, excess_ns = float(rows["wire_ns"].sum()), float(rows["excess_ns"].sum())
    is_none = wire_ns - excess_ns < wire_ns / MOST_TIMES
    return Excess(excess_ns / len(rows), None if is_none else wire_ns / (wire_ns - excess_ns))


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


def _name(where: Where) -> Message:
    if "link" in where:
        return message("slow_wire.link", link=where["link"])
    return message("operation.group", group_id=where["group_id"])
