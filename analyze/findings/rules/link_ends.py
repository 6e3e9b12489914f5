"""The two ends of a slow place: which host sends it, and whether the hosts of its like are as short of processors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pandas as pd

from ...explain.causes import Degraded
from ...explain.causes.common_port import UNEQUAL
from ...explain.causes.degraded import MAX_OFTEN
from ...explain.run_account import Account
from ...wording.message import Message, message
from .starved import MOST_TIMES, load_of_hosts

AS_SHORT = 1.25
"""Hosts with that many times the runnable tasks a processor of others, at most, are as short as these."""


class Way(NamedTuple):
    """From which host to which a group is slow."""

    source: str
    target: str
    late_ns: float
    """By how much the target leaves later, the median."""


def slow_way(account: Account, own: Degraded) -> Way | None:
    """Return which of two hosts a slow group waits for; None where both leave it together, or it has other hosts.

    A host leaves a collective when it has received all: the one that leaves last waits for what the other sends.
    """
    frame = account.transfers()
    rows = frame.loc[own.events & ~frame["is_p2p"].to_numpy(bool), ["rank", "wire_ns"]]
    clocks = account.trace.clocks
    if not set(rows["rank"].unique().tolist()) <= set(clocks):
        return None
    wire = rows.groupby(rows["rank"].map(account.trace.clock_of))["wire_ns"].median().sort_values()
    if len(wire) != 2 or not wire.iloc[1] > UNEQUAL * wire.iloc[0]:
        return None
    return Way(str(wire.index[0]), str(wire.index[1]), float(wire.iloc[1] - wire.iloc[0]))


def shortage_of_like(
    account: Account, places: Sequence[Degraded], ranks: Iterable[int]
) -> Message | None:
    """Return what shows that processors do not make places slow: those of their fast like are as short.

    That holds between hosts: inside one, which ranks get a processor is what differs. It holds for what is slow always,
    since a load follows slowly. And it holds for what is slower by more than ``MOST_TIMES`` what the like take: so much
    chance makes of a shortage at most.
    """
    trace, load = account.trace, load_of_hosts(account)
    own = {trace.clock_of(rank) for rank in ranks if rank in trace.clocks}
    place = max(places, key=lambda place: place.ratio)
    is_steady = not place.is_alone and place.step_frac > MAX_OFTEN
    if not is_steady or place.ratio <= 1 + MOST_TIMES or not own or not own <= load.keys():
        return None
    like = _hosts_of_like(account, place)
    if not like or not like <= load.keys():
        return None
    most, least = max(load[host] for host in own), min(load[host] for host in like)
    if most > AS_SHORT * least:
        return None
    return message("crowded.like_too", own=round(most, 1), like=round(least, 1))


def _hosts_of_like(account: Account, place: Degraded) -> set[str]:
    """Return the hosts between which the like of a place moves."""
    frame, trace = account.events.frame, account.trace
    if not _crosses(account, frame[place.events]):
        return set()
    kinds = frame.loc[place.events, "kind"].unique()
    axis = frame["axis"].astype(str) == place.where["axis"]
    rows = frame[place.like & axis.to_numpy(bool) & frame["kind"].isin(kinds).to_numpy(bool)]
    crossing = [own for _, own in rows.groupby("group_id", observed=True) if _crosses(account, own)]
    found = {rank for own in crossing for rank in own["rank"].unique().tolist()}
    return {trace.clock_of(rank) for rank in found if rank in trace.clocks}


def _crosses(account: Account, rows: pd.DataFrame) -> bool:
    """Return whether the members of events lie on several hosts."""
    ranks = set(rows["rank"].unique().tolist())
    clocks = account.trace.clocks
    return ranks <= set(clocks) and len({account.trace.clock_of(rank) for rank in ranks}) > 1
