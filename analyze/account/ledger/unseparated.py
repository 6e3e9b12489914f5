"""What a ledger cannot tell apart: in steps without communication records, and without peers.

At the level ``stages`` communication hides inside the compute spans: they become one
class of their own. Where sums were kept, the waits of each kind of span are known
together, so computing is the rest of the span; which of the waits was for others and
which for the transfer is not known. Nor is it known of an operation whose other members
are not in the capture, and of the like of which no transfer was seen. Spans hide communication too
where nothing was recorded along an axis whose operations lie inside of them.

A batch of sends and receives (``batch_isend_irecv``) is one kernel that lasts until its peers have come and
the data is there. Nothing joins it to the kernels of its peers. The least duration of the like kernels of all
ranks is what the wire takes, for in that one nobody waited long; it is the end of each kernel, and what is
before that is waiting.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import Axis, KernelCategory, StepDetail

from ...align.communication.events import CommunicationEvents
from ...align.communication.unseen import INSIDE_SPANS
from ...align.steps.windows import StepWindows
from ...tables.arrays import IntArray
from ...tables.classes import (
    CLASSES,
    CODE,
    COMPUTE_CLASSES,
    LEAST_SEPARATED,
    SPAN_CLASS,
    UNATTRIBUTED,
    UNSEPARATED,
    UNSPLIT,
    class_code,
    compute_code,
)
from ...tables.intervals import covered_length, pair, union
from ...tables.trace import Trace
from ...wording.limits import Limit
from ...wording.message import message
from .build import NO_EVENT, Ledger

_KEY = ["rank", "step"]


def without_guesses(
    ledger: Ledger, trace: Trace, windows: StepWindows, unseen: tuple[str, ...] = ()
) -> Ledger:
    """Return the ledger with what the capture cannot separate in a class of its own.

    The classes of a step still sum to its length. A job of one rank has no communication.

    Args:
        ledger: The ledger.
        trace: The capture.
        windows: Its steps; their detail may be too little.
        unseen: Axes along which nothing was recorded; kernels are computing all the same.
    """
    is_hidden = not INSIDE_SPANS.isdisjoint(unseen) and not trace.row_count("kernel")
    is_separated = windows.detail is StepDetail.FULL and not is_hidden
    if is_separated or trace.run.get("world_size") == 1:
        return ledger
    segments = ledger.segments.copy()
    is_compute = compute_code(segments["code"].to_numpy(np.int64))
    segments.loc[is_compute, "code"] = np.int8(class_code(UNSEPARATED))
    by_step = ledger.by_step.copy()
    if windows.detail is StepDetail.SUMS:
        return Ledger(segments, _less_waits(by_step, trace))
    compute = list(COMPUTE_CLASSES)
    by_step[UNSEPARATED] = by_step[compute].sum(axis=1)
    by_step[compute] = 0.0
    return Ledger(segments, by_step)


def without_unknown_wires(
    ledger: Ledger, events: CommunicationEvents
) -> tuple[Ledger, tuple[Limit, ...]]:
    """Return the ledger with exposed operations of unknown wire time in the class of sums.

    A send that the host buffers waits for nobody. Segments keep the class of their axis, which
    the limits that are returned beside the ledger tell.
    """
    frame = events.frame
    is_unknown = (frame["wire_ns"].isna() & ~frame["is_buffered"]).to_numpy(bool)
    if not is_unknown.any():
        return ledger, ()
    segments = ledger.segments
    event = segments["event"].to_numpy()
    own = segments[is_unknown[event] & (event != NO_EVENT)]
    length = (
        (own["end_ns"] - own["start_ns"]).groupby([own["rank"], own["step"], own["code"]]).sum()
    )
    by_step = ledger.by_step.copy()
    rows = pd.MultiIndex.from_frame(by_step[_KEY])
    moved_of: dict[str, float] = {}
    for code in length.index.unique(level=2):
        moved = length.xs(code, level=2).reindex(rows).fillna(0.0).to_numpy()
        by_step[CLASSES[code]] -= moved
        by_step[UNSPLIT] += moved
        moved_of[CLASSES[code]] = float(moved.sum() / by_step["step_ns"].sum())
    limits = tuple(
        message("unknown.wire_of_axis", axis=name.split("_")[1], share=share)
        for name, share in moved_of.items()
        if share >= LEAST_SEPARATED
    )
    return ledger._replace(by_step=by_step), limits


def _less_waits(by_step: pd.DataFrame, trace: Trace) -> pd.DataFrame:
    """Move the waits from the class of the span around them to that of sums.

    No more than a class has: waits of several threads overlap, and a wait may end in
    the step after that of its operation.
    """
    waits = trace.frame("communication_sum")[[*_KEY, "within", "wait_ns"]].dropna(
        subset=["wait_ns"]
    )
    within = waits["within"].astype(object)
    place = within.map(lambda kind: SPAN_CLASS.get(kind, kind)).fillna(UNATTRIBUTED)
    total = waits["wait_ns"].astype(np.float64).groupby([waits["rank"], waits["step"], place]).sum()
    rows = pd.MultiIndex.from_frame(by_step[_KEY])
    for name in (*COMPUTE_CLASSES, UNATTRIBUTED):
        if name not in total.index.get_level_values(2):
            continue
        wanted = total.xs(name, level=2).reindex(rows).fillna(0.0).to_numpy()
        moved = np.minimum(wanted, by_step[name].to_numpy())
        by_step[name] -= moved
        by_step[UNSPLIT] += moved
    return by_step


_GROUPED = re.compile(r"SendRecv", re.IGNORECASE)
_LEAST_KERNELS = 4
"""Like kernels from which their least duration says something."""


def split_grouped(
    trace: Trace, windows: StepWindows, ledger: Ledger
) -> tuple[Ledger, tuple[Limit, ...]]:
    """Return the ledger with the exposed time of grouped transfers as waiting and wire.

    Nothing is split where other kernels without an operation communicate as well.
    """
    if trace.kernel_steps is not None or not ledger.by_step[UNSPLIT].sum():
        return ledger, ()
    kernels = pd.concat(
        [_outside_operations(trace, int(rank)) for rank in windows.ranks], ignore_index=True
    )
    if kernels.empty or not kernels["name"].str.contains(_GROUPED).all():
        return ledger, ()
    like = kernels.groupby("name")["dur_ns"]
    kernels = kernels.assign(wire_ns=like.transform("min"), like=like.transform("size"))
    if (kernels["like"] < _LEAST_KERNELS).any():
        return ledger, ()
    wire_ns = _exposed_wire(kernels, windows, ledger)
    by_step = ledger.by_step.copy()
    rows = pd.MultiIndex.from_frame(by_step[_KEY])
    exposed = by_step[UNSPLIT].to_numpy(np.float64)
    wire = np.minimum(wire_ns.reindex(rows).fillna(0.0).to_numpy(np.float64), exposed)
    has_stages = trace.layout is not None and trace.layout.pp > 1
    axis = (Axis.PP if has_stages else Axis.OTHER).value
    by_step[f"exposed_{axis}_wire"] += wire
    by_step[f"exposed_{axis}_wait"] += exposed - wire
    by_step[UNSPLIT] = 0.0
    least = [
        message("assumed.grouped_least", time_ns=float(ns))
        for ns in sorted(set(kernels["wire_ns"]))[:4]
    ]
    return ledger._replace(by_step=by_step), (message("assumed.grouped_wire", least=least),)


def _outside_operations(trace: Trace, rank: int) -> pd.DataFrame:
    """Return the communication kernels of a rank that are no recorded operation."""
    columns = ["rank", "name_id", "category", "start_ns", "dur_ns"]
    kernel = trace.rank_frame("kernel", rank, columns)
    moves = kernel[kernel["category"] == KernelCategory.COMMUNICATION.value]
    known = [trace.rank_frame(name, rank)["start_ns"] for name in ("collective", "p2p")]
    own = moves[~moves["start_ns"].isin(pd.concat(known))]
    names = trace.rank_frame("name", rank).set_index("name_id")["name"].astype(str)
    return own.assign(name=own["name_id"].map(names).fillna("").astype(str))


def _exposed_wire(kernels: pd.DataFrame, windows: StepWindows, ledger: Ledger) -> pd.Series[float]:
    """Return by rank and step how much of the exposed time is at the end of a kernel."""
    segments = ledger.segments
    own = segments[(segments["code"] == CODE[UNSPLIT]) & (segments["event"] == NO_EVENT)]
    covered = np.zeros(len(own), dtype=np.int64)
    for rank, rows in kernels.groupby("rank"):
        end = (rows["start_ns"] + rows["dur_ns"]).to_numpy(np.int64) + windows.default_shift_ns
        wire: IntArray = union(pair(end - rows["wire_ns"].to_numpy(np.int64), end))
        is_own = (own["rank"] == rank).to_numpy(bool)
        part = own[is_own]
        covered[is_own] = covered_length(
            wire, part["start_ns"].to_numpy(np.int64), part["end_ns"].to_numpy(np.int64)
        )
    return (
        pd.Series(covered.astype(np.float64))
        .groupby([own["rank"].to_numpy(), own["step"].to_numpy()])
        .sum()
    )
