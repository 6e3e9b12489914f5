"""Transfers: exposed on an axis, or slower in one group than in its like."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from meshscope.probe.schema.terms import Axis, FindingKind

from ...explain.causes import Degraded, beyond_its_like
from ...explain.run_account import Account
from ...tables.classes import UNSPLIT, WIRE_CLASSES
from ...tables.results import Cause, Finding
from ...wording.message import Message, message
from .bad_steps import BadSteps, bad_steps
from .grading import MIN_COST, relief_words, severity
from .link_ends import Way, known_interfaces, shortage_of_like, slow_way
from .link_rates import rates_without_ceiling
from .starved import CONFIDENCE, starved_ends

MIN_EXPOSED = 0.03
"""Share of the step from which exposed transfers of an axis are worth a finding."""
_REMEDIES = {
    Axis.DP.value: message("exposed_communication.remedy_dp"),
    Axis.TP.value: message("exposed_communication.remedy_tp"),
    Axis.EP.value: message("exposed_communication.remedy_ep"),
    Axis.PP.value: message("exposed_communication.remedy_pp"),
}


def exposed_communication(account: Account) -> Iterator[Finding]:
    """Wire time of one axis that no compute hides; and time that may be wire or waiting."""
    for axis, name in zip(Axis, WIRE_CLASSES, strict=True):
        cost = account.class_frac(name)
        if cost < MIN_EXPOSED:
            continue
        when = bad_steps(account.windows, account.class_by_step(name), cost)
        yield Finding(
            kind=FindingKind.EXPOSED_COMMUNICATION,
            severity=severity(cost),
            where={"axis": axis.value, **when.where},
            steps=when.steps,
            claim=_exposed_claim(axis, cost, when),
            cost_frac=cost,
            removal_gain_frac=None,
            confidence=0.8,
            evidence=(
                _measured(account, name, cost, when),
                *rates_without_ceiling(account, axis.value),
            ),
            remedy=_REMEDIES.get(axis.value, message("exposed_communication.remedy")),
        )
    yield from _waiting_or_wire(account)


def _waiting_or_wire(account: Account) -> Iterator[Finding]:
    """Exposed communication of which nobody knows what part was waiting: ranks or operations are not in the capture."""
    cost = account.class_frac(UNSPLIT)
    if cost < MIN_EXPOSED:
        return
    when = bad_steps(account.windows, account.class_by_step(UNSPLIT), cost)
    yield Finding(
        kind=FindingKind.EXPOSED_COMMUNICATION,
        severity=severity(cost),
        where=when.where,
        steps=when.steps,
        claim=message("exposed_communication.claim_unsplit", cost=cost),
        cost_frac=cost,
        removal_gain_frac=None,
        confidence=0.8,
        evidence=(
            _measured(account, UNSPLIT, cost, when),
            message("exposed_communication.unsplit"),
        ),
        remedy=message("exposed_communication.remedy_unsplit"),
    )


def _measured(account: Account, name: str, cost: float, when: BadSteps) -> Message:
    cost_ns = cost * account.windows.mean_ns
    if not account.windows.has_marks:
        return message("exposed_communication.in_all", name=name, cost_ns=cost_ns)
    return message("exposed_communication.measured", name=name, cost_ns=cost_ns, when=when.message)


def _exposed_claim(axis: Axis, cost: float, when: BadSteps) -> Message:
    if axis is Axis.OTHER:
        return message("exposed_communication.claim_other", cost=cost)
    if when.part is None:
        return message("exposed_communication.claim", axis=axis.value, cost=cost)
    return message("exposed_communication.claim_when", axis=axis.value, cost=cost, part=when.part)


def slow_links(account: Account) -> Iterator[Finding]:
    """Groups and links whose transfers take far longer than those of their like."""
    causes = [
        cause
        for cause in account.causes("slow_link")
        if "host" not in cause.where and cause.worth_frac >= MIN_COST
    ]
    places = account.wires().places if causes else []
    degraded = [own for own, _ in places if isinstance(own, Degraded)]
    for cause in causes:
        own = next(own for own in degraded if own.where == cause.where)
        place = _place(cause)
        when = _slow_steps(account, own, cause)
        ends = _ends(account, own)
        starved = starved_ends(account, ends)
        like = shortage_of_like(account, [own], ends) if starved else None
        is_starved, way = bool(starved) and like is None, slow_way(account, own)
        yield Finding(
            kind=FindingKind.SLOW_LINK,
            severity=severity(cause.removal_gain_frac),
            where={**cause.where, **({} if way is None else {"host": way.source}), **when.where},
            steps=when.steps,
            claim=message(
                "slow_link.claim",
                place=place,
                axis=cause.where["axis"],
                ratio=own.ratio,
                against=_against(own, when),
            ),
            cost_frac=cause.share_frac,
            removal_gain_frac=cause.removal_gain_frac,
            confidence=CONFIDENCE if is_starved else 0.7,
            evidence=(
                _evidence(own, place),
                *([] if way is None else [message("slow_link.way", **way._asdict())]),
                *_shared(account, cause, causes, degraded),
                *known_interfaces(account.trace, ends),
                *relief_words(cause, account.windows.step_time_ns),
                *(starved if like is None else [like]),
            ),
            remedy=_remedy(place, way, is_starved=is_starved),
        )


def _remedy(place: Message, way: Way | None, *, is_starved: bool) -> Message:
    then = message("slow_link.remedy", place=place)
    if way is not None:
        hosts = {"source": way.source, "target": way.target}
        then = message("slow_link.remedy_way", place=place, **hosts)
    return message("crowded.remedy_then", then=then) if is_starved else then


def _ends(account: Account, own: Degraded) -> list[int]:
    """Return the ranks whose transfers are those of a place."""
    found: list[int] = account.events.frame.loc[own.events, "rank"].unique().tolist()
    return found


def _shared(
    account: Account, cause: Cause, causes: list[Cause], degraded: list[Degraded]
) -> Iterator[Message]:
    """Yield which other slow places end at the one rank that they all share with this one.

    What a rank sends on one axis waits behind what it sends on another, where both leave by one wire: its shares
    are then one price, and as shares they add up.
    """
    ends = {id(own): set(_ends(account, own)) for own in degraded}
    place = {id(one): next(own for own in degraded if own.where == one.where) for one in causes}
    common = ends[id(place[id(cause)])]
    others = []
    for other in causes:
        shared = common & ends[id(place[id(other)])]
        if other is not cause and len(shared) == 1:
            common = shared
            others.append(other)
    if not others or len(common) != 1:
        return
    (rank,) = common
    names = tuple(
        message("slow_link.link", link=one.where["link"])
        if "link" in one.where
        else message("slow_link.group", group_id=one.where["group_id"])
        for one in others
    )
    share = cause.share_frac + sum(one.share_frac for one in others)
    code = message("slow_link.ends_there", rank=rank)
    if len(others) > 1:
        code = message("slow_link.end_there", rank=rank)
    yield message("slow_link.shared", places=names, rank_too=code, share=share)


def _slow_steps(account: Account, own: Degraded, cause: Cause) -> BadSteps:
    """Return the steps in which the transfers of a place take longer than their like."""
    frame = account.transfers()
    beyond = pd.Series(beyond_its_like(frame, own)).groupby(frame["step"].to_numpy()).sum()
    return bad_steps(account.windows, beyond, cause.worth_frac)


def _against(own: Degraded, when: BadSteps) -> Message:
    """Return what a place is slow against, and when."""
    steps = when.message
    if when.are_all and own.step_frac < 1:
        # Its slow steps are more than chance, but nothing sets them apart one by one.
        steps = message("slow_link.in_share", share=own.step_frac)
    if own.is_alone:
        return message("slow_link.against_rest", when=steps)
    return message("slow_link.against_others", when=steps)


def _evidence(own: Degraded, place: Message) -> Message:
    if own.is_alone:
        return message("slow_link.two_kinds", place=place, share=own.step_frac)
    if own.step_frac == 1:
        return message("slow_link.median", place=place, ratio=own.ratio)
    return message("slow_link.on_average", place=place, ratio=own.ratio, share=own.step_frac)


def _place(cause: Cause) -> Message:
    where = cause.where
    if "link" in where:
        return message("slow_wire.link", link=where["link"])
    return message("slow_link.of_group", group_id=where["group_id"])
