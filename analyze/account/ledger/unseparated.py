"""What a ledger cannot tell apart: in steps without communication records, and without peers.

At the level ``stages`` communication hides inside the compute spans: they become one
class of their own. Where sums were kept, the waits of each kind of span are known
together, so computing is the rest of the span; which of the waits was for others and
which for the transfer is not known. Nor is it known of an operation whose other members
are not in the capture, and of the like of which no transfer was seen. Spans hide communication too
where nothing was recorded along an axis whose operations lie inside of them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import StepDetail

from ...align.communication.events import CommunicationEvents
from ...align.communication.unseen import INSIDE_SPANS
from ...align.steps.windows import StepWindows
from ...tables.classes import (
    CLASSES,
    COMPUTE_CLASSES,
    LEAST_SEPARATED,
    SPAN_CLASS,
    UNATTRIBUTED,
    UNSEPARATED,
    UNSPLIT,
    class_code,
    compute_code,
)
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
