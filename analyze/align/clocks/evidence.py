"""What a capture says of the same moments on different clocks.

**Common ends**: nobody leaves a synchronising collective before the last member
has come, and all leave together, so the ends that members saw are one moment on
several clocks. On hosts they leave together only as far as the transfer is short: what a host
sends lies in buffers when its call returns, and the others wait for it (``brief``).
**Causality**: nothing is received before it is sent, and no collective left before its last member came,
which bounds the offset of the sender's clock to the receiver's from one side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import SYNCHRONISING, WAIT_SOURCES, Direction, TimeSource

from ...tables.arrays import BoolArray, FloatArray, IntArray
from ...tables.trace import Trace
from ..communication.events import BLOCKING_NS
from .fit import SOUND, ClockMap, moved

STOOD = 10.0
"""A receive waited for its data if it took that many times the shortest one, and a blocking wait."""
MIN_STOOD = 8
"""Receives that must have waited to say that those of a direction do."""
BRIEF = 2.0
"""Collectives up to that many times as long as the shortest ones are short."""
MOST_BRIEF = 16
"""The shortest ones are one in so many."""
MOST_JOINS = 20_000
"""Collectives of a group that are looked at; more would not sharpen a median."""
NOT_SEEN_NS = np.iinfo(np.int64).max


def collective_ends(trace: Trace, clock_of: dict[int, int]) -> pd.DataFrame:
    """Return when members saw collectives end that hold all of them together.

    Args:
        trace: The capture.
        clock_of: Position of the clock of each rank.

    Returns:
        group, seq, clock (position), time_ns, own_ns (how long the member took), host (whether a host saw it).
    """
    frame = _synchronising(trace, clock_of)
    frame = frame[_saw_the_end(frame)]
    rows = pd.DataFrame(
        {
            "group": pd.factorize(frame["group_id"].astype(str))[0],
            "seq": frame["seq"].to_numpy(np.int64),
            "clock": frame["rank"].map(clock_of).to_numpy(np.int64),
            "time_ns": frame["end_ns"].to_numpy(np.int64),
            "own_ns": _length(frame),
            "host": frame["source"].astype(str).isin(WAIT_SOURCES).to_numpy(),
        }
    )
    return rows[_sampled(rows)]


def _synchronising(trace: Trace, clock_of: dict[int, int]) -> pd.DataFrame:
    """Return the collectives that nobody leaves before the last has come, where their end is known."""
    frame = trace.frame("collective")
    kinds = [kind.value for kind in SYNCHRONISING]
    frame = frame[frame["kind"].isin(kinds) & frame["end_ns"].notna()]
    frame = frame[frame["rank"].isin(clock_of)]
    return frame.drop_duplicates(["rank", "event_id"], keep="last")


def _length(frame: pd.DataFrame) -> FloatArray:
    """Return how long each member took; as floats, which no damaged time overflows."""
    end_ns, start_ns = (frame[name].to_numpy(np.float64) for name in ("end_ns", "start_ns"))
    return np.asarray(end_ns - start_ns)


def common_ends(ends: pd.DataFrame) -> pd.DataFrame:
    """Return how far clocks are apart at the ends that they have in common.

    Of the members on one clock the first to see the end counts: a host wakes up
    late, never early. Each clock is compared with the first one of its collective.

    Args:
        ends: As ``collective_ends`` returns them.

    Returns:
        first, clock (positions), time_ns (end on ``clock``), ahead_ns (end on
        ``first`` less that; both integers), width_ns (by how much clocks could differ so that nobody left
        before the other came), host (whether a host saw one of the ends).
    """
    join = ["group", "seq"]
    by_clock = ends.groupby([*join, "clock"], as_index=False)
    table = by_clock.agg({"time_ns": "min", "own_ns": "min", "host": "max"})
    by_join = table.groupby(join)
    table["first"] = by_join["clock"].transform("first")
    table["ahead_ns"] = by_join["time_ns"].transform("first") - table["time_ns"]
    table["width_ns"] = by_join["own_ns"].transform("first") + table["own_ns"]
    table["host"] = by_join["host"].transform("max")
    columns = ["first", "clock", "time_ns", "ahead_ns", "width_ns", "host"]
    return table.loc[table["clock"] != table["first"], columns]


def brief(width_ns: FloatArray) -> BoolArray:
    """Return which collectives are short, of those of one pair of clocks.

    Those up to twice as long as the shortest ones, of which at least some are needed.
    """
    usual = np.sort(width_ns)[: max(SOUND, len(width_ns) // MOST_BRIEF)][-1]
    return np.asarray(width_ns <= BRIEF * usual)


def _saw_the_end(frame: pd.DataFrame) -> pd.Series:
    """Return which members were there when the operation ended: devices, and hosts that waited.

    A blocking call whose wait was not seen apart waited from start to end.
    """
    source = frame["source"].astype(str)
    waited = frame["wait_end_ns"] - frame["wait_start_ns"]
    called = (frame["end_ns"] - frame["start_ns"]).where(source == TimeSource.HOST_BLOCKING)
    stood: pd.Series[bool] = (waited.fillna(called) > BLOCKING_NS).fillna(value=False).astype(bool)
    return stood | ~source.isin(WAIT_SOURCES)


def _sampled(rows: pd.DataFrame) -> pd.Series:
    """Return an even choice of each group's positions, the same on all members."""
    seq = rows.groupby("group")["seq"]
    stride = (seq.transform("max") - seq.transform("min")) // MOST_JOINS + 1
    chosen: pd.Series[bool] = rows["seq"] % stride == 0
    return chosen


