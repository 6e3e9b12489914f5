"""Wires: groups and links that are slower than their like, and what varies on an axis.

Messages may wait behind a collective on their way out of a host. A host leaves a collective when it has received all, and what it sent may still lie in its buffers. What it
sends next comes behind that::

    sender    collective ---|  send
    peer      collective ----------------|
    receiver            receive --- waits ---|- wire -|

The time until the last member has left the collective is the collective's, whatever axis the message is of.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ...align.communication.events import APART_NS
from ...align.communication.rows import sorted_categories
from ...tables.arrays import BoolArray, FloatArray
from ...tables.results import Where
from ...tables.trace import Trace
from ..replay.effect_folding import EdgeEffect, edge_effect
from ..replay.program import Program
from .degraded import MAX_OFTEN, Degraded, degraded_places
from .like_wires import LikeWires, like_wires_of
from .one_port import SlowPort, joined_by_ports
from .shapley_player import Player, Union
from .steady_links import SteadyLink, placed, steady_links


def queued_behind(frame: pd.DataFrame, events: BoolArray) -> FloatArray:
    """Return how long each message lay behind collectives that its sender had left, by event, ns.

    Args:
        frame: Communication events.
        events: Which of them are the collectives.
    """
    behind = np.zeros(len(frame))
    is_p2p, is_send = (frame[name].to_numpy(bool) for name in ("is_p2p", "is_send"))
    on_its_way = _left_early(frame[events & ~is_p2p & frame["host"].to_numpy(bool)])
    is_timed = is_p2p & ~is_send & frame["wire_ns"].notna().to_numpy()
    if on_its_way.empty or not is_timed.any():
        return behind
    sent = frame.loc[is_send, ["join", "rank", "start_ns"]].drop_duplicates("join")
    timed = frame.loc[is_timed, ["join", "end_ns", "wire_ns"]].assign(
        event=np.flatnonzero(is_timed)
    )
    messages = timed.merge(sent, on="join").sort_values("start_ns")
    messages["rank"] = messages["rank"].astype(np.int64)
    found = pd.merge_asof(messages, on_its_way, on="start_ns", by="rank").dropna(subset="until_ns")
    since = found["end_ns"] - found["wire_ns"]
    part = (found[["end_ns", "until_ns"]].min(axis=1) - since).clip(lower=0)
    behind[found["event"].to_numpy()] = part.to_numpy()
    return behind


def _left_early(members: pd.DataFrame) -> pd.DataFrame:
    """Return rank, start_ns and until_ns (when the last member left) of those who left far earlier."""
    until = members.groupby("join")["end_ns"].transform("max")
    early = (until - members["end_ns"]) > APART_NS
    rows = pd.DataFrame(
        {
            "rank": members["rank"].astype(np.int64),
            "start_ns": members["start_ns"],
            "until_ns": until.astype(np.float64),
        }
    )
    return rows[early].sort_values("start_ns")


MAX_DEGRADED = 3
"""Degraded places that are players of their own, the most costly ones."""


class WireExcess(NamedTuple):
    """What transfers take longer than they would on healthy, undisturbed wires, by event, ns."""

    places: list[tuple[Degraded | SlowPort, FloatArray]]
    """The most costly degraded places, and ports that join several, each with its own part."""
    rest: FloatArray
    """What is left, which is the axis' own."""
    unnamed: list[Degraded]
    """Degraded places whose part is in the rest, because there are too many."""
    steady: list[tuple[SteadyLink, FloatArray]]
    """Links whose own rate makes transfers long, each with its part; these have no rest."""


