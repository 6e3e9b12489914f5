"""What part of the training step a device activity belongs to: phase, mesh axis, stage."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from meshscope.probe.schema.terms import COMPUTE_KINDS, Axis, KernelCategory, SpanKind

from ...align.communication.kernels import axis_by_launch
from ...tables.arrays import IntArray
from ...tables.intervals import pair, union
from ...tables.trace import Trace

COMMUNICATION, OTHER, UNLINKED = "communication", "other", "unlinked"
"""Phases beside the kinds of compute spans."""
NO_AXIS, NO_STAGE = "", -1

_ANNOTATED = (
    (re.compile(r"^(?:#+ )?forward\b|\.forward$", re.IGNORECASE), SpanKind.FORWARD),
    (re.compile(r"^(?:#+ )?backward\b", re.IGNORECASE), SpanKind.BACKWARD),
    (re.compile(r"^(?:#+ )?optimizer\b|^Optimizer\.step", re.IGNORECASE), SpanKind.OPTIMIZER),
)
_AUTOGRAD = re.compile(r"^autograd::engine::")


def kernel_places(trace: Trace, rank: int, kernel: pd.DataFrame) -> pd.DataFrame:
    """Return phase, axis and stage of each device activity of a rank, in its order.

    The phase is that of the launch, or of the start where no launch is known, by the
    first rule that applies: ``communication`` for a communication kernel; the compute span
    of our probe around it; an annotation of the host named after the forward pass,
    the backward pass or the optimizer; ``backward`` inside an operator of the autograd
    engine on the same thread; ``forward`` for what another operator launched, unless
    annotations say where the forward pass is; ``other`` for the rest, ``unlinked`` for
    what has no launch. The axis is that of the recorded operation that starts with a communication
    kernel, ``other`` where there is none, and empty for the rest. The stage is that of
    the span, else the pipeline coordinate of the rank where it holds one stage, else -1.
    """
    launch_ns = kernel["launch_ns"].fillna(kernel["start_ns"]).to_numpy(np.int64)
    phase = _by_operator(trace, rank, kernel, launch_ns)
    stage = np.full(len(kernel), _rank_stage(trace, rank), dtype=np.int64)
    _by_span(trace, rank, launch_ns, phase, stage)
    communicates = (kernel["category"] == KernelCategory.COMMUNICATION.value).to_numpy(bool)
    phase[communicates] = COMMUNICATION
    axis = np.full(len(kernel), NO_AXIS, dtype=object)
    axis[communicates] = _axis(trace, rank, kernel[communicates])
    return pd.DataFrame({"phase": phase, "axis": axis, "stage": stage}, index=kernel.index)


def _by_operator(
    trace: Trace, rank: int, kernel: pd.DataFrame, launch_ns: IntArray
) -> npt.NDArray[np.object_]:
    """Return the phase by annotations and operators."""
    op = trace.rank_frame("op", rank, ["op_id", "name_id", "thread", "start_ns", "dur_ns"])
    thread = _launch_thread(trace, rank, kernel, op)
    names = trace.rank_frame("name", rank)
    annotated = _annotated(trace, rank, names)
    phase = np.full(len(kernel), OTHER, dtype=object)
    phase[kernel["launch_ns"].isna().to_numpy(bool)] = UNLINKED
    if SpanKind.FORWARD not in annotated:
        phase[(kernel["op_id"] >= 0).to_numpy(bool)] = SpanKind.FORWARD.value
    engine = op[op["name_id"].isin(_named(names, _AUTOGRAD))]
    for own, rows in engine.groupby("thread"):
        is_own = thread == own
        phase[is_own & _is_inside(_intervals(rows), launch_ns)] = SpanKind.BACKWARD.value
    for kind, intervals in annotated.items():
        phase[_is_inside(intervals, launch_ns)] = kind.value
    return phase


def _launch_thread(
    trace: Trace, rank: int, kernel: pd.DataFrame, op: pd.DataFrame
) -> npt.NDArray[np.int64]:
    """Return the thread of the call, or of the operator, that launched each activity; 0 if none."""
    calls = trace.rank_frame("runtime_call", rank, ["correlation", "thread"])
    of_call = calls[calls["correlation"] > 0].drop_duplicates("correlation")
    of_op = kernel["op_id"].map(op.set_index("op_id")["thread"])
    found = kernel["correlation"].map(of_call.set_index("correlation")["thread"])
    return found.fillna(of_op).fillna(0).to_numpy(np.int64)


def _annotated(trace: Trace, rank: int, names: pd.DataFrame) -> dict[SpanKind, IntArray]:
    """Return when the host was inside annotations that name a phase."""
    note = trace.rank_frame("annotation", rank, ["device", "name_id", "start_ns", "dur_ns"])
    host = note[note["device"] < 0]
    found = {}
    for pattern, kind in _ANNOTATED:
        rows = host[host["name_id"].isin(_named(names, pattern))]
        if len(rows):
            found[kind] = _intervals(rows)
    return found


def _by_span(
    trace: Trace,
    rank: int,
    launch_ns: IntArray,
    phase: npt.NDArray[np.object_],
    stage: npt.NDArray[np.int64],
) -> None:
    """Overwrite phase and stage where a compute span on the host's clock is around the launch."""
    spans = trace.rank_frame("span", rank)
    if not trace.capabilities.is_in_issue_order or spans.empty:
        return
    kinds = [kind.value for kind in COMPUTE_KINDS]
    known = spans[spans["kind"].isin(kinds)]
    for kind, own in known[["kind", "stage"]].drop_duplicates().itertuples(index=False):
        rows = known[(known["kind"] == kind) & (known["stage"] == own)]
        inside = _is_inside(_intervals(rows), launch_ns)
        phase[inside] = str(kind)
        if int(own) >= 0:
            stage[inside] = int(own)


def _axis(trace: Trace, rank: int, kernel: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return the axis of the recorded operation that starts with each kernel, or launched it."""
    if trace.kernel_steps is not None:
        return axis_by_launch(trace, rank, kernel["launch_ns"])
    start_ns = kernel["start_ns"]
    known: dict[int, str] = {}
    for name in ("p2p", "collective"):
        rows = trace.rank_frame(name, rank)
        known |= dict(zip(rows["start_ns"].tolist(), rows["axis"].astype(str), strict=True))
    found: npt.NDArray[np.object_] = start_ns.map(known).fillna(Axis.OTHER.value).to_numpy(object)
    return found


def _rank_stage(trace: Trace, rank: int) -> int:
    layout = trace.layout
    if layout is None or layout.vpp > 1 or rank >= layout.world_size:
        return NO_STAGE
    return layout.coordinates(rank)["pp"]


def _named(names: pd.DataFrame, pattern: re.Pattern[str]) -> pd.Series[int]:
    return names.loc[[bool(pattern.search(name)) for name in names["name"]], "name_id"]


def _intervals(rows: pd.DataFrame) -> IntArray:
    start_ns = rows["start_ns"].to_numpy(np.int64)
    return union(pair(start_ns, start_ns + rows["dur_ns"].to_numpy(np.int64)))


def _is_inside(merged: IntArray, instants: IntArray) -> npt.NDArray[np.bool_]:
    place = np.searchsorted(merged[:, 0], instants, side="right") - 1
    if not len(merged):
        return np.zeros(len(instants), dtype=bool)
    return np.asarray((place >= 0) & (instants < merged[place, 1]))
