"""The exact ledger: every instant of every rank's step gets exactly one class.

A priority sweep over one rank's time line; the classes of a step sum to its
length by construction. On a device capture a compute kernel wins over a
communication kernel, because that communication is overlapped; on a host
capture a blocking wait wins over the span around it, because the thread that
waits does not compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from meshscope.probe.schema.terms import Axis, KernelCategory

from ...align.communication.events import CommunicationEvents
from ...align.communication.kernels import axis_by_launch
from ...align.communication.rows import sorted_categories, unmatched_events
from ...align.steps.time_lookup import steps_around_passes
from ...align.steps.windows import StepWindows
from ...tables.arrays import FloatArray, IntArray, narrow
from ...tables.classes import (
    CLASSES,
    CODE,
    COMPUTE_CLASSES,
    SPAN_CLASS,
    UNATTRIBUTED,
    UNSPLIT,
    WIRE_CLASSES,
)
from ...tables.intervals import NO_OWNER, distinct, sweep_priority
from ...tables.sorting import last_begun
from ...tables.trace import Trace
from ..kernels.coverage import common_kernel_steps, has_kernels, traced_windows
from .claims import Claims

_AXES = [axis.value for axis in Axis]
_KERNEL_CLASS = {
    KernelCategory.COMPUTE.value: "compute",
    KernelCategory.UNKNOWN.value: "exposed_unknown",
    KernelCategory.MEMCPY.value: "exposed_memcpy",
    KernelCategory.MEMSET.value: "exposed_memcpy",
}
_KERNEL_PRIORITY = {"compute": 0, UNSPLIT: 1}
_KERNEL_COLUMNS = ("rank", "step", "category", "start_ns", "dur_ns", "op_id", "launch_ns")
NO_EVENT = -1
CLAIMS_AT_ONCE = 200_000
"""Claims that are swept together: large enough for few passes, small enough for the cache."""


class Ledger(NamedTuple):
    """Classified segments, and their sum per rank and step."""

    segments: pd.DataFrame
    """rank, step, start_ns, end_ns, code (position in CLASSES), event (row of the events, -1)."""
    by_step: pd.DataFrame
    """rank, step, step_ns and one column per class in ns."""


def build_ledger(trace: Trace, windows: StepWindows, events: CommunicationEvents) -> Ledger:
    """Return the ledger of the analysed steps of every captured rank."""
    return _ledger_of(trace, windows, events.frame)


def unsplit_ledger(trace: Trace, windows: StepWindows) -> Ledger:
    """Return the same without looking at partners: exposed communication counts as transfer, all of it.

    Where a transfer began only its partners tell. Everything else is as in ``build_ledger``.
    """
    events = unmatched_events(trace, windows)
    return _ledger_of(trace, windows, events.assign(split_ns=events["start_ns"].astype(np.float64)))


def _ledger_of(trace: Trace, windows: StepWindows, events: pd.DataFrame) -> Ledger:
    """Return the ledger with operations at their times in ``events``.

    Kernels are read and swept rank by rank: those of all ranks may not fit in memory.
    """
    any_kernels = trace.row_count("kernel") > 0
    common = common_kernel_steps(trace, windows.ranks)
    spans = _span_claims(trace, windows, common)
    found = [part for part in (spans, _event_claims(events)) if len(part)]
    shared = _joined(found or [spans])
    del found, spans
    split = events["split_ns"].to_numpy()
    parts, sums = [], []
    for claims, own in _blocks(shared, windows, one_by_one=any_kernels):
        if any_kernels:
            rank = int(own["rank"].iloc[0])
            kernels = _kernel_claims(trace, rank, windows)
            if common is not None:
                kernels = kernels.within(traced_windows(windows, rank, common))
            claims = claims.and_those(kernels)
        segments, by_class = _block_segments(claims, own, split)
        parts.append(segments)
        sums.append(by_class)
    segments = _joined(parts)
    return Ledger(segments, _by_step(np.concatenate(sums), windows))


def _joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all parts, which are emptied: memory holds one column twice, not all."""
    names = [str(column) for column in parts[0]]
    columns = {
        name: np.concatenate([part.pop(name).to_numpy() for part in parts]) for name in names
    }
    return pd.DataFrame(columns, copy=False)


def _blocks(
    claims: pd.DataFrame, windows: StepWindows, *, one_by_one: bool
) -> Iterator[tuple[Claims, pd.DataFrame]]:
    """Yield the claims and windows of some ranks at a time: one sort, then slices.

    Args:
        claims: Those of all ranks.
        windows: All windows.
        one_by_one: One rank at a time, whether it has claims or none; else as many as have
            ``CLAIMS_AT_ONCE`` together.
    """
    rank = claims["rank"].to_numpy()
    order = np.argsort(rank, kind="stable")
    in_order = rank[order]
    is_known = np.isin(in_order, windows.ranks)
    if not is_known.all():
        order, in_order = order[is_known], in_order[is_known]
    bounds = np.searchsorted(in_order, windows.ranks, side="left")
    ends = np.searchsorted(in_order, windows.ranks, side="right")
    first_window = np.searchsorted(windows.frame["rank"].to_numpy(), windows.ranks)
    window_ends = np.append(first_window[1:], len(windows.frame))
    at = 0
    while at < len(windows.ranks):
        last = int(np.searchsorted(ends, bounds[at] + CLAIMS_AT_ONCE, side="right"))
        last = at + 1 if one_by_one else min(max(last, at + 1), len(windows.ranks))
        rows = order[bounds[at] : ends[last - 1]]
        own_windows = windows.frame.iloc[first_window[at] : window_ends[last - 1]]
        own = {str(name): claims[name].to_numpy()[rows] for name in claims}
        intervals = np.column_stack([own.pop("start_ns"), own.pop("end_ns")])
        yield Claims(intervals, **own), own_windows
        at = last