def between_ranks(frame: pd.DataFrame, trace: Trace) -> pd.DataFrame:
    """Return the events as what passes between ranks.

    Those of groups that have one member have no wire time: what they take is work of the host, which no link,
    switch or placement makes longer; joins that only the times show sent nothing that is known. Groups of an axis that have the same members have the name of the
    busiest of them, since they use the same links. Where clocks were corrected, ``clock_error_ns`` says by how much
    a message one way may look longer for it.
    """
    if frame["is_inferred"].any():
        frame = frame.assign(wire_ns=frame["wire_ns"].mask(frame["is_inferred"]))
    frame, groups = _with_clock_errors(frame, trace), trace.frame("group")
    if frame.empty or groups.empty:
        return frame
    names, members = groups["group_id"].astype(str), groups["ranks"].map(sorted).map(tuple)
    busy = names.map(frame["group_id"].value_counts()).astype(float).fillna(0.0)
    alike = busy.groupby([groups["axis"].astype(str), members])
    frame = _with_names(frame, dict(zip(names, names[alike.transform("idxmax")], strict=True)))
    alone = names[members.map(len) == 1]
    if alone.empty:
        return frame
    is_local = frame["group_id"].isin(alone) & ~frame["is_p2p"]
    return frame.assign(wire_ns=frame["wire_ns"].mask(is_local))


def _with_clock_errors(frame: pd.DataFrame, trace: Trace) -> pd.DataFrame:
    """Return the events with the error of the clocks at the ends of each link, where there is one."""
    sync = trace.frame("clock_sync")
    if sync.empty or frame.empty or not frame["is_p2p"].any():
        return frame
    errors = dict(zip(sync["host"].astype(str), sync["error_ns"], strict=True))
    links = frame["link"].astype("category").cat

    def error_of(link: str) -> float:
        clocks = {trace.clock_of(int(rank)) for rank in link.split("->") if rank}
        return sum(errors.get(clock, 0.0) for clock in clocks) if len(clocks) > 1 else 0.0

    by_link = np.array([*map(error_of, map(str, links.categories)), 0.0])
    return frame.assign(clock_error_ns=by_link[links.codes])


