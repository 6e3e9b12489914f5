"""Links between hosts that move the same bytes in the same time in every step: the link itself is slow."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind, Severity

from ...explain.causes import SteadyLink
from ...explain.run_account import Account
from ...tables.results import Cause, Finding
from ...wording.message import Message, message
from .grading import MIN_COST, relief_words, severity
from .link_ends import interfaces
from .starved import CONFIDENCE, PROCESSORS_FIRST, starved_ends

CONFIDENCE_PRICED, CONFIDENCE_AT_MOST = 0.8, 0.6
"""Of a link whose ceiling is stated, and of one that nothing is faster than."""


def slow_rates(account: Account) -> Iterator[Finding]:
    """Links whose own rate is what takes long, by what their ceiling, or no wire at all, would return."""
    causes = [
        cause
        for cause in account.causes("slow_link")
        if "host" in cause.where and cause.worth_frac >= MIN_COST
    ]
    for link, _ in account.wires().steady if causes else []:
        for cause in causes:
            if cause.where == link.where:
                yield _finding(account, cause, link)


def _finding(account: Account, cause: Cause, link: SteadyLink) -> Finding:
    ranks = account.events.frame.loc[link.events, "rank"].unique().tolist()
    starved = starved_ends(account, ranks)
    hosts = _blamed(link)
    is_priced = link.ceiling_bytes_per_s is not None
    remedy = message("link_rate.remedy", hosts=hosts)
    if not is_priced:
        remedy = message("link_rate.remedy_unknown", hosts=hosts)
    if starved:
        remedy = message("slow_wire.remedy_starved", first=PROCESSORS_FIRST, then=remedy)
    grade = severity(cause.removal_gain_frac)
    confidence = CONFIDENCE_PRICED if is_priced else CONFIDENCE_AT_MOST
    return Finding(
        kind=FindingKind.SLOW_LINK,
        # The least that a faster link returns is not known.
        severity=Severity.WARNING if grade is Severity.CRITICAL and not is_priced else grade,
        where=cause.where,
        claim=_claim(link),
        cost_frac=cause.share_frac,
        removal_gain_frac=cause.removal_gain_frac,
        removal_gain_interval=cause.removal_gain_interval,
        confidence=CONFIDENCE if starved else confidence,
        evidence=(
            *_price(link, cause),
            *_groups(account, link),
            *([] if link.port is None else [message("link_rate.common", host=link.port)]),
            interfaces(account.trace, cause.where["host"]),
            *relief_words(cause, account.windows.step_time_ns),
            *starved,
        ),
        remedy=remedy,
        steps=tuple(account.windows.steps.tolist()),
    )


def _groups(account: Account, link: SteadyLink) -> Iterator[Message]:
    """Name the groups whose transfers a link carries, by axis."""
    events = account.events.frame.loc[link.events, ["axis", "group_id"]].astype(str)
    for axis in link.axes:
        names = events.loc[events["axis"] == axis, "group_id"]
        groups = tuple(name for name in link.groups if (names == name).any())
        yield message("link_rate.groups", axis=axis, groups=groups)


def rates_without_ceiling(account: Account, axis: str) -> Iterator[Message]:
    """Say at what rate the links of an axis run that is the same in every step, where no speed is stated."""
    for link, _ in account.wires().steady:
        if axis in link.axes and link.ceiling_bytes_per_s is None:
            yield message("link_rate.exposed", way=_way(link), rate=link.rate_bytes_per_s)


def _claim(link: SteadyLink) -> Message:
    way = _way(link)
    rate, ceiling = link.rate_bytes_per_s, link.ceiling_bytes_per_s
    if ceiling is None:
        return message("link_rate.claim", way=way, rate=rate)
    return message("link_rate.claim_share", way=way, rate=rate, share=rate / ceiling)


def _blamed(link: SteadyLink) -> tuple[str, ...]:
    """Return the hosts whose ports to look at: that of the port in common, the sender, or all."""
    one = link.port or link.source
    return link.hosts if one is None else (one,)


def _way(link: SteadyLink) -> Message:
    if link.port is not None:
        return message("link_rate.through", host=link.port)
    if link.source is not None:
        return message("link_rate.from_to", source=link.source, target=link.target)
    if link.target is not None:
        return message("link_rate.to", target=link.target)
    return message("link_rate.between", hosts=link.hosts)


def _price(link: SteadyLink, cause: Cause) -> Iterator[Message]:
    """Say what the price of a link rests on."""
    if link.ceiling_bytes_per_s is not None:
        yield message("link_rate.ceiling", ceiling=link.ceiling_bytes_per_s)
    else:
        yield message("link_rate.no_ceiling", most=max(0.0, cause.removal_gain_frac))
    yield message("link_rate.steady")
