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

from meshscope.probe.schema.terms import Axis, KernelCategory, SpanKind

from .communication import CommunicationEvents
from .intervals import NO_OWNER, IntArray, pair, sweep_priority
from .steps import StepWindows
from .trace import Trace

COMPUTE_CLASSES = ("forward", "backward", "recompute", "optimizer", "compute")
"""``compute`` is device work that no annotation explains."""
WAIT_CLASSES = tuple(f"exposed_{axis.value}_wait" for axis in Axis)
WIRE_CLASSES = tuple(f"exposed_{axis.value}_wire" for axis in Axis)
STALLS = ("data_load", "gc", "checkpoint", "offload", "host_blocked", "other")
"""Host time that is a cause of its own: no rank is called slow for it."""
HOST_CLASSES = ("exposed_memcpy", *STALLS)
UNATTRIBUTED = "unattributed"
CLASSES = (*COMPUTE_CLASSES, *WIRE_CLASSES, *WAIT_CLASSES, *HOST_CLASSES, UNATTRIBUTED)
"""All classes of the ledger, in the order of the waterfall."""

_CODE = {name: code for code, name in enumerate(CLASSES)}
_AXES = [axis.value for axis in Axis]
_SPAN_CLASS = {
    SpanKind.BACKWARD_INPUT.value: "backward",
    SpanKind.BACKWARD_WEIGHT.value: "backward",
    SpanKind.GRAD_CLIP.value: "optimizer",
}
_KERNEL_CLASS = {
    KernelCategory.COMPUTE.value: "compute",
    KernelCategory.UNKNOWN.value: "compute",
    KernelCategory.MEMCPY.value: "exposed_memcpy",
    KernelCategory.MEMSET.value: "exposed_memcpy",
}
_KERNEL_COLUMNS = ("rank", "step", "category", "start_ns", "dur_ns")
NO_EVENT = -1


class Ledger(NamedTuple):
    """Classified segments, and their sum per rank and step."""

    segments: pd.DataFrame
    """rank, step, start_ns, end_ns, code (position in CLASSES), event (row of the events, -1)."""
    by_step: pd.DataFrame
    """rank, step, step_ns and one column per class in ns."""


class _Claims(NamedTuple):
    """Intervals of one rank that claim time, with class, priority and event row."""

    intervals: IntArray
    code: npt.NDArray[np.int64]
    priority: npt.NDArray[np.int64]
    event: npt.NDArray[np.int64]

    def and_those(self, more: _Claims) -> _Claims:
        """Return these claims, then others of the same rank."""
        return _Claims(*map(np.concatenate, zip(self, more, strict=True)))


def build_ledger(trace: Trace, windows: StepWindows, events: CommunicationEvents) -> Ledger:
    """Return the ledger of the analysed steps of every captured rank.

    Kernels are read and swept rank by rank: those of all ranks may not fit in memory.
    """
    has_kernels = trace.row_count("kernel") > 0
    spans = _span_claims(trace, windows, above_compute=has_kernels)
    found = [part for part in (spans, _event_claims(events.frame)) if len(part)]
    shared = pd.concat(found, ignore_index=True) if found else spans
    parts = []
    for rank, claims, own in _by_rank(shared, windows):
        if has_kernels:
            claims = claims.and_those(_kernel_claims(trace, rank, windows))
        parts.append(_rank_segments(claims, own, events.frame))
    segments = pd.concat(parts, ignore_index=True)
    return Ledger(segments, _sum_by_step(segments, windows))