def _with_names(frame: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    """Return the events with other names of their groups."""
    own = frame["group_id"].astype("category").cat
    renamed = [names.get(name, name) for name in map(str, own.categories)]
    if renamed == list(own.categories):
        return frame
    return frame.assign(group_id=sorted_categories(own.codes.to_numpy(), renamed))


def wire_excess(frame: pd.DataFrame, trace: Trace) -> WireExcess:
    """Return what events take beyond their like.

    A degraded place repaired is as fast as the other places; what an operation takes beyond the
    undisturbed wire of its like, in excess of that, is the axis' own: or the link's, where that is steady.

    Args:
        frame: The events as ``between_ranks`` returns them.
        trace: The capture.
    """
    like = like_wires_of(frame)
    rest = _beyond_undisturbed(frame, like)
    degraded = joined_by_ports(frame, trace, degraded_places(frame, like))
    places: list[tuple[Degraded | SlowPort, FloatArray]] = []
    for place in degraded[:MAX_DEGRADED]:
        own = _beyond(frame, place, rest, like)
        # Where no other place has operations of just this size, the excess over the
        # undisturbed ones knows only slow operations, and is the smaller of the two.
        rest = (rest - own).clip(min=0)
        places.append((place, own))
    places, steady, rest = with_steady_links(frame, trace, places, rest)
    unnamed = [own for place in degraded[MAX_DEGRADED:] for own in _places_of(place)]
    return _with_queued(frame, WireExcess(places, rest, unnamed, steady))


def _places_of(place: Degraded | SlowPort) -> tuple[Degraded, ...]:
    return place.places if isinstance(place, SlowPort) else (place,)


def _beyond(
    frame: pd.DataFrame, place: Degraded | SlowPort, rest: FloatArray, like: LikeWires
) -> FloatArray:
    """Return what the transfers of a place or port take longer than like ones elsewhere.

    Those of a port are compared with what crosses others; what is not one of its slow places has no more to
    give than what it takes beyond an undisturbed wire.
    """
    if isinstance(place, Degraded):
        return beyond_its_like(frame, place, like)
    effect = np.zeros(len(frame))
    for own in place.places:
        elsewhere = own.like & ~place.crossing
        is_there = bool((elsewhere & (frame["axis"] == own.where["axis"]).to_numpy()).any())
        others = elsewhere if is_there else own.like
        effect += beyond_its_like(frame, own._replace(like=others), like)
    others = place.crossing & ~place.events
    if others.any():
        along = Degraded(place.where, np.nan, 1.0, others, ~place.crossing)
        effect += np.minimum(beyond_its_like(frame, along, like), rest)
    return effect


def with_steady_links(
    frame: pd.DataFrame,
    trace: Trace,
    places: list[tuple[Degraded | SlowPort, FloatArray]],
    rest: FloatArray,
) -> tuple[
    list[tuple[Degraded | SlowPort, FloatArray]], list[tuple[SteadyLink, FloatArray]], FloatArray
]:
    """Return the places, what is the rate of a link, which is no disturbance, and what is left of the rest.

    Where a place is slower than others on the link, that place is slow, and not the link. What is steady on the host
    and axis of a port, or has the port of a place in common, is the port's: it is one wire. Without a stated ceiling it
    is a bound, which is no part of the price of a port: it stays in the rest.
    """
    wire = frame["wire_ns"].to_numpy(np.float64)
    always = [at for at, (place, _) in enumerate(places) if _is_always(place)]
    at_port = {_key(place.where): at for at, (place, _) in enumerate(places)}
    whole = np.sum([own for _, own in places], axis=0) if places else np.zeros(len(frame))
    found, steady = [*places], []
    given = [(places[at][0].events, places[at][1]) for at in always]
    for link in steady_links(frame, trace, rest, given):
        at = at_port.get(_key(link.where)) if link.place is None else always[link.place]
        is_bound = at is not None and link.ceiling_bytes_per_s is None
        is_slower = placed(frame, link, [(place.events, own) for place, own in places])
        if is_bound or is_slower:
            continue
        beyond = np.where(link.events, (link.excess_frac * wire - whole).clip(min=0), 0.0)
        if at is None:
            steady.append((link, beyond))
        else:
            place, own = found[at]
            found[at] = (_with_link(place, link, frame, trace), own + beyond)
        rest = np.where(link.events, 0.0, rest)
    return found, steady, rest


def _is_always(place: Degraded | SlowPort) -> bool:
    parts = _places_of(place)
    return all(own.step_frac > MAX_OFTEN for own in parts)


def _with_link(
    place: Degraded | SlowPort, link: SteadyLink, frame: pd.DataFrame, trace: Trace
) -> SlowPort:
    """Return the port of a place that a steady link of another axis, or of its own, crosses too."""
    more = tuple(
        (axis, tuple(name for name in link.groups if (own == name).any()))
        for axis in link.axes
        if len(own := frame.loc[link.events & (frame["axis"] == axis).to_numpy(), "group_id"])
    )
    if isinstance(place, SlowPort):
        return place._replace(more=(*place.more, *more))
    host = link.port or link.where["host"]
    where: Where = {"axis": place.where["axis"], "host": host}
    return SlowPort(where, (host,), link.way, (place,), place.events, place.events, more)


def _key(where: Where) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(where.items()))


def _with_queued(frame: pd.DataFrame, excess: WireExcess) -> WireExcess:
    """Return the excess with that of messages that lay behind a degraded group's collectives as the group's."""
    effects = [own for _, own in excess.places]
    rest = excess.rest
    for at, (place, _) in enumerate(excess.places):
        behind = queued_behind(frame, place.events)
        whole = rest + sum(effects)
        part = np.divide(np.minimum(behind, whole), whole, out=np.zeros_like(rest), where=whole > 0)
        if part.any():
            effects, rest = [own * (1.0 - part) for own in effects], rest * (1.0 - part)
            effects[at] = effects[at] + part * whole
    places = [(place, own) for (place, _), own in zip(excess.places, effects, strict=True)]
    return excess._replace(places=places, rest=rest)


