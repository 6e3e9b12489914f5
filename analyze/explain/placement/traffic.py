"""What a rank sends on each axis in a step, and how long that takes.

Sent in one go are messages between which a port has less rest than the one before took. A port may pass so much faster than it carries for long: buffers and allowances for bursts are filled by it. Worked example,
messages of 10 bytes::

    start 0, took 4
    start 6, took 4    rest of 2: the same train, 20 bytes
    start 20, took 4   rest of 10: a train of its own
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis, CollectiveKind

from ...align.communication.bandwidth import (
    bus_factor,
    fixed_times,
    group_sizes,
    time_of_event,
    transfer_table,
)
from ...tables.arrays import IntArray
from ...tables.classes import WIRE_CLASSES
from ...tables.trace import Trace
from ..run_account import Account
from .crossing import FloatArray, Pattern
from .members import Members, expert_places, recorded_members

_OF_RANK = ["axis", "pattern", "rank"]


def longest_trains(sent: pd.DataFrame, ranks: int) -> pd.Series:
    """Return the longest train of a rank, bytes, the mean over ranks.

    Args:
        sent: axis, pattern, rank, starts (ns), wire (ns) and sent (bytes) of each message.
        ranks: How many ranks the job has.

    Returns:
        Index axis, pattern.
    """
    rows = sent.sort_values([*_OF_RANK, "starts"], kind="stable")
    ends, took = rows["starts"] + rows["wire"], rows["wire"]
    keys = [rows[name] for name in _OF_RANK]
    rest = rows["starts"] - ends.groupby(keys).shift()
    is_first = ~(rest <= took.groupby(keys).shift())  # NaN of the first of a rank is one.
    train = pd.Series(np.cumsum(is_first.to_numpy()), index=rows.index)
    by_train = rows["sent"].groupby([*keys, train]).sum()
    longest = by_train.groupby(level=_OF_RANK).max()
    mean: pd.Series = longest.groupby(level=["axis", "pattern"]).sum() / max(ranks, 1)
    return mean


_PLACED = (Axis.TP, Axis.PP, Axis.DP, Axis.CP, Axis.EP)


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """The operations of one pattern on one axis."""

    axis: Axis
    pattern: Pattern
    sent_bytes: float
    """By a rank in a step, the mean over ranks; bus factors as in the NCCL tests."""
    wire_ns: float
    """In a step of a rank, the mean over ranks."""
    exposed_ns: float
    """The part that no compute hides."""
    fixed_ns: float = 0.0
    """The part of the wire time that no size explains: hops, launching, synchronising."""
    hops: float = 0.0
    """In a step of a rank: turns of the rings, one for each message."""
    train_bytes: float = 0.0
    """The most that a rank sends in one go, the mean over ranks."""
    members: tuple[Members, ...] = ()
    """The groups, where all of them were recorded: sums of gradients may join replicas and parts of the sequence."""


def traffic_of(account: Account) -> tuple[Traffic, ...]:
    """Return the traffic by axis and pattern; operations of unknown size or time are left out."""
    layout, frame = account.trace.layout, account.events.frame
    if layout is None or not len(frame):
        return ()
    members = group_sizes(account.trace, frame)
    fixed = fixed_times(transfer_table(frame, members))
    if len(fixed):  # One size leaves it open: all of the time then counts as that of bytes.
        fixed["fixed_ns"] = fixed["fixed_ns"].where(fixed["is_fitted"].astype(bool), 0.0)
    # A buffered send ends at once: the wire time of a message is that of its receive.
    wire = frame.groupby("join")["wire_ns"].transform("max")
    is_sent = (~frame["is_p2p"] | frame["is_send"]).to_numpy(bool)
    frame, members = frame.assign(wire_ns=wire)[is_sent], members[is_sent]
    axis = frame["axis"].astype(str)
    own = frame["wire_ns"].to_numpy(np.float64)
    of_event = time_of_event(fixed, frame, members)["fixed_ns"].to_numpy(np.float64)
    table = pd.DataFrame(
        {
            "axis": axis,
            "pattern": patterns(frame),
            "group_id": frame["group_id"].astype(str),
            "sent": frame["size_bytes"].to_numpy(float) * _factors(account, frame),
            "wire": own,
            "fixed": np.fmin(np.nan_to_num(of_event), own),
            "hops": _hops(frame, members),
            "rank": frame["rank"].to_numpy(np.int64),
            "starts": frame["split_ns"].to_numpy(np.float64),
        }
    )
    experts = expert_places(account.trace)
    placed = [axis for axis in _PLACED if axis is not Axis.EP or experts is not None]
    known = table[(table["sent"] > 0) & (table["wire"] > 0) & axis.isin(placed).to_numpy()]
    ranks = max(len(account.trace.ranks), 1)
    per, trains = len(account.windows.steps) * ranks, longest_trains(known, ranks)
    sums = known.groupby(["axis", "pattern"])[["sent", "wire", "fixed", "hops"]].sum() / per
    of_axis = sums["wire"].groupby(level="axis").sum()
    groups = _members(account.trace, layout, known)
    if experts is not None:
        alike = Members(experts, np.ones(len(experts)))
        groups = {(Axis.EP.value, kind.value): (alike,) for kind in Pattern} | groups
    names = dict(zip(Axis, WIRE_CLASSES, strict=True))
    mean_ns = account.windows.mean_ns
    return tuple(
        Traffic(
            axis=Axis(str(name)),
            pattern=Pattern(str(kind)),
            sent_bytes=float(sent),
            wire_ns=float(wire),
            exposed_ns=account.class_frac(names[Axis(str(name))])
            * mean_ns
            * float(wire / of_axis[name]),
            fixed_ns=float(fixed_ns),
            hops=float(hops),
            train_bytes=float(trains[name, kind]),
            members=groups.get((str(name), str(kind)), ()),
        )
        for (name, kind), (sent, wire, fixed_ns, hops) in zip(
            sums.index, sums.to_numpy(), strict=True
        )
    )


def _members(
    trace: Trace, layout: ParallelLayout, sent: pd.DataFrame
) -> dict[tuple[str, str], tuple[Members, ...]]:
    """Return the groups of each axis and pattern; none of a capture that lacks ranks."""
    world = range(layout.world_size)
    if set(trace.ranks) != set(world):
        return {}
    table = trace.frame("group")
    ranks = dict(zip(table["group_id"].astype(str), table["ranks"].map(tuple), strict=True))
    found: dict[tuple[str, str], tuple[Members, ...]] = {}
    for (axis, pattern), own in sent.groupby(["axis", "pattern"]):
        by_group = own.groupby("group_id")["sent"].sum()
        members = [(ranks.get(str(name), ()), float(part)) for name, part in by_group.items()]
        if all(of_group and set(of_group) <= set(world) for of_group, _ in members):
            found[str(axis), str(pattern)] = recorded_members(layout, members)
    return found


def patterns(frame: pd.DataFrame) -> npt.NDArray[np.str_]:
    """Return the pattern of each event."""
    is_p2p = frame["is_p2p"].to_numpy(bool)
    is_pipeline = (frame["axis"].astype(str) == Axis.PP.value).to_numpy(bool)
    return np.select(
        [is_p2p & is_pipeline, is_p2p, _is_all_to_all(frame).to_numpy(bool)],
        [Pattern.CHAIN.value, Pattern.FORWARD.value, Pattern.EXCHANGE.value],
        default=Pattern.RING.value,
    )


def _hops(frame: pd.DataFrame, members: IntArray) -> FloatArray:
    """Return the turns of a ring over the members: twice as many for a sum that all get; 1 a message."""
    is_sum = (frame["kind"].astype(str) == CollectiveKind.ALL_REDUCE.value).to_numpy(bool)
    turns = np.where(is_sum, 2, 1) * np.maximum(members - 1, 1)
    return np.where(frame["is_p2p"].to_numpy(bool), 1.0, turns)


def _is_all_to_all(frame: pd.DataFrame) -> pd.Series:
    found: pd.Series = frame["kind"].astype(str) == CollectiveKind.ALL_TO_ALL.value
    return found


def _factors(account: Account, frame: pd.DataFrame) -> FloatArray:
    """Return the bus factor of each event; 0 where the operation moves nothing that is known."""
    group = account.trace.frame("group")
    members = dict(zip(group["group_id"].astype(str), group["ranks"].map(len), strict=True))
    kinds = pd.DataFrame(
        {"kind": frame["kind"].astype(str), "size": frame["group_id"].astype(str).map(members)}
    )
    kinds.loc[frame["is_p2p"].to_numpy(bool), "kind"] = "send_recv"
    pairs = kinds.fillna({"size": 0}).groupby(["kind", "size"]).ngroup()
    named = kinds.fillna({"size": 0}).drop_duplicates()
    table = [bus_factor(kind, int(size)) or 0.0 for kind, size in named.itertuples(index=False)]
    by_code = dict(zip(pairs[named.index].tolist(), table, strict=True))
    return np.array([by_code[code] for code in range(len(table))], dtype=np.float64)[
        pairs.to_numpy()
    ]