def _span_claims(trace: Trace, windows: StepWindows, common: IntArray | None) -> pd.DataFrame:
    """Return the claims of spans.

    In a step with kernels a span is host time only: the device decides what
    was computed, and a compute span does not claim the idle device.
    """
    frame = _in_steps(trace.frame("span"), trace, windows)
    kind = _classes(frame["kind"])
    is_compute = kind.isin(COMPUTE_CLASSES)
    on_device = has_kernels(trace, frame["step"], common)
    is_left = ~(is_compute & on_device)
    if not is_left.all():
        frame, kind, is_compute = frame[is_left], kind[is_left], is_compute[is_left]
        on_device = on_device[is_left]
    begin, dur_ns = when_computed(frame)
    start = windows.shifted(frame["step"], begin)
    priority = np.select([kind == "gc", kind == "recompute", is_compute], [-1, 4, 5], default=3)
    priority += steps_around_passes(frame["rank"].to_numpy(), kind, start, dur_ns)
    if trace.per_step_clock:
        priority = np.where(is_compute, 0, 3)
    priority = np.where(on_device, 3, priority)
    codes = [CODE.get(str(name), CODE["other"]) for name in kind.cat.categories]
    code = np.array(codes, dtype=np.int8)[kind.cat.codes.to_numpy()]
    return _claim_rows(frame["rank"], start, start + dur_ns, code, priority, NO_EVENT)


def _classes(kind: pd.Series) -> pd.Series:
    """Return the class of each kind of span, as categories."""
    kinds = kind.astype("category").cat
    names = [SPAN_CLASS.get(str(name), str(name)) for name in kinds.categories]
    return pd.Series(sorted_categories(kinds.codes.to_numpy(), names), index=kind.index)


def when_computed(frame: pd.DataFrame) -> tuple[pd.Series, IntArray]:
    """Return start and length of spans: on the device where that was timed, else on the host."""
    known = frame["device_start_ns"].notna() & frame["device_dur_ns"].notna()
    start = frame["start_ns"].mask(known, frame["device_start_ns"].fillna(0).astype(np.int64))
    dur = frame["dur_ns"].mask(known, frame["device_dur_ns"].fillna(0).astype(np.int64))
    return start, dur.to_numpy(np.int64)


def _claim_rows(
    rank: pd.Series,
    start: IntArray,
    end: IntArray,
    code: npt.ArrayLike,
    priority: npt.ArrayLike,
    event: npt.ArrayLike,
) -> pd.DataFrame:
    """Return claims as narrow columns: there is one for every span and operation."""
    columns = {
        "rank": rank.to_numpy(np.int32),
        "start_ns": start,
        "end_ns": end,
        "code": np.asarray(code, dtype=np.int8),
        "priority": np.broadcast_to(np.asarray(priority, dtype=np.int8), start.shape),
        "event": np.broadcast_to(np.asarray(event, dtype=np.int32), start.shape),
    }
    return pd.DataFrame(columns, copy=False)


def _in_steps(frame: pd.DataFrame, trace: Trace, windows: StepWindows) -> pd.DataFrame:
    """Leave out the rows of other steps where each step has its own time origin.

    On one clock the time decides, so that what lies on a border is cut there.
    """
    return windows.select(frame) if trace.per_step_clock else frame


def _event_claims(events: pd.DataFrame) -> pd.DataFrame:
    """Return what communication claims: the wait on a host clock, else the operation."""
    host = events["host"].to_numpy(bool)
    start = np.where(host, events["wait_start_ns"], events["start_ns"])
    end = np.where(host, events["wait_end_ns"], events["end_ns"])
    known = ~(np.isnan(start) | np.isnan(end))
    names = events["axis"].cat
    axis = np.array([_AXES.index(name) for name in names.categories], dtype=np.int8)[names.codes]
    return _claim_rows(
        events["rank"][known],
        start[known].astype(np.int64),
        end[known].astype(np.int64),
        CODE[WIRE_CLASSES[0]] + axis[known],
        1,
        np.flatnonzero(known),
    )


