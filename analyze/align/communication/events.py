"""Collectives and point-to-point operations as one table of communication events.

Members of one operation share a ``join`` id. The **wire time** of a collective is
the least of its members' own durations, which needs no common clock; a member
waited for its peers until ``split_ns = end - wire`` and was transferring after it.
A send that the host buffers (gloo) ends on its own, so a receive is split where
the later of both ends began.

A backend may copy what is sent and let the sender go (MPI, for small messages), or hold it until the
other end has called (gloo does, whatever the size). What the sender waits for in the second case
is the receiver, not the wire, and a slow receiver costs it time. The backend does not say which it is,
but the ends of sends do, where the receiver came later than the sender::

    sender      issue ----------- end              issue - end
    receiver              issue - end                            issue - end
                held until it came                 buffered
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...tables.arrays import BoolArray, FloatArray, IntArray, combined, narrow
from ...tables.numbering import numbered
from ...tables.sorting import any_of_group, greatest_of_group, least_of_group, ranks_of_group
from ...tables.stored_tables import let_go
from ...tables.trace import Trace
from ...wording.limits import Limit
from ...wording.message import message
from ..steps.windows import StepWindows
from .missing_ranks import NO_RANK, NOBODY, ReplicaProxies, replica_proxies
from .rows import communication_rows, in_order_of_issue, sorted_categories

LEAST_LATE_NS = 100_000
"""How much later than the sender a receiver must come, to tell anything."""
HELD = 0.5
"""Least share of that time that a sender stands still which is held."""
LEAST_SEEN = 8
"""Sends that must tell it."""
MOST_LET_GO = 0.1
"""Share of these up to which senders may have been let go though sends are held."""


def are_buffered(rows: pd.DataFrame) -> BoolArray:
    """Return which sends and receives are sends that do not wait for their receiver.

    Args:
        rows: Sends and receives with ``join``, one number for both ends of each.
    """
    sends = (rows["is_send"] & rows["host"]).to_numpy(bool)
    if not sends.any():
        return sends
    receives = rows["start_ns"].where(~rows["is_send"]).to_numpy(np.float64)
    called = least_of_group(receives, rows["join"].to_numpy())
    begin, end = (rows[name].to_numpy()[sends] for name in ("wait_start_ns", "wait_end_ns"))
    late, stood = called[sends] - begin, end - begin
    tells = late > LEAST_LATE_NS
    let_go = stood[tells] < HELD * late[tells]
    if len(let_go) < LEAST_SEEN or let_go.mean() > MOST_LET_GO:
        return sends
    return np.zeros(len(rows), dtype=bool)


BLOCKING_NS = 50_000
"""A host wait longer than this stood still; a shorter one found the operation complete."""

APART_NS = 1_000_000
"""Hosts leave an operation that far apart, and that share of its time, where their ways are not alike."""
APART_FRAC = 0.1
LEAST_APART = 3
"""Operations of a member that must tell it."""

LATE_FRAC = 0.02
"""Share of its time that a rank waits for missing ones beyond their like, from which it is named; as
much as a replay may freeze (``unknown_causes``)."""


class CommunicationEvents(NamedTuple):
    """Every member of every operation in the analysed steps."""

    frame: pd.DataFrame
    """rank, step, group_id, axis, kind, is_p2p, is_send, link ("0->4", empty for
    collectives), size_bytes, join, host, float_bytes (of an
    element, 0 where it is no float), is_buffered (a send that waits for nobody), start_ns,
    end_ns (float, NaN unknown), wait_start_ns, wait_end_ns (float), wire_ns, split_ns, is_inferred (a
    join that no record shows, but the times do).
    Names are categories in sorted order (group by them with ``observed=True``), and ranks,
    steps and joins have 32 bits where they fit."""
    unseen_frac: float
    """Share of the records whose end nobody saw."""
    lonely_frac: float
    """Share of the records that may have waited for somebody who is lost. Of all ranks together;
    or of one rank that has missing partners in whose place nobody stands; or the share of its time
    that one waited for missing ranks which came later than their like: whichever is most."""
    limits: tuple[Limit, ...]
    replica_proxies: ReplicaProxies = NOBODY
    """Who stands in for the missing members."""


def communication_events(trace: Trace, windows: StepWindows) -> CommunicationEvents:
    """Return the communication of the analysed steps, matched across ranks."""
    rows = communication_rows(trace, windows, "collective")
    let_go(trace.tables, "collective")
    collectives = _match_collectives(rows, _clock_error_ns(trace, rows["rank"]))
    rows = communication_rows(trace, windows, "p2p")
    let_go(trace.tables, "p2p")
    p2p = _match_p2p(rows)
    del rows
    if len(p2p):
        p2p["join"] += int(collectives["join"].max()) + 1 if len(collectives) else 0
    frame = in_order_of_issue(collectives, p2p)
    absent_frac = _absent_frac(frame, trace)
    lonely = absent_frac > 0
    incomplete = lonely & ~frame["is_p2p"]
    frame["wire_ns"] = _without_late_looks(frame, lonely)
    frame["split_ns"] = _split_ns(frame)
    frame["is_inferred"] = False
    limits: list[Limit] = []
    unseen = int(frame["end_ns"].isna().sum())
    if unseen:
        limits.append(message("unknown.ends_unseen", unseen=unseen, count=len(frame)))
    if incomplete.any():
        missing = int(frame.loc[incomplete, "join"].nunique())
        limits.append(message("unknown.wire_of_incomplete", count=missing))
    limits += _unmatched(frame, lonely)
    time_ns = windows.step_time_ns * len(windows.steps)
    held = replica_proxies(frame, lonely.to_numpy(bool), trace, time_ns)
    limits += _limits_of(held, windows.step_time_ns)
    return CommunicationEvents(
        frame=frame,
        unseen_frac=unseen / max(len(frame), 1),
        lonely_frac=max(_lost_frac(frame, absent_frac), held.unheld_frac, held.late_frac),
        limits=tuple(limits),
        replica_proxies=held,
    )


def _split_ns(frame: pd.DataFrame) -> FloatArray:
    """Return where waiting ends and the transfer begins; the start where nothing tells, or nobody waits."""
    split: FloatArray = frame["end_ns"].to_numpy(np.float64) - frame["wire_ns"].to_numpy(np.float64)
    at_once = np.flatnonzero(np.isnan(split) | frame["is_buffered"].to_numpy(bool))
    split[at_once] = frame["start_ns"].to_numpy()[at_once]
    return split


def _unmatched(frame: pd.DataFrame, lonely: pd.Series) -> Iterator[Limit]:
    unnamed = int(from_anyone(frame).sum())
    unmatched = int((lonely & frame["is_p2p"]).sum()) - unnamed
    if unnamed:
        yield message("unknown.senders_unnamed", count=unnamed)
    if unmatched:
        yield message("missing.no_other_end", count=unmatched)


def from_anyone(frame: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which communication events are receives whose sender is not known."""
    link = frame["link"].cat
    of_nobody = [str(name).startswith(f"{NO_RANK}->") for name in link.categories]
    return np.append(of_nobody, False).astype(bool)[link.codes]


