"""Transfers: exposed on an axis, or slower in one group than in its like."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from meshscope.probe.schema.terms import Axis, FindingKind

from ...explain.causes import Degraded, beyond_its_like
from ...explain.run_account import Account
from ...tables.classes import WIRE_CLASSES
from ...tables.results import Cause, Finding
from ...wording.message import Message, message
from ...wording.quantities import percent
from ...wording.words import axis_label, class_label
from .bad_steps import BadSteps, bad_steps
from .grading import MIN_COST, relief_words, severity
from .link_ends import Way, known_interfaces, shortage_of_like, slow_way
from .link_rates import rates_without_ceiling
from .starved import CONFIDENCE, REMEDY, starved_ends

MIN_EXPOSED = 0.03
"""Share of the step from which exposed transfers of an axis are worth a finding."""


def exposed_communication(account: Account) -> Iterator[Finding]:
    """Wire time of one axis that no compute hides."""
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
            claim=f"Transfers on the {axis_label(axis.value)} axis that no compute hides take {percent(cost)} of the step"
            f"{when.share_suffix}",
            cost_frac=cost,
            removal_gain_frac=None,
            confidence=0.8,
            evidence=(
                f"{class_label(name)}: {cost * account.windows.mean_ns / 1e6:.2f} ms per step, "
                f"{when.words}",
                *rates_without_ceiling(account, axis.value),
            ),
            remedy={
                Axis.DP: "Overlap gradient reduction with the backward pass; larger buckets; compress",
                Axis.TP: "Keep the group inside one node; sequence parallelism with overlapped collectives",
                Axis.EP: "Overlap the exchange of tokens with other compute (shared experts, another "
                "microbatch); keep experts of one group inside a node; fewer tokens or narrower types on the wire",
                Axis.PP: "Overlap sends and receives with compute; fewer, larger microbatches",
            }.get(axis, "Overlap it with compute, or send less"),
        )


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
            claim=f"Transfers on {place} of the {axis_label(cause.where['axis'])} axis take "
            f"{own.ratio:.1f} x as long {_against(own, when)}",
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
            remedy=(REMEDY if is_starved else "")
            + f"Check the hardware path of {place}{_from_to(way)}: errors, congestion, placement",
        )


def _from_to(way: Way | None) -> str:
    return "" if way is None else f" from host {way.source} to host {way.target}"


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


def _against(own: Degraded, when: BadSteps) -> str:
    """Say what a place is slow against, and when."""
    steps = when.words
    if when.are_all and own.step_frac < 1:
        # Its slow steps are more than chance, but nothing sets them apart one by one.
        steps = f"in {percent(own.step_frac, 0)} of the steps"
    if own.is_alone:
        return f"{steps} as in the rest"
    return f"as on the others {steps}"


def _evidence(own: Degraded, place: str) -> str:
    if own.is_alone:
        return (
            f"the steps of {place} are of two kinds with nothing between them, {percent(own.step_frac, 0)} of them slow; "
            "it is compared with its own others"
        )
    if own.step_frac == 1:
        return f"median wire time of {place} is {own.ratio:.2f} x that of similar transfers"
    return (
        f"in {percent(own.step_frac, 0)} of the steps the wire time of {place} is, on average, "
        f"{own.ratio:.2f} x the median of similar transfers"
    )


def _place(cause: Cause) -> str:
    where = cause.where
    return f"link {where['link']}" if "link" in where else f"group {where['group_id']}"
