"""Members of one collective joined across ranks, and sends with their receives.

The **wire time** of a collective is the least of its members' own durations, and a
member's **wait** is its own duration less that: both need no common clock. Who
arrived last is the latest start where the clocks agree, else the member that
waited least; where two came together, nobody did.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import SYNCHRONISING, Direction

from ...tables.trace import Trace
from ...wording.limits import Limit
from ...wording.message import message
from .bandwidth import with_bandwidth
from .realignment import realign

_KEY = ["group_id", "seq"]
_SYNCHRONISING = [kind.value for kind in SYNCHRONISING]
_CLOCK_TOLERANCE_NS = 100_000
"""Members leave a collective together; ends further apart than this and than its wire time mean clocks that differ."""


class CollectiveMatch(NamedTuple):
    """Collectives joined across ranks."""

    collectives: pd.DataFrame
    """One row a collective: group_id, seq, step, axis, kind, size_bytes, members (present),
    expected (in the group; 0 unknown), wire_ns, last_rank, start_spread_ns, end_spread_ns,
    algorithm_bandwidth_bytes_per_s, bus_bandwidth_bytes_per_s, bandwidth_unknown_because.
    Unknown values are NA."""
    members: pd.DataFrame
    """One row a member: rank, step, group_id, seq, axis, kind, own_ns, wait_ns, arrived_last."""
    limits: tuple[Limit, ...]


class TransferMatch(NamedTuple):
    """Sends joined with their receives."""

    transfers: pd.DataFrame
    """One row a pair: group_id, axis, source, target, seq, step, microbatch, size_bytes,
    wire_ns (receive end less the later start), send_wait_ns, receive_wait_ns."""
    limits: tuple[Limit, ...]


def match_collectives(trace: Trace) -> CollectiveMatch:
    """Join the members of every collective by group and position.

    A wire time needs two members at least, or a group of one; with members
    missing from the capture it is an upper bound. Only kinds that nobody leaves
    before all have come have a last arrival.
    """
    columns = ["rank", "step", *_KEY, "axis", "kind", "size_bytes", "start_ns", "end_ns"]
    rows = _latest_rows(trace, "collective")[columns]
    rows, limits = realign(rows)
    by_key = rows.groupby(_KEY, sort=True)
    # Not by named aggregation: a column cannot be called "axis" there.
    table = by_key.agg(
        {"step": "min", "axis": "first", "kind": "first", "size_bytes": "max", "rank": "nunique"}
    )
    table = table.rename(columns={"rank": "members"})
    rows["own_ns"] = rows["end_ns"] - rows["start_ns"]
    table["expected"] = _group_sizes(trace, table)
    is_comparable = (table["members"] > 1) | (table["expected"] == 1)
    table["wire_ns"] = by_key["own_ns"].min().where(is_comparable).astype("Int64")
    spread = by_key[["start_ns", "end_ns"]].max() - by_key[["start_ns", "end_ns"]].min()
    table["start_spread_ns"] = spread["start_ns"]
    table["end_spread_ns"] = spread["end_ns"]
    apart_ns = by_key["start_ns"].max() - by_key["end_ns"].min()
    is_apart = (apart_ns > _CLOCK_TOLERANCE_NS) & table["kind"].isin(_SYNCHRONISING)
    members = rows.join(table[["wire_ns"]], on=_KEY)
    members["wait_ns"] = members["own_ns"] - members["wire_ns"]
    table["last_rank"] = _last_rank(members, table)
    members = members.join(table[["last_rank"]], on=_KEY)
    members["arrived_last"] = (members["rank"] == members["last_rank"]).fillna(value=False)
    order = ["rank", "step", *_KEY, "axis", "kind", "own_ns", "wait_ns", "arrived_last"]
    return CollectiveMatch(
        with_bandwidth(table.reset_index()),
        members[order].astype({"arrived_last": bool}),
        (*limits, *_limits(table, rows, int(is_apart.sum()))),
    )


def match_p2p(trace: Trace) -> TransferMatch:
    """Join every send with its receive by group, both ranks, and position.

    The two clocks are taken as one: where they differ, wire times are off by the
    difference, and one that would be negative is 0.
    """
    rows = _latest_rows(trace, "p2p")
    has_peer = rows["peer"] >= 0
    is_send = rows["direction"] == Direction.SEND.value
    rows = rows.assign(
        source=rows["rank"].where(is_send, rows["peer"]),
        target=rows["peer"].where(is_send, rows["rank"]),
    )
    key = ["group_id", "source", "target", "seq"]
    times = ["start_ns", "end_ns"]
    # Which of two sends at one position a receive belongs to, nothing tells.
    is_twice = has_peer & rows.duplicated([*key, "direction"], keep=False)
    is_matched = has_peer & ~is_twice
    sends = rows.loc[is_matched & is_send, [*key, *times]]
    receives = rows.loc[is_matched & ~is_send]
    pairs = receives.merge(sends, on=key, suffixes=("", "_send"), validate="one_to_one")
    both_began = pairs[["start_ns", "start_ns_send"]].max(axis=1)
    pairs["wire_ns"] = (pairs["end_ns"] - both_began).clip(lower=0)
    pairs["receive_wait_ns"] = pairs["end_ns"] - pairs["start_ns"] - pairs["wire_ns"]
    send_own = pairs["end_ns_send"] - pairs["start_ns_send"]
    pairs["send_wait_ns"] = (send_own - pairs["wire_ns"]).clip(lower=0)
    columns = [*key, "axis", "step", "microbatch", "size_bytes", "wire_ns"]
    limits: list[Limit] = []
    if not has_peer.all():
        limits.append(message("missing.peers_unnamed", count=int((~has_peer).sum())))
    if is_twice.any():
        limits.append(message("missing.same_position", count=int(is_twice.sum())))
    alone = int(is_matched.sum()) - 2 * len(pairs)
    if alone:
        limits.append(message("missing.no_other_end", count=alone))
    return TransferMatch(pairs[[*columns, "send_wait_ns", "receive_wait_ns"]], tuple(limits))


def _latest_rows(trace: Trace, name: str) -> pd.DataFrame:
    """Return a table with plain strings, nullable ends, and the last row of each event."""
    rows = trace.frame(name).drop_duplicates(["rank", "event_id"], keep="last")
    names = [c for c in ("group_id", "axis", "kind", "direction") if c in rows]
    return rows.astype(dict.fromkeys(names, str) | {"end_ns": "Int64"}).reset_index(drop=True)


def _group_sizes(trace: Trace, table: pd.DataFrame) -> pd.Series[int]:
    group = trace.frame("group")
    sizes = dict(zip(group["group_id"].astype(str), group["ranks"].map(len), strict=True))
    found = table.index.get_level_values("group_id").map(sizes)
    return pd.Series(found, index=table.index).fillna(0).astype(np.int64)


def _last_rank(members: pd.DataFrame, table: pd.DataFrame) -> pd.Series[int]:
    """Return who arrived last; NA where two came together or the kind does not tell.

    The clocks of a group agree if its members typically end together: within the
    typical wire time, or the tolerance if that is longer.
    """
    typical = table[["end_spread_ns", "wire_ns"]].astype("Float64").groupby("group_id").median()
    agree = typical["end_spread_ns"] <= typical["wire_ns"].clip(lower=_CLOCK_TOLERANCE_NS)
    is_shared = members["group_id"].map(agree.fillna(value=False).astype(bool))
    lateness = members["start_ns"].where(is_shared, -members["wait_ns"]).astype("Float64")
    lateness = lateness.where(members["kind"].isin(_SYNCHRONISING) & members["wait_ns"].notna())
    latest = lateness.groupby([members[column] for column in _KEY]).transform("max")
    last = members[(lateness == latest).fillna(value=False)]
    alone = last[~last.duplicated(_KEY, keep=False)]
    return alone.set_index(_KEY)["rank"].reindex(table.index).astype("Int64")


def _limits(table: pd.DataFrame, rows: pd.DataFrame, apart: int) -> list[Limit]:
    limits: list[Limit] = []
    if apart:
        limits.append(message("doubt.collectives_apart", apart=apart, count=len(table)))
    lacking = int((table["members"] < table["expected"]).sum())
    if lacking:
        limits.append(message("missing.members_lacking", lacking=lacking, count=len(table)))
    unseen = int(rows["end_ns"].isna().sum())
    if unseen:
        limits.append(message("missing.no_known_end", unseen=unseen, count=len(rows)))
    return limits