def _limits_of(held: ReplicaProxies, step_time_ns: float) -> Iterator[Limit]:
    if len(held.event):
        yield message("assumed.replica_proxies")
    if held.late_frac > LATE_FRAC:
        yield message(
            "doubt.waited_for_absent",
            rank=held.waiting_rank,
            wait_ns=float(held.late_frac * step_time_ns),
        )


def _match_collectives(rows: pd.DataFrame, clock_error_ns: FloatArray) -> pd.DataFrame:
    rows["join"] = narrow(numbered(_group(rows), rows["seq"].to_numpy()))
    own = rows["end_ns"] - rows["start_ns"]
    least = pd.Series(least_of_group(own.to_numpy(), rows["join"].to_numpy()), rows.index)
    last = greatest_of_group(rows["start_ns"].to_numpy(), rows["join"].to_numpy())
    seen = _seen_by_others(rows, last)
    wire = least.where(~_looked_late(rows, last, seen), seen)
    rows["wire_ns"] = _by_way(rows, wire, last, clock_error_ns)
    no_link = sorted_categories(np.zeros(len(rows), np.int8), [""])
    del rows["seq"]
    rows["link"], rows["is_buffered"] = no_link, False
    return rows


def _group(rows: pd.DataFrame) -> IntArray:
    """Return a number for each row's group."""
    return np.asarray(rows["group_id"].cat.codes, dtype=np.int64)