def causal_bounds(
    trace: Trace,
    clock_of: dict[int, int],
    maps: Sequence[ClockMap],
    middle: IntArray,
    *,
    collectives: bool,
) -> pd.DataFrame:
    """Return bounds of how far sets of clocks are apart, from sends and their receives.

    Args:
        trace: The capture.
        clock_of: Position of the clock of each rank.
        maps: What moves the times of each clock to the middle clock of its set.
        middle: Position of that clock.
        collectives: Whether from collectives, too.

    Returns:
        One row a pair of sets and step: first, clock (middle clocks), time_ns (integer, a time of
        ``clock`` in that step), least_ns and most_ns (float, relative to ``base_ns``, NaN
        unknown), base_ns (integer, one a pair), error_ns (of the maps that the bounds went
        through). ``first`` is ahead of ``clock`` by at least and at most that. ``firm`` and
        ``wire_ns``, the same for all rows of a pair, tell which bound is an equation: 1 the lower
        one, -1 the upper one, less the wire; 0 neither, or both.
    """
    pairs = _pairs(trace, clock_of, maps, middle)
    joined = _joined(trace, clock_of, maps, middle) if collectives else pairs.iloc[:0]
    if len(joined):
        pairs = pd.concat([pairs, joined]) if len(pairs) else joined
    table = _bounds(pairs)
    firm = _firm_sides(table)
    table["base_ns"] = table.groupby(["first", "clock"])["bound_ns"].transform("first")
    near = (table["bound_ns"] - table["base_ns"]).astype(float)
    table["least_ns"] = near.where(table["forward"])
    table["most_ns"] = near.where(~table["forward"])
    by_step = table.groupby(["first", "clock", "step"], as_index=False)
    found = by_step[["time_ns", "least_ns", "most_ns", "base_ns", "error_ns"]].agg(
        {
            "time_ns": "min",
            "least_ns": "max",
            "most_ns": "min",
            "base_ns": "first",
            "error_ns": "max",
        }
    )
    return found.drop(columns="step").merge(firm, on=["first", "clock"])