def compute_code(code: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which class codes are compute."""
    return np.isin(code, [_CODE[name] for name in COMPUTE_CLASSES])


def class_code(name: str) -> int:
    """Return the code of a class."""
    return _CODE[name]


def _by_rank(
    claims: pd.DataFrame, windows: StepWindows
) -> Iterator[tuple[int, _Claims, pd.DataFrame]]:
    """Yield each rank with its claims and windows: one sort, then slices."""
    rank = claims["rank"].to_numpy(np.int64)
    order = np.argsort(rank, kind="stable")
    low = np.searchsorted(rank[order], windows.ranks, side="left")
    high = np.searchsorted(rank[order], windows.ranks, side="right")
    intervals = claims[["start_ns", "end_ns"]].to_numpy(np.int64)[order]
    labels = claims[["code", "priority", "event"]].to_numpy(np.int64)[order]
    own_windows = dict(iter(windows.frame.groupby("rank")))
    for value, first, last in zip(windows.ranks.tolist(), low, high, strict=True):
        code, priority, event = labels[first:last].T
        own = _Claims(intervals[first:last], code, priority, event)
        yield value, own, own_windows[value]


def _span_claims(trace: Trace, windows: StepWindows, *, above_compute: bool) -> pd.DataFrame:
    """Return the claims of spans.

    With kernels in the capture a span is host time only: the device decides what
    was computed, and a compute span does not claim the idle device.
    """
    frame = _in_steps(trace.frame("span"), trace, windows)
    kind = frame["kind"].astype(str).replace(_SPAN_CLASS)
    is_compute = kind.isin(COMPUTE_CLASSES)
    if above_compute:
        frame, kind, is_compute = frame[~is_compute], kind[~is_compute], is_compute[~is_compute]
    start = windows.shifted(frame["step"], frame["start_ns"])
    priority = np.select([kind == "gc", kind == "recompute", is_compute], [-1, 4, 5], default=3)
    if trace.per_step_clock:
        priority = np.where(is_compute, 0, 3)
    if above_compute:
        priority = np.full(len(frame), 3)
    return pd.DataFrame(
        {
            "rank": frame["rank"].to_numpy(),
            "start_ns": start,
            "end_ns": start + frame["dur_ns"].to_numpy(np.int64),
            "code": kind.map(_CODE).fillna(_CODE["other"]).astype(np.int64).to_numpy(),
            "priority": priority,
            "event": NO_EVENT,
        }
    )


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
    axis = events["axis"].map(_AXES.index).astype(np.int64).to_numpy()
    return pd.DataFrame(
        {
            "rank": events["rank"].to_numpy()[known],
            "start_ns": start[known].astype(np.int64),
            "end_ns": end[known].astype(np.int64),
            "code": _CODE[WIRE_CLASSES[0]] + axis[known],
            "priority": 1,
            "event": np.flatnonzero(known),
        }
    )


def _kernel_claims(trace: Trace, rank: int, windows: StepWindows) -> _Claims:
    kernels = _in_steps(trace.rank_frame("kernel", rank, _KERNEL_COLUMNS), trace, windows)
    category = kernels["category"].astype(str)
    is_kept = category.isin(_KERNEL_CLASS)
    kept, classes = kernels[is_kept], category[is_kept].map(_KERNEL_CLASS)
    start = windows.shifted(kept["step"], kept["start_ns"])
    return _Claims(
        pair(start, start + kept["dur_ns"].to_numpy(np.int64)),
        classes.map(_CODE).to_numpy(np.int64),
        np.where(classes == "compute", 0, 2).astype(np.int64),
        np.full(len(kept), NO_EVENT, dtype=np.int64),
    )


def _rank_segments(claims: _Claims, windows: pd.DataFrame, events: pd.DataFrame) -> pd.DataFrame:
    """Sweep one rank, cut at its step borders, split exposed time into wait and wire."""
    starts, ends = windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()
    swept = sweep_priority(claims.intervals, claims.priority, (int(starts.min()), int(ends.max())))
    owner = swept.owner
    claimed = owner != NO_OWNER
    code = np.full(len(owner), _CODE[UNATTRIBUTED])
    code[claimed] = claims.code[owner[claimed]]
    event = np.full(len(owner), NO_EVENT)
    event[claimed] = claims.event[owner[claimed]]
    split = np.full(len(owner), swept.start[0] if len(owner) else 0)
    with_event = event != NO_EVENT
    split[with_event] = events["split_ns"].to_numpy()[event[with_event]].astype(np.int64)
    cuts = np.concatenate([starts, ends, np.clip(split, swept.start, swept.end)[with_event]])
    return _cut(swept.start, swept.end, cuts, windows, (code, event, split))


def _cut(
    start: IntArray,
    end: IntArray,
    cuts: IntArray,
    windows: pd.DataFrame,
    labels: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]],
) -> pd.DataFrame:
    """Cut segments that tile a window at the given instants and label the pieces."""
    if not len(start):
        columns = ("rank", "step", "start_ns", "end_ns", "code", "event")
        return pd.DataFrame({name: np.empty(0, np.int64) for name in columns})
    bounds = np.unique(np.concatenate([start, end[-1:], np.clip(cuts, start[0], end[-1])]))
    left, right = bounds[:-1], bounds[1:]
    source = np.searchsorted(start, left, side="right") - 1
    code, event, split = (label[source] for label in labels)
    waiting = (event != NO_EVENT) & (left < split)
    code = np.where(waiting, code + len(_AXES), code)
    place = np.searchsorted(windows["start_ns"].to_numpy(), left, side="right") - 1
    inside = (place >= 0) & (left < windows["end_ns"].to_numpy()[place])
    return pd.DataFrame(
        {
            "rank": windows["rank"].iloc[0],
            "step": windows["step"].to_numpy()[place],
            "start_ns": left,
            "end_ns": right,
            "code": code,
            "event": event,
        }
    )[inside]


def _sum_by_step(segments: pd.DataFrame, windows: StepWindows) -> pd.DataFrame:
    frame = windows.frame
    row = pd.MultiIndex.from_frame(frame[["rank", "step"]])
    place = row.get_indexer(pd.MultiIndex.from_frame(segments[["rank", "step"]]))
    length = (segments["end_ns"] - segments["start_ns"]).to_numpy(np.float64)
    flat = place * len(CLASSES) + segments["code"].to_numpy()
    sums = np.bincount(flat, weights=length, minlength=len(row) * len(CLASSES))
    table = pd.DataFrame(sums.reshape(len(row), len(CLASSES)), columns=list(CLASSES))
    table.insert(0, "rank", frame["rank"].to_numpy())
    table.insert(1, "step", frame["step"].to_numpy())
    table.insert(2, "step_ns", (frame["end_ns"] - frame["start_ns"]).to_numpy(np.float64))
    return table