def _stood_still(rows: pd.DataFrame) -> pd.Series:
    """Return which host rows waited for the operation, so that their end is its end."""
    return (rows["wait_end_ns"] - rows["wait_start_ns"]) > BLOCKING_NS


def _looked_late(rows: pd.DataFrame, last: IntArray, seen: pd.Series) -> pd.Series:
    """Return the operations that were complete before the last to come looked at them.

    It issued them, went on computing, and so has no short duration to show.

    Args:
        rows: Collectives.
        last: When the last member issued each.
        seen: As ``_seen_by_others`` returns it.
    """
    is_last = rows["start_ns"].to_numpy() == last
    sharp = any_of_group(is_last & _stood_still(rows).to_numpy(), rows["join"].to_numpy())
    return rows["host"] & ~sharp & seen.notna()


def _seen_by_others(rows: pd.DataFrame, last: IntArray) -> pd.Series:
    """Return the time from the last issue to the end that a waiting member saw.

    The ends of members that stood still are compared with the start of another
    member, so this holds on a common clock only.
    """
    join = rows["join"].to_numpy()
    complete = least_of_group(rows["end_ns"].where(_stood_still(rows)).to_numpy(), join)
    return pd.Series(complete - last, rows.index).clip(lower=0)


def _by_way(
    rows: pd.DataFrame, wire: pd.Series, last: IntArray, clock_error_ns: FloatArray
) -> pd.Series:
    """Return wire times, each member's own where hosts leave operations far apart.

    A host leaves when it has received all, and what it sends lies in a buffer: behind a slow link the
    others leave later by what that takes, and the least duration is that of the fastest way. Each member's
    is then the time from the last issue to its own end. That must be so of most like operations of a
    member, by more than its clock may be off.
    """
    stood = rows["host"] & _stood_still(rows)
    if not stood.any():
        return wire
    own_way = (rows["end_ns"] - last).clip(lower=0).where(stood)
    apart = own_way - wire
    if not (apart.abs() > APART_NS).any():
        return wire
    like = [rows["group_id"], rows["kind"], rows["size_bytes"]]
    by_member = apart.groupby([*like, rows["rank"]], observed=True)
    usual_wire = wire.groupby(like, observed=True).transform("median")
    least_ns = np.maximum(APART_NS, APART_FRAC * usual_wire) + clock_error_ns
    is_apart = (by_member.transform("median").abs() > least_ns) & (
        by_member.transform("count") >= LEAST_APART
    )
    are_apart = is_apart.groupby(like, observed=True).transform("max")
    return wire.mask(are_apart & own_way.notna(), own_way)


def _clock_error_ns(trace: Trace, rank: pd.Series) -> FloatArray:
    """Return by how much two clocks may be apart that were corrected as that of each rank was."""
    sync = trace.frame("clock_sync")
    if sync.empty:
        return np.zeros(len(rank))
    errors = dict(zip(sync["host"].astype(str), sync["error_ns"], strict=True))
    by_rank = {one: 2.0 * errors.get(trace.clock_of(one), 0.0) for one in rank.unique().tolist()}
    return np.asarray(rank.map(by_rank), dtype=np.float64)