def _bounds(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return one bound for each send between two clocks: a lower one where it goes ``forward``."""
    pairs = pairs[pairs["sender"] != pairs["receiver"]]
    forward = pairs["sender"] < pairs["receiver"]
    # Received by the clock in question: it was sent before that, so first is ahead by at least this.
    lead = pairs["sent_ns"] - pairs["received_ns"]
    return pd.DataFrame(
        {
            "first": pairs[["sender", "receiver"]].min(axis=1),
            "clock": pairs[["sender", "receiver"]].max(axis=1),
            "step": pairs["step"],
            "time_ns": pairs["received_ns"].where(forward, pairs["sent_ns"]),
            "bound_ns": lead.where(forward, -lead),
            "forward": forward,
            "error_ns": pairs["error_ns"],
            "own_ns": pairs["own_ns"],
        }
    )


def _firm_sides(table: pd.DataFrame) -> pd.DataFrame:
    """Return ``firm`` and ``wire_ns`` of each pair of sets.

    A receive that stood waiting ended when its data came: what lies between send and end is
    the wire alone. Where this is so in one direction, and in the other nobody ever waited for
    the data, the middle of the bounds is off by half of how long the data lay there.
    """
    keys = ["first", "clock"]
    own = table.groupby([*keys, "forward"])["own_ns"]
    shortest = own.transform("min")
    stood = table["own_ns"] > np.maximum(STOOD * shortest, STOOD * BLOCKING_NS)
    sides = table.assign(stood=stood).groupby([*keys, "forward"])
    counts = sides["stood"].sum().unstack("forward").reindex(columns=[True, False])
    wire = sides["own_ns"].min().unstack("forward").reindex(columns=[True, False])
    is_firm = counts >= MIN_STOOD
    firm = is_firm[True].astype(int) - is_firm[False].astype(int)
    # Of collectives there is no such wire; messages must have gone both ways.
    firm = firm.where((counts.min(axis=1) == 0) & wire.notna().all(axis=1), 0)
    # The wire is that of the direction in which nobody waited for the data.
    wire_ns = wire[False].where(firm > 0, wire[True]).clip(lower=0.0).fillna(0.0)
    return pd.DataFrame({"firm": firm, "wire_ns": wire_ns}).reset_index()


def _pairs(
    trace: Trace, clock_of: dict[int, int], maps: Sequence[ClockMap], middle: IntArray
) -> pd.DataFrame:
    """Return sends with their receives: sender, receiver (middle clocks), step, times, error_ns.

    ``own_ns`` is how long the receive took, from when it was asked for.
    """
    frame = trace.frame("p2p").drop_duplicates(["rank", "event_id"], keep="last")
    frame = frame[frame["peer"].isin(clock_of) & frame["rank"].isin(clock_of)]
    is_send = frame["direction"].astype(str) == Direction.SEND.value
    frame = frame.assign(
        group_id=frame["group_id"].astype(str),
        sender=frame["rank"].where(is_send, frame["peer"]),
        receiver=frame["peer"].where(is_send, frame["rank"]),
    )
    key = ["group_id", "sender", "receiver", "seq"]
    sends = frame.loc[is_send, [*key, "start_ns"]].drop_duplicates(key, keep="last")
    columns = [*key, "step", "start_ns", "end_ns"]
    receives = frame.loc[~is_send & frame["end_ns"].notna(), columns]
    receives = receives.rename(columns={"start_ns": "asked_ns"})
    pairs = receives.drop_duplicates(key, keep="last").merge(sends, on=key)
    sender = np.asarray(pairs["sender"].map(clock_of), dtype=np.int64)
    receiver = np.asarray(pairs["receiver"].map(clock_of), dtype=np.int64)
    error = np.array([one.error_ns for one in maps])
    return pd.DataFrame(
        {
            "error_ns": error[sender] + error[receiver],
            "sender": middle[sender],
            "receiver": middle[receiver],
            "step": pairs["step"].to_numpy(np.int64),
            "sent_ns": moved(pairs["start_ns"].to_numpy(np.int64), sender, maps),
            "received_ns": moved(pairs["end_ns"].to_numpy(np.int64), receiver, maps),
            "own_ns": (pairs["end_ns"] - pairs["asked_ns"]).to_numpy(np.float64),
        }
    )


def _joined(
    trace: Trace, clock_of: dict[int, int], maps: Sequence[ClockMap], middle: IntArray
) -> pd.DataFrame:
    """Return collectives as if their members sent something when they came, which all got before they left.

    As ``_pairs`` does, between the first set of clocks in each and every other one. Only a
    member that was there when it ended tells when it left.
    """
    frame = _synchronising(trace, clock_of)
    stood = _saw_the_end(frame).to_numpy(bool)
    clock = np.asarray(frame["rank"].map(clock_of), dtype=np.int64)
    error = np.array([one.error_ns for one in maps])
    rows = pd.DataFrame(
        {
            "group": pd.factorize(frame["group_id"].astype(str))[0],
            "seq": frame["seq"].to_numpy(np.int64),
            "clock": middle[clock],
            "step": frame["step"].to_numpy(np.int64),
            "came_ns": moved(frame["start_ns"].to_numpy(np.int64), clock, maps),
            "left_ns": np.where(
                stood, moved(frame["end_ns"].to_numpy(np.int64), clock, maps), NOT_SEEN_NS
            ),
            "error_ns": error[clock],
        }
    )
    by_set = rows[_sampled(rows)].groupby(["group", "seq", "clock"], as_index=False)
    table = by_set.agg({"step": "min", "came_ns": "max", "left_ns": "min", "error_ns": "max"})
    first = table.groupby(["group", "seq"]).transform("first")
    is_other = table["clock"] != first["clock"]
    table, first = table[is_other], first[is_other]
    between = {
        "error_ns": first["error_ns"] + table["error_ns"],
        "step": table["step"],
        "own_ns": np.nan,
    }
    forth, back = (
        pd.DataFrame(
            {
                "sender": one["clock"],
                "receiver": other["clock"],
                "sent_ns": one["came_ns"],
                "received_ns": other["left_ns"],
                **between,
            }
        )
        for one, other in ((first, table), (table, first))
    )
    both = pd.concat([forth, back], ignore_index=True)
    return both[both["received_ns"] != NOT_SEEN_NS]
