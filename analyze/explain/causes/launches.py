"""Time in which a device waited for its host beside a transfer in flight: launches that came late.

By the account an instant with a transfer in flight and no other device work is communication. Where the next
work had not been launched yet, or was on its way to the device, the transfer did not hold the rank up; its host
did, and the replay takes the time for the rank's own work. Both are right, and what they part by is measured instant
by instant. Work that was launched long before it started, and a host inside a call that waits for the device,
are no such proof: there the rank may have waited.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import KernelCategory

from ...account.kernels.idle import LATENCY_NS, WAITING_CALL
from ...account.ledger.build import Ledger
from ...align.steps.windows import StepWindows
from ...tables.arrays import IntArray
from ...tables.classes import UNSPLIT, WAIT_CLASSES, WIRE_CLASSES, class_code
from ...tables.intervals import intersect, pair, subtract, total_length, union
from ...tables.trace import Trace
from ..replay.program import Program

MOVED = (*WAIT_CLASSES, *WIRE_CLASSES, UNSPLIT)
"""Classes of time with a transfer in flight."""
_NO_WORK = (KernelCategory.COMMUNICATION.value, KernelCategory.SYNC.value)


class LateLaunches(NamedTuple):
    """What account and replay part by because hosts launched late, all analysed steps, ns by rank."""

    waiting_ns: pd.Series[float]
    """Waiting of the account that is work of the replay."""
    moved_ns: pd.Series[float]
    """The same of all communication."""


def late_launches(trace: Trace, program: Program, ledger: Ledger) -> LateLaunches | None:
    """Return how much of the communication inside the work of a replay is late launches.

    None where no device activities were recorded; 0 of a rank of which no launch is known.
    """
    if not trace.row_count("kernel"):
        return None
    ranks = program.windows.ranks.tolist()
    rows = [_of_rank(trace, rank, program, ledger) for rank in ranks]
    waiting, moved = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    return LateLaunches(pd.Series(waiting, ranks), pd.Series(moved, ranks))


def _of_rank(trace: Trace, rank: int, program: Program, ledger: Ledger) -> tuple[int, int]:
    marks = program.marks.iloc[program.work_edges]
    marks = marks[marks["rank"] == rank]
    end = marks["start_ns"].to_numpy(np.int64)
    inside = union(pair(end - marks["work_ns"].to_numpy(np.int64), end))
    own = ledger.segments[ledger.segments["rank"] == rank]
    moved = intersect(inside, _of_classes(own, MOVED))
    queued, blocked = _held_by_device(trace, rank, program.windows)
    if not len(queued):
        return 0, 0
    held = intersect(moved, queued)
    long = held[held[:, 1] - held[:, 0] >= LATENCY_NS]
    late = subtract(moved, np.concatenate([long, blocked]))
    return total_length(intersect(late, _of_classes(own, WAIT_CLASSES))), total_length(late)


def _of_classes(segments: pd.DataFrame, names: tuple[str, ...]) -> IntArray:
    rows = segments[segments["code"].isin([class_code(name) for name in names])]
    return union(pair(rows["start_ns"].to_numpy(np.int64), rows["end_ns"].to_numpy(np.int64)))


def _held_by_device(trace: Trace, rank: int, windows: StepWindows) -> tuple[IntArray, IntArray]:
    """Return when work was launched and had not started, and when the host waited for the device."""
    kernel = trace.rank_frame("kernel", rank, ["step", "category", "start_ns", "launch_ns"])
    is_work = ~kernel["category"].isin(_NO_WORK) & kernel["launch_ns"].notna()
    work = kernel[is_work & (kernel["launch_ns"] < kernel["start_ns"])]
    names = trace.rank_frame("name", rank).set_index("name_id")["name"].astype(str)
    calls = trace.rank_frame("runtime_call", rank, ["step", "name_id", "start_ns", "dur_ns"])
    calls = calls[calls["name_id"].isin(names.index[names.str.contains(WAITING_CALL)])]
    back = calls["start_ns"] + calls["dur_ns"]
    return (
        _shifted(windows, work["step"], work["launch_ns"], work["start_ns"]),
        _shifted(windows, calls["step"], calls["start_ns"], back),
    )


def _shifted(windows: StepWindows, step: pd.Series, start: pd.Series, end: pd.Series) -> IntArray:
    """Return intervals on the time line of the ledger; each as a whole, by the step of its row."""
    begin = start.to_numpy(np.int64)
    moved = windows.shifted(step, start.astype(np.int64))
    return pair(moved, moved + end.to_numpy(np.int64) - begin)
