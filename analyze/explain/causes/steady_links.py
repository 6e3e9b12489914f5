"""Links between hosts that move the same bytes in the same time in every step, whoever shares them.

A disturbance comes and goes. What a link carries in a step, over the time for which it is busy, is the link's own
where it is the same in every step, while the single transfers, which wait for one another, differ::

    group a   |=====a=====|             each transfer: 1 or 2 times its shortest
    group b      |========b========|
    link      |aaabababababbbbbbbbb|    its bytes over its busy time: always the same

No transfer that was faster for a while tells what such a link gives: it only had the link for itself. The speed that is
stated does, for what is below it; without one the time of the transfers is the most that a faster link returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...account.links.ceiling import port_speeds
from ...account.links.own import crossing_bytes
from ...tables.arrays import BoolArray, FloatArray, IntArray, numbers_in
from ...tables.intervals import covered_length, pair, union
from ...tables.results import Where
from ...tables.trace import Trace
from .common_port import MIN_LINKS, UNEQUAL, WAYS, CommonPort, common_ports, through
from .one_port import ports_of_ranks

MIN_STEPS = 4
"""With fewer steps nothing is the same in every one of them."""
STEADY = 0.02
"""Mean deviation of the rate of a step, as a share of the median one, up to which a link is steady."""
FAR_LESS = 0.25
"""Part of what single transfers differ by that is left of it in the rates of steps, at most: that of transfers
which vary one by one is 1."""
LEAST_SEEN = 0.005
"""The same share from which the rates of steps must explain it."""
HOP_NS = 50_000.0
"""What a message needs besides its bytes, at most; a collective of n members has 2 (n - 1) in turn."""


class Side(NamedTuple):
    """The transfers of one axis on one host."""

    axis: str
    host: str
    rows: pd.DataFrame
    rate_bytes_per_s: float
    busy_ns: float
    """Per step."""
    hops_ns: float
    """Per step."""


def crossing_rows(
    frame: pd.DataFrame, trace: Trace, seems_disturbed_ns: FloatArray
) -> tuple[pd.DataFrame, list[str]]:
    """Return the transfers that cross hosts which are known, as a row each, and the host of each numbered port."""
    known = frame["wire_ns"].notna() & frame["end_ns"].notna() & ~frame["is_inferred"]
    known &= frame["rank"].isin([*trace.clocks])
    if len(set(trace.clocks.values())) < 2 or not known.any():
        return pd.DataFrame(), []
    crossing = crossing_bytes(trace, frame)
    moved = np.maximum(crossing.sent_bytes, crossing.received_bytes)
    port, source, hosts = _ports(frame, trace)
    # What a sender sees of a message ends where it lies in a buffer.
    is_seen = ~(frame["is_p2p"] & frame["is_send"]).to_numpy(bool)
    chosen = known.to_numpy(bool) & (moved > 0) & is_seen
    rows = pd.DataFrame(
        {
            "axis": frame["axis"].astype(str),
            "host": crossing.host,
            "group_id": frame["group_id"].astype(str),
            "join": frame["join"],
            "port": port,
            "source": source,
            "is_p2p": frame["is_p2p"].to_numpy(bool),
            "kind": frame["kind"].astype(str),
            "size_bytes": frame["size_bytes"],
            "step": frame["step"],
            "moved_bytes": moved,
            "end_ns": frame["end_ns"],
            "wire_ns": frame["wire_ns"],
            "disturbed_ns": seems_disturbed_ns,
        }
    )
    found: pd.DataFrame = rows[chosen & (rows["wire_ns"] > 0).to_numpy(bool)]
    return found, hosts


def _ports(frame: pd.DataFrame, trace: Trace) -> tuple[IntArray, IntArray, list[str]]:
    """Return the port of each member, that of who sends a message to it (-1 of a collective), and the host of each."""
    link = frame["link"].astype("category").cat
    names = [str(name).split("->") for name in link.categories]
    senders = [int(ends[0]) if len(ends) == 2 and ends[0].isdigit() else -1 for ends in names]
    source = np.array([*senders, -1], np.int64)[link.codes.to_numpy()]
    source = np.where(frame["is_p2p"].to_numpy(bool), source, -1)
    rank = frame["rank"].to_numpy(np.int64)
    ranks = np.unique(np.concatenate([rank, source[source >= 0]]))
    ports = ports_of_ranks(trace, ranks.tolist())
    numbers = {name: at for at, name in enumerate(dict.fromkeys(ports))}
    number = np.array([numbers[name] for name in ports], np.int64)
    of_source = number[np.searchsorted(ranks, np.maximum(source, ranks[0]))]
    of_member = number[np.searchsorted(ranks, rank)]
    return of_member, np.where(source < 0, -1, of_source), [host for host, _ in numbers]


def steady_sides(rows: pd.DataFrame, trace: Trace) -> Iterator[Side | None]:
    """Yield the transfers of each axis on each host, where they are those of a steady link."""
    members = dict(
        zip(
            trace.frame("group")["group_id"].astype(str),
            trace.frame("group")["ranks"].map(len),
            strict=True,
        )
    )
    for axis, of_axis in rows.groupby("axis"):
        like = of_axis.groupby(["kind", "size_bytes"])["wire_ns"].transform("median")
        varied = (of_axis["wire_ns"] - like).abs().sum() / float(like.sum())
        for host, own in of_axis.groupby("host"):
            yield _side(str(axis), str(host), own, float(varied), members)


def _side(
    axis: str, host: str, rows: pd.DataFrame, varied: float, members: dict[str, int]
) -> Side | None:
    """Return the transfers of an axis on a host; None where their rate is not the same in every step."""
    moved, busy = by_step(rows)
    if len(busy) < MIN_STEPS or busy.min() <= 0:
        return None
    rate = moved / busy
    usual = float(np.median(rate))
    spread = float(np.abs(rate / usual - 1.0).mean())
    wire = rows["wire_ns"].to_numpy(np.float64)
    # Transfers that vary one by one even out in a step, the more of them it has.
    alike = float(wire.sum() ** 2 / (wire**2).sum()) / len(busy)
    if spread > STEADY:
        return None
    is_shared = spread * np.sqrt(max(alike, 1.0)) <= FAR_LESS * varied
    is_disturbed = rows["disturbed_ns"].sum() > LEAST_SEEN * wire.sum()
    if is_disturbed and not is_shared:
        return None
    in_turn = 2 * (rows["group_id"].map(members).fillna(2) - 1)
    hops_ns = HOP_NS * float(in_turn.where(~rows["is_p2p"], 1).sum()) / len(busy)
    return Side(axis, host, rows, usual * 1e9, float(np.median(busy)), hops_ns)


def by_step(rows: pd.DataFrame) -> tuple[FloatArray, FloatArray]:
    """Return how many bytes transfers move in each step, and how long at least one is on its way, ns; steps in order."""
    moved = rows.groupby("step")["moved_bytes"].sum().to_numpy(np.float64)
    step = np.unique(rows["step"].to_numpy(), return_inverse=True)[1]
    end = rows["end_ns"].to_numpy(np.int64)
    start = end - rows["wire_ns"].to_numpy(np.int64)
    # One step after the other on one line, for the transfers of two may overlap.
    first, length = start.min(), end.max() - start.min() + 1
    place = step * length - first
    merged = union(pair(start + place, end + place))
    begin = np.arange(step.max() + 1) * length
    return moved, covered_length(merged, begin, begin + length).astype(np.float64)


LEAST_EXCESS = 0.1
"""Share of the time of its transfers that seems to be disturbance, from which a link is judged by its rate."""
MOST_OF_CEILING = 0.5
"""Share of the stated speed up to which a link is slow: protocols and short messages take a part of it."""


class SteadyLink(NamedTuple):
    """What leaves or enters hosts over one link."""

    where: Where
    """axis that takes the longest, and the host: the sender where that is known, else the one whose transfers are the
    slowest."""
    axes: tuple[str, ...]
    """All whose transfers it carries, the one of ``where`` first."""
    source: str | None
    """The host that sends over it; None where that is not distinguished from those that receive."""
    target: str | None
    """The host that what it carries reaches last; None where it reaches all of them together."""
    hosts: tuple[str, ...]
    """All that its groups connect."""
    groups: tuple[str, ...]
    """The groups that use it, by name."""
    rate_bytes_per_s: float
    """In the median step."""
    ceiling_bytes_per_s: float | None
    """What the ports of its hosts carry, as it is stated; None unknown."""
    events: BoolArray
    """Which rows of the events are its transfers."""
    excess_frac: float
    """Share of their time that a link at its ceiling would not take, 0 where it is not slow; without a ceiling
    all but that of the hops, 0 where nothing seems to disturb it."""
    port: str | None = None
    """The host whose port links of several axes have in common; None where it is one link, or nothing tells which."""
    way: str = ""
    """``out`` or ``in`` through that port; empty where both."""
    place: int | None = None
    """The slower place that shares that port."""


def steady_links(
    frame: pd.DataFrame,
    trace: Trace,
    seems_disturbed_ns: FloatArray,
    places: Sequence[tuple[BoolArray, FloatArray]] = (),
) -> list[SteadyLink]:
    """Return the links between hosts whose rate, and not a disturbance, makes their transfers long.

    Args:
        frame: The events as what passes between ranks.
        trace: The capture.
        seems_disturbed_ns: What each event takes beyond the undisturbed wire of its like.
        places: Which events are those of each place that is always slower than its like, and what they take beyond it.

    Returns:
        One a set of hosts that groups connect, of several axes where these run at one rate; the one that takes the
        longest first.
    """
    if len(numbers_in(frame["step"].to_numpy())) < MIN_STEPS:
        return []
    rows, hosts = crossing_rows(frame, trace, seems_disturbed_ns)
    if rows.empty:
        return []
    speeds = port_speeds(trace)
    sides = [side for side in steady_sides(rows, trace) if side is not None]
    links = _of_one_rate(_connected(sides))
    found = dict(enumerate(_link(frame, trace, own, speeds) for own in links))
    slow = [
        at for at, link in found.items() if link.excess_frac > 0 and not placed(frame, link, places)
    ]
    of_link = [pd.concat([side.rows for side in links[at]]) for at in slow]
    of_place = [rows[own[frame.index.get_indexer(rows.index)]] for own, _ in places]
    for common in common_ports([*of_link, *of_place], rows):
        own = [slow[at] for at in common.links if at < len(slow)]
        beside = [at - len(slow) for at in common.links if at >= len(slow)]
        is_priced = bool(own) and all(found[at].ceiling_bytes_per_s for at in own)
        if len(own) < MIN_LINKS and not (beside and is_priced):
            continue
        found = {at: link for at, link in found.items() if at not in own}
        joined = [side for at in own for side in links[at]]
        link = _link(frame, trace, joined, speeds, (common, hosts))
        found[own[0]] = link._replace(place=beside[0] if beside and is_priced else None)
    wire = frame["wire_ns"].fillna(0.0).to_numpy(np.float64)
    return sorted(
        found.values(), key=lambda link: -float(wire[link.events].sum() * link.excess_frac)
    )


def placed(
    frame: pd.DataFrame, link: SteadyLink, places: Sequence[tuple[BoolArray, FloatArray]]
) -> bool:
    """Tell whether places on a link are slower than others there: these are slow, and not the link."""
    beyond = sum(float(effect[link.events].sum()) for _, effect in places)
    return beyond >= LEAST_EXCESS * float(np.nansum(frame["wire_ns"].to_numpy()[link.events]))


def _connected(sides: list[Side]) -> list[list[Side]]:
    """Return the sides of each axis that common groups connect, as one list each."""
    found: list[tuple[set[tuple[str, str]], list[Side]]] = []
    for side in sides:
        names = {(side.axis, str(name)) for name in side.rows["group_id"].unique()}
        own = [side]
        for other in [one for one in found if one[0] & names]:
            found.remove(other)
            names |= other[0]
            own = [*other[1], *own]
        found.append((names, own))
    return [own for _, own in found]


def _of_one_rate(links: list[list[Side]]) -> list[list[Side]]:
    """Return the links with those of several axes that connect the same two hosts at the same rate as one.

    Two ways between the same hosts may differ; two axes that get the same from them share one.
    """
    found: list[list[Side]] = []
    for link in links:
        hosts = {side.host for side in link}
        alike = [one for one in found if {side.host for side in one} == hosts]
        alike = [one for one in alike if len(hosts) == 2 and _are_alike(one, link)]
        if alike:
            alike[0].extend(link)
        else:
            found.append([*link])
    return found


def _are_alike(link: list[Side], other: list[Side]) -> bool:
    """Return whether two links have the same rate on each of their hosts."""
    rates = {side.host: side.rate_bytes_per_s for side in link}
    return all(
        max(rates[side.host], side.rate_bytes_per_s)
        <= UNEQUAL * min(rates[side.host], side.rate_bytes_per_s)
        for side in other
    )


def _link(
    frame: pd.DataFrame,
    trace: Trace,
    sides: list[Side],
    speeds: dict[str, float],
    common: tuple[CommonPort, list[str]] | None = None,
) -> SteadyLink:
    """Return what the sides of one link tell of it.

    Args:
        frame: The events.
        trace: The capture.
        sides: Of one axis, or of all that share the link.
        speeds: Of the ports of hosts, where they are stated.
        common: What links of several axes have in common, and the host of each port.
    """
    first = max(sides, key=lambda side: side.busy_ns).axis
    slowest = min(
        (side for side in sides if side.axis == first), key=lambda side: side.rate_bytes_per_s
    )
    ceiling, through = _ceiling(sides, speeds), _through(sides, slowest.host, common)
    # What two axes carry at the same time keeps the link busy once.
    moved, busy = by_step(through)
    wire = sum(float(side.rows["wire_ns"].sum()) for side in sides)
    seems = sum(float(side.rows["disturbed_ns"].sum()) for side in sides)
    excess = 1.0 - min(1.0, _usual_ns(sides, moved, ceiling) / float(np.median(busy)))
    is_slow = excess >= 1.0 - MOST_OF_CEILING if ceiling else seems >= LEAST_EXCESS * wire
    events = _events_of(frame, sides)
    hosts = sorted({trace.clock_of(int(rank)) for rank in frame.loc[events, "rank"].unique()})
    source, target = _ends(slowest, [side for side in sides if side.axis == first], hosts)
    port = None
    if common is not None:
        names = {common[1][at] for at in common[0].ports}
        port = names.pop() if len(names) == 1 else None
        source, target = None, None
    where: Where = {"axis": slowest.axis, "host": port or source or slowest.host}
    return SteadyLink(
        where=where,
        axes=(first, *sorted({side.axis for side in sides} - {first})),
        source=source,
        target=target,
        hosts=tuple(hosts),
        groups=tuple(sorted({str(name) for side in sides for name in side.rows["group_id"]})),
        rate_bytes_per_s=float(np.median(moved / busy)) * 1e9,
        ceiling_bytes_per_s=ceiling,
        events=events,
        excess_frac=float(excess) if is_slow else 0.0,
        port=port,
        way=common[0].way if common is not None else "",
    )


def _ceiling(sides: list[Side], speeds: dict[str, float]) -> float | None:
    """Return what the slowest of the ports gives, as it is stated; None where one is not."""
    ceilings = [speeds[side.host] for side in sides if side.host in speeds]
    return min(ceilings) if len(ceilings) == len(sides) else None


def _through(
    sides: list[Side], slowest: str, common: tuple[CommonPort, list[str]] | None
) -> pd.DataFrame:
    """Return the transfers whose time shows the rate: those of the slowest host, or through the port in common."""
    if common is None:
        return pd.concat([side.rows for side in sides if side.host == slowest])
    rows = pd.concat([side.rows for side in sides])
    return through(rows, common[0].ports[0], common[0].way or WAYS[0])


def _usual_ns(sides: list[Side], moved: FloatArray, ceiling: float | None) -> float:
    """Return how long transfers of a step take at the ceiling; without one what their hops take."""
    hops: dict[str, float] = {}
    for side in sides:
        hops[side.axis] = max(hops.get(side.axis, 0.0), side.hops_ns)
    return sum(hops.values()) + (float(np.median(moved)) / ceiling * 1e9 if ceiling else 0.0)


def _events_of(frame: pd.DataFrame, sides: list[Side]) -> BoolArray:
    """Return which events are those of the groups of sides."""
    groups = {str(name) for side in sides for name in side.rows["group_id"].unique()}
    found: BoolArray = (
        frame["group_id"].isin(groups)
        & frame["axis"].isin([side.axis for side in sides])
        & frame["wire_ns"].notna()
        & ~frame["is_inferred"]
    ).to_numpy(bool)
    return found


def _ends(slowest: Side, sides: list[Side], hosts: list[str]) -> tuple[str | None, str | None]:
    """Return which host sends what the slowest one waits for, and that one; None where it is not known.

    Hosts that leave an operation together do not tell which of them the data came late to.
    """
    others = [side for side in sides if side.host != slowest.host]
    if any(side.rate_bytes_per_s <= UNEQUAL * slowest.rate_bytes_per_s for side in others):
        return None, None
    if len(hosts) != 2:
        return None, slowest.host
    return next(host for host in hosts if host != slowest.host), slowest.host
