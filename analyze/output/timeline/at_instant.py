"""What a rank did at one instant of a drawn step: its slice, and whom the operation in it waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from msgspec.structs import replace

from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.terms import SYNCHRONISING

from ...align.clocks.alignment import has_clocks_apart
from ...align.clocks.stamps import settled
from ...align.communication.events import communication_events
from ...align.communication.waiting import last_arrivals, stood_waiting
from ...align.steps.windows import step_windows
from ...tables.arrays import IntArray
from ...tables.trace import Trace
from .slices import StepSlices

_MOST_AT_ONCE = 4
"""Operations of a rank at one time, of which the one that began last is looked for."""
_COLUMNS = ["rank", "group_id", "axis", "kind", "size_bytes", "join", "begin_ns", "end_ns"]
_COLUMNS += ["start_ns", "split_ns", "wire_ns", "waited_ns", "last"]
_WAITED_FOR = [kind.value for kind in SYNCHRONISING]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """An operation, as one of its members had it."""

    kind: str
    """What it is: all_reduce, send, ..."""
    axis: str
    group_id: str
    size_bytes: int | None
    """None where it was not recorded."""
    ranks: tuple[int, ...]
    """Its recorded members, ascending."""
    waited_ns: float | None
    """How long this member stood still before the transfer began; None where that is not known."""
    wire_ns: float | None
    """How long the transfer itself took; None where that is not known."""
    waited_for: int | None
    """The member that came last, if it is another one and nobody could leave before it came."""
    came_ns: float | None = None
    """When that one came, on its own clock; None where that is not known."""
    until_ns: float | None = None
    """Until when this member stood waiting for it; None where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTransfers:
    """All operations of one step, matched across ranks."""

    frame: pd.DataFrame
    """A row a member of each: rank, group_id, axis, kind, size_bytes, join, begin_ns and end_ns (from when
    until when it stood in it, as the figure has it), start_ns, split_ns and wire_ns as in ``CommunicationEvents``,
    waited_ns (NaN where that is not known) and last (the rank that came last, -1 if nobody did)."""
    shift_ns: int
    """What to add to a time of the capture to find it in the frame."""


def step_transfers(trace: Trace, step: int) -> StepTransfers | None:
    """Return the operations of a step; None where it is not among the steps that can be analysed."""
    trace = settled(trace).trace
    try:
        windows = step_windows(trace)
    except MeshscopeError:
        return None
    is_it = windows.steps == step
    if not is_it.any():
        return None
    alone = replace(
        windows,
        frame=windows.frame[windows.frame["step"] == step],
        steps=windows.steps[is_it],
        run=windows.run[is_it],
    )
    frame = communication_events(trace, alone).frame
    is_joint = frame["kind"].isin(_WAITED_FOR) | (frame["is_p2p"] & ~frame["is_buffered"])
    joint = frame[is_joint]
    last = _longest_awaited(joint) if has_clocks_apart(trace) else last_arrivals(joint)
    frame = frame.assign(
        begin_ns=frame["start_ns"].where(~frame["host"], frame["wait_start_ns"]),
        end_ns=frame["end_ns"].where(~frame["host"], frame["wait_end_ns"]),
        waited_ns=stood_waiting(frame).where(frame["wire_ns"].notna()),
        last=frame["join"].map(last).fillna(-1).astype(np.int64),
    )
    # Of whom nobody saw both ends, no instant is known to be inside.
    frame = frame.loc[frame[["begin_ns", "end_ns"]].notna().all(axis=1), _COLUMNS]
    shift = windows.shifted(pd.Series([step]), pd.Series([0]))
    return StepTransfers(frame=frame.reset_index(drop=True), shift_ns=int(shift[0]))


def _longest_awaited(frame: pd.DataFrame) -> pd.Series:
    """Return by operation who stood in it the shortest, without those where two did: no clocks are compared."""
    stood = frame["end_ns"] - frame["start_ns"]
    is_least = stood == stood.groupby(frame["join"]).transform("min")
    least = frame[is_least]
    return least.drop_duplicates("join", keep=False).set_index("join")["rank"]


def waiting_until(slices: pd.DataFrame, transfers: StepTransfers, origin_ns: int) -> IntArray:
    """Return until when the rank of each slice stands waiting in it; its begin where it does not, or nothing tells.

    Args:
        slices: Slices of the step, as ``StepSlices`` has them.
        transfers: The operations of the step.
        origin_ns: Start of the step on the clock of the capture.
    """
    start, stop = (slices[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    frame = transfers.frame[transfers.frame["wire_ns"].notna()]
    if frame.empty or not len(slices):
        return start
    rank = frame["rank"].to_numpy(np.int64)
    begin, end = (frame[name].to_numpy(np.float64) for name in ("begin_ns", "end_ns"))
    split = frame["split_ns"].to_numpy(np.float64)
    middle = (start + stop) / 2 + origin_ns + transfers.shift_ns
    # The ranks are laid one after the other on one line.
    first, last = min(begin.min(), middle.min()), max(end.max(), middle.max()) + 1
    order = np.argsort(rank * (last - first) + begin - first)
    line = (rank * (last - first) + begin - first)[order]
    own = slices["rank"].to_numpy(np.int64)
    found = np.searchsorted(line, own * (last - first) + middle - first, side="right") - 1
    until = start.astype(np.float64)
    is_open = np.ones(len(slices), dtype=bool)
    for back in range(_MOST_AT_ONCE):
        at = order[np.maximum(found - back, 0)]
        is_it = is_open & (found >= back) & (rank[at] == own) & (end[at] > middle)
        until = np.where(is_it, split[at] - origin_ns - transfers.shift_ns, until)
        is_open &= ~is_it
    return np.asarray(np.clip(until, start, stop), dtype=np.int64)


def slice_at(drawn: StepSlices, row: int, at_ns: int) -> pd.Series | None:
    """Return the slice of a row at an instant, ns from the start of the step; None where nothing is drawn."""
    slices = drawn.slices
    start, end = slices["start_ns"].to_numpy(), slices["end_ns"].to_numpy()
    found = np.flatnonzero((slices["row"].to_numpy() == row) & (start <= at_ns) & (at_ns < end))
    return slices.iloc[int(found[0])] if len(found) else None


def transfer_at(transfers: StepTransfers, rank: int, time_ns: int) -> Transfer | None:
    """Return the operation that a rank was in; of several the one that began last.

    Args:
        transfers: Those of the step.
        rank: The rank.
        time_ns: When, on the clock of the capture.
    """
    frame = transfers.frame
    at = time_ns + transfers.shift_ns
    own = frame[frame["rank"] == rank]
    own = own[(own["begin_ns"] <= at) & (at < own["end_ns"])]
    if own.empty:
        return None
    event = own.iloc[int(own["begin_ns"].to_numpy().argmax())]
    members = frame[frame["join"] == event["join"]]
    last = int(event["last"])
    came = members.loc[members["rank"] == last, "start_ns"]
    is_awaited = last not in (-1, rank)
    return Transfer(
        kind=str(event["kind"]),
        axis=str(event["axis"]),
        group_id=str(event["group_id"]),
        size_bytes=int(event["size_bytes"]) or None,
        ranks=tuple(sorted({int(member) for member in members["rank"]})),
        waited_ns=_known(event["waited_ns"]),
        wire_ns=_known(event["wire_ns"]),
        waited_for=last if is_awaited else None,
        came_ns=float(came.iloc[0]) - transfers.shift_ns if is_awaited and len(came) else None,
        until_ns=_known(event["split_ns"] - transfers.shift_ns) if is_awaited else None,
    )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