def _beyond_undisturbed(frame: pd.DataFrame, like: LikeWires) -> FloatArray:
    """Return what each event takes beyond the undisturbed wire of its like."""
    wire = frame["wire_ns"].to_numpy(np.float64)
    return np.asarray(np.nan_to_num((wire - like.undisturbed_ns).clip(min=0), copy=False))


def excess_of_program(trace: Trace, program: Program) -> WireExcess | None:
    """Return what the transfers of a program take beyond their like; None where there are none."""
    frame = between_ranks(program.events, trace)
    return None if frame.empty else wire_excess(frame, trace)


def wire_players(program: Program, excess: WireExcess | None) -> list[Player]:
    """Return the degraded places, and one player an axis for what is left of the excess."""
    if excess is None:
        return []
    players = [
        Player("slow_link", place.where, Union.WIRES, _on_waits(program, own))
        for place, own in excess.places
    ]
    for link, own in excess.steady:
        effect = _on_waits(program, own)
        is_most = link.ceiling_bytes_per_s is None
        players.append(Player("slow_link", link.where, Union.WIRES, effect, is_most=is_most))
    axis = program.events["axis"].astype("category").cat
    codes = axis.codes.to_numpy()
    found = {str(axis.categories[code]): code for code in np.unique(codes).tolist()}
    for name, code in sorted(found.items()):
        effect = _on_waits(program, np.where(codes == code, excess.rest, 0.0))
        players.append(Player("slow_wire", {"axis": name}, Union.WIRES, effect))
    return [player for player in players if not player.effect.is_nothing]


def named_place(program: Program, where: Where, events: BoolArray) -> Player:
    """Return what the transfers of a place take beyond their like, whether that is much or not.

    Args:
        program: The replay graph.
        where: The place.
        events: Its rows of the program's events.
    """
    frame = program.events
    others = frame["axis"].isin(frame.loc[events, "axis"].unique()).to_numpy() & ~events
    like = like_wires_of(frame)
    effect = beyond_its_like(frame, Degraded(where, np.nan, 1.0, events, others), like)
    effect += np.minimum(queued_behind(frame, events), _beyond_undisturbed(frame, like))
    return Player("slow_link", where, Union.WIRES, _on_waits(program, effect))


def beyond_its_like(
    frame: pd.DataFrame, place: Degraded, like_wires: LikeWires | None = None
) -> FloatArray:
    """Return what the transfers of a place take longer than like ones elsewhere, or at other times.

    Each by what it exceeds their median, scaled so that, repaired, the place takes as long
    as they do on average: their noise is no degradation, and stays.

    Args:
        frame: Communication events.
        place: The place.
        like_wires: What ``like_wires_of`` says of them, where it is known.
    """
    own, like = place.events, (like_wires or like_wires_of(frame)).number
    wire = frame["wire_ns"].to_numpy(np.float64)
    other = np.flatnonzero(place.like)
    other = other[np.isin(like[other], np.unique(like[own]))]
    others = pd.Series(wire[other]).groupby(like[other])
    usual = others.agg(["median", "mean"]).reindex(like[own])
    wire = wire[own]
    beyond = np.nan_to_num((wire - usual["median"].to_numpy()).clip(min=0))
    more = float(np.nansum(wire - usual["mean"].to_numpy()))
    effect = np.zeros(len(frame))
    effect[own] = beyond * min(1.0, max(0.0, more) / max(float(beyond.sum()), 1.0))
    return effect


def _on_waits(program: Program, event_effect: FloatArray) -> EdgeEffect:
    """Return the effect on the edges of the waits for each event, and of what runs after it."""
    effect = event_effect[program.wire_event]
    held = len(program.queue.join)
    effect[:held] = np.minimum(effect[:held], program.queue.ns)
    return edge_effect(effect, first=program.first_wire)