def _absent_frac(frame: pd.DataFrame, trace: Trace) -> pd.Series:
    """Return for each row the share of the members of its operation that the capture lacks."""
    groups = trace.frame("group")
    size = dict(zip(groups["group_id"].astype(str), groups["ranks"].map(len), strict=True))
    group = frame["group_id"].cat
    expected = np.array([size.get(name, 0) for name in group.categories], dtype=np.int64)
    expected = np.where(frame["is_p2p"], 2, expected[group.codes])
    join, is_p2p, is_send = (frame[name].to_numpy() for name in ("join", "is_p2p", "is_send"))
    members = any_of_group(is_p2p & is_send, join).astype(np.float64)
    members += any_of_group(is_p2p & ~is_send, join)
    rank = frame["rank"].to_numpy()
    members[~is_p2p] = ranks_of_group(rank[~is_p2p], join[~is_p2p])
    return pd.Series(1.0 - members / np.maximum(expected, members), index=frame.index)


def _lost_frac(frame: pd.DataFrame, absent_frac: pd.Series) -> float:
    """Return the share of the records that may have waited for a member that is missing.

    Where it is known how long the like is on the wire, each member is as likely the last.
    A buffered send waits for nobody.
    """
    if not absent_frac.any():
        return 0.0
    lost = absent_frac.where(frame["wire_ns"].notna() | (absent_frac == 0), 1.0)
    lost = lost.mask(frame["is_buffered"], 0.0)
    return float(lost.sum()) / max(len(frame), 1)


def _without_late_looks(frame: pd.DataFrame, lonely: pd.Series) -> pd.Series:
    """Return wire times without the part in which nobody looked, or a member is missing.

    A host sees the end of an operation only when it waits. Where no member had to
    (each came to its wait after the operation was complete) the least duration is
    only an upper bound; the median of like operations that somebody blocked on
    replaces it, where that is smaller. NaN where nobody ever blocked on the like.
    The same holds where the member that came last may be missing, or the other end of a
    receive: its own duration may be all waiting.
    """
    blocked = _stood_still(frame)
    alone = frame["host"] & frame["is_p2p"]
    by_any = any_of_group(blocked.to_numpy(), frame["join"].to_numpy())
    sharp = blocked.where(alone, by_any) | ~frame["host"]
    sharp &= ~lonely
    axis, kind = (np.asarray(frame[name].cat.codes, dtype=np.int64) for name in ("axis", "kind"))
    like = combined(axis, kind, frame["size_bytes"].to_numpy(np.int64))
    wire, seen = frame["wire_ns"].to_numpy(), sharp.to_numpy(bool)
    median = pd.Series(wire[seen]).groupby(like[seen]).median()
    unseen = np.flatnonzero(~seen)
    usual = median.reindex(like[unseen]).to_numpy()
    longer = ~(wire[unseen] <= usual)
    wire = wire.copy()
    wire[unseen[longer]] = usual[longer]
    return pd.Series(wire, frame.index)


def _match_p2p(rows: pd.DataFrame) -> pd.DataFrame:
    """Pair each send with its receive.

    Host rows are split where the later of both ends began. Of a send that is buffered
    (``send_buffers``) it is not seen how long it was on the wire. Device and imported
    rows: the wire time is the least of the two durations.
    """
    if rows.empty:
        return rows.assign(join=0, wire_ns=0.0, link=pd.Categorical([]), is_buffered=False)
    sends = rows["is_send"].to_numpy(bool)
    rank, peer = rows["rank"].to_numpy(), rows["peer"].to_numpy()
    source, target = np.where(sends, rank, peer), np.where(sends, peer, rank)
    link = numbered(source, target)
    join = narrow(numbered(_group(rows), link, rows["seq"].to_numpy()))
    rows["join"] = join
    own = rows["end_ns"] - rows["start_ns"]
    least = least_of_group(own.to_numpy(), join)
    both_began = greatest_of_group(rows["start_ns"].to_numpy(), join)
    on_wire = (rows["end_ns"] - both_began).clip(lower=0)
    rows["is_buffered"] = buffered = are_buffered(rows)
    rows["wire_ns"] = np.where(rows["host"], np.where(buffered, np.nan, on_wire), least)
    first = np.zeros(int(link.max()) + 1, np.int64)
    first[link] = np.arange(len(link))
    names = [f"{source[at]}->{target[at]}" for at in first.tolist()]
    rows["link"] = sorted_categories(link, names)
    del rows["seq"], rows["peer"]
    return rows