def _kernel_claims(trace: Trace, rank: int, windows: StepWindows) -> Claims:
    kernels = _in_steps(trace.rank_frame("kernel", rank, _KERNEL_COLUMNS), trace, windows)
    category = kernels["category"].astype(str)
    classes = category.map(_KERNEL_CLASS)
    if trace.kernel_steps is not None:
        # The operations are those that the probe saw on the host, not these kernels.
        moves = category == KernelCategory.COMMUNICATION.value
        axis = pd.Series(axis_by_launch(trace, rank, kernels["launch_ns"][moves]), dtype=str)
        wire = ("exposed_" + axis + "_wire").set_axis(kernels.index[moves])
        classes = classes.fillna(wire)
    else:
        # One that is an operation shares its time with it, and the operation comes first.
        classes = classes.mask(category == KernelCategory.COMMUNICATION.value, UNSPLIT)
    is_kept = classes.notna()
    kept, classes = kernels[is_kept], classes[is_kept]
    # What an operator launched is taken for compute, as in the breakdown of device time.
    classes = classes.mask((classes == "exposed_unknown") & (kept["op_id"] >= 0), "compute")
    start = windows.shifted(kept["step"], kept["start_ns"])
    return Claims(
        np.column_stack([start, start + kept["dur_ns"].to_numpy(np.int64)]),
        np.asarray(classes.map(CODE), dtype=np.int64),
        np.asarray(classes.map(_KERNEL_PRIORITY).fillna(2), dtype=np.int64),
        np.full(len(kept), NO_EVENT, dtype=np.int64),
        np.full(len(kept), rank, dtype=np.int64),
    )


def _block_segments(
    claims: Claims, windows: pd.DataFrame, split_ns: FloatArray
) -> tuple[pd.DataFrame, FloatArray]:
    """Sweep some ranks, cut at their step borders, split exposed time into wait and wire.

    The ranks are laid one after the other on one line, and swept together.

    Args:
        claims: Claims of these ranks.
        windows: Their windows.
        split_ns: Where each event is split.

    Returns:
        The segments, and the time of each class by window, ns.
    """
    claims, claim_moved_by, (starts, ends, moved_by) = claims.on_one_line(windows)
    line = (int(starts.min()), int(ends.max()))
    swept = sweep_priority(claims.intervals, claims.priority, line)
    owner = swept.owner
    claimed = owner != NO_OWNER
    code = np.full(len(owner), CODE[UNATTRIBUTED], np.int8)
    code[claimed] = claims.code[owner[claimed]]
    event = np.full(len(owner), NO_EVENT, np.int32)
    event[claimed] = claims.event[owner[claimed]]
    split = np.full(len(owner), swept.start[0] if len(owner) else 0)
    with_event = event != NO_EVENT
    own_split = split_ns[event[with_event]].astype(np.int64)
    split[with_event] = own_split + claim_moved_by[owner[with_event]]
    cuts = np.concatenate([starts, ends, np.clip(split, swept.start, swept.end)[with_event]])
    pieces = _cut(swept.start, swept.end, cuts, (code, event, split))
    place = last_begun(starts, pieces.start)
    inside = (place >= 0) & (pieces.start < ends[place])
    place = place[inside]
    start, end = (pieces.start[inside] - moved_by[place], pieces.end[inside] - moved_by[place])
    flat = place * len(CLASSES) + pieces.code[inside]
    sums = np.bincount(
        flat, weights=(end - start).astype(np.float64), minlength=len(windows) * len(CLASSES)
    )
    segments = {
        "rank": windows["rank"].to_numpy(np.int32)[place],
        "step": narrow(windows["step"].to_numpy())[place],
        "start_ns": start,
        "end_ns": end,
        "code": pieces.code[inside].astype(np.int8),
        "event": pieces.event[inside].astype(np.int32),
    }
    table = pd.DataFrame(segments, copy=False)
    return table, np.asarray(sums, dtype=np.float64).reshape(len(windows), len(CLASSES))


class _Pieces(NamedTuple):
    """Segments cut at given instants."""

    start: IntArray
    end: IntArray
    code: IntArray
    event: IntArray


def _cut(
    start: IntArray, end: IntArray, cuts: IntArray, labels: tuple[IntArray, IntArray, IntArray]
) -> _Pieces:
    """Cut segments that tile a window at the given instants and label the pieces."""
    if not len(start):
        return _Pieces(*(np.empty(0, np.int64) for _ in range(4)))
    bounds = distinct(np.concatenate([start, end[-1:], np.clip(cuts, start[0], end[-1])]))
    left, right = bounds[:-1], bounds[1:]
    source = last_begun(start, left)
    code, event, split = (label[source] for label in labels)
    waiting = (event != NO_EVENT) & (left < split)
    return _Pieces(left, right, np.where(waiting, code + len(_AXES), code), event)


def _by_step(sums: FloatArray, windows: StepWindows) -> pd.DataFrame:
    frame = windows.frame
    table = pd.DataFrame(sums, columns=list(CLASSES))
    table.insert(0, "rank", frame["rank"].to_numpy())
    table.insert(1, "step", frame["step"].to_numpy())
    table.insert(2, "step_ns", (frame["end_ns"] - frame["start_ns"]).to_numpy(np.float64))
    return table
