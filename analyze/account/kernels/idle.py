"""How long a device had nothing to do, and why: an exact partition of its idle time.

Every idle instant has one cause, found by what the thread that made the next launch was doing:

=================== ============================================================================
cause               the instant is
=================== ============================================================================
allocator           inside a call that takes or gives back memory of the driver
synchronise         inside a call that waits for the device, which has nothing left to do
long_call           inside another single call of a millisecond or more: a module is loaded, a lock is held
device_wait         after a launch returned and before any launched work began, for long
launch_latency      the same for no longer than a launch takes, or inside the launch itself
kernel_gap          in a gap as short before work that the device has had for long: one kernel follows another
long_operator       inside operators that launch nothing for a millisecond or more
launching           inside another operator or call
nothing_launched    none of these: Python, input, a lock; nothing was recorded but perhaps a stack
=================== ============================================================================

The table is in the order of priority.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from meshscope.probe.schema.terms import KernelCategory

from ...tables.arrays import IntArray
from ...tables.intervals import (
    NO_OWNER,
    covered_length,
    intersect,
    pair,
    subtract,
    sweep_priority,
    total_length,
    union,
)
from ...tables.trace import Trace
from .coverage import device_extents

WAITING_CALL = re.compile(
    r"synchroni[sz]e|\b(?:ur|pi)(?:QueueFinish|Events?Wait)|\b(?:cu|cuda|hip)Memcpy(?:HtoD|DtoH|WithStream)?(?:_v\d+)?(?:_ptds(?:_v\d+)?)?$",
    re.IGNORECASE,
)
"""Names of calls that return when the device is done; Nsight adds a version to them."""
ALLOCATOR_CALL = re.compile(
    r"\b(?:cuda|hip|cu|aclrt|musa|xpu)_?"
    r"(?:Malloc|Free|Mem(?:Alloc|Free|Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree)|"
    r"(?:Mem)?Host(?:Alloc|Malloc|Free|Register|Unregister|GetDevicePointer)|MemHost\w+)"
    r"|\b(?:ze|pi|ur)(?:Mem|USM|extUSM)\w*(?:Alloc|Free)",
    re.IGNORECASE,
)
"""Names of calls that take memory from the driver or give it back: most of them wait for the device,
and all of them for the driver's lock."""
EVENT_WAIT_CALL = re.compile(r"StreamWait(?:Event|Value)", re.IGNORECASE)
"""Names of calls that make a stream wait on the device; they return at once."""


ALLOCATOR, SYNCHRONISE, LONG_CALL = "allocator", "synchronise", "long_call"
DEVICE_WAIT, LAUNCH_LATENCY, KERNEL_GAP = "device_wait", "launch_latency", "kernel_gap"
LONG_OPERATOR, LAUNCHING, NOTHING = "long_operator", "launching", "nothing_launched"
CAUSES = (
    ALLOCATOR,
    SYNCHRONISE,
    LONG_CALL,
    DEVICE_WAIT,
    LAUNCH_LATENCY,
    KERNEL_GAP,
    LONG_OPERATOR,
    LAUNCHING,
    NOTHING,
)
LONG_NS = 1_000_000
"""From this length one call or operator is no launch overhead: a launch takes 2 to 20 us."""
LATENCY_NS = 50_000
"""Longer than the way of a launch to an idle device, which is 5 to 20 us."""
_CALL_COLUMNS = ["name_id", "thread", "start_ns", "dur_ns", "correlation"]
_OP_COLUMNS = ["op_id", "name_id", "thread", "start_ns", "dur_ns"]
_ANY_THREAD = np.iinfo(np.int64).min


class IdleCauses(NamedTuple):
    """The idle time of the device of one rank."""

    total_ns: dict[str, int]
    """By cause; together they are the idle time."""
    blockers: pd.DataFrame
    """Calls and operators in which the host was, one row each with idle_ns > 0: cause, name,
    is_call, thread, start_ns, dur_ns, idle_ns."""
    waits: IntArray
    """Intervals of ``device_wait``."""
    nothing: IntArray
    """Intervals of ``nothing_launched``."""
    threads: IntArray
    """Threads that launch."""


class _Launches(NamedTuple):
    """When the calls that launched device work began and returned, and its work started; by begin."""

    begin: IntArray
    back: IntArray
    start: IntArray
    reached: IntArray
    """From when on the device surely had it: a launch is on its way for ``LATENCY_NS`` at most, and
    one of several kernels (a graph) has arrived when the first of them begins."""
    thread: IntArray


def idle_causes(
    trace: Trace, rank: int, work: pd.DataFrame, windows: IntArray
) -> IdleCauses | None:
    """Split the idle time of a rank's device; None where no launch is known.

    Args:
        trace: The capture.
        rank: The rank.
        work: Its device work, without synchronisation rows: start_ns, dur_ns, launch_ns, correlation,
            op_id.
        windows: The time that is asked about, a merged set, ns; idle before the first and after
            the last work in it counts.
    """
    if not work["launch_ns"].notna().any():
        return None
    calls = trace.rank_frame("runtime_call", rank, _CALL_COLUMNS)
    ops = trace.rank_frame("op", rank, _OP_COLUMNS)
    launches = _launches(work, calls, ops)
    idle = subtract(windows, _intervals(work))
    blocking = _blocking(trace, rank, calls, ops, launches)
    queued = pair(launches.back, launches.start)
    # A short call is a part of the launch; in a long one the host is stuck.
    short = launches.back - launches.begin < LONG_NS
    way = pair(launches.begin[short], np.maximum(launches.back, launches.start)[short])
    late = subtract(idle, union(np.concatenate([queued, way])))
    sums = dict.fromkeys(CAUSES, 0)
    nothing, parts = [], []
    for thread in np.unique(launches.thread).tolist():
        own = _of_thread(late, launches, thread)
        part, rest = _swept(own, blocking, thread, launches.begin)
        parts.append(part)
        nothing.append(rest)
    blockers = pd.concat(parts, ignore_index=True)
    for cause, length in blockers.groupby("cause")["idle_ns"].sum().items():
        sums[str(cause)] += int(length)
    # The time since a launch returned decides: a part of the launch call before it is no wait.
    waits = intersect(idle, union(queued))
    waits = waits[waits[:, 1] - waits[:, 0] >= LATENCY_NS]
    sums[DEVICE_WAIT] += total_length(waits)
    short_waits = subtract(subtract(idle, late), waits)
    sums[KERNEL_GAP] += _gaps_of_the_device(short_waits, launches)
    sums[LAUNCH_LATENCY] += total_length(short_waits) - sums[KERNEL_GAP]
    unexplained = union(np.concatenate(nothing))
    sums[NOTHING] += int((unexplained[:, 1] - unexplained[:, 0]).sum())
    return IdleCauses(
        total_ns=sums,
        blockers=blockers,
        waits=waits,
        nothing=unexplained,
        threads=np.unique(launches.thread),
    )


def device_work(kernel: pd.DataFrame) -> pd.DataFrame:
    """Return the device activities of a rank without its synchronisation rows."""
    return kernel[kernel["category"] != KernelCategory.SYNC.value]


def _launches(work: pd.DataFrame, calls: pd.DataFrame, ops: pd.DataFrame) -> _Launches:
    known = work[work["launch_ns"].notna()]
    begin = known["launch_ns"].to_numpy(np.int64)
    start = known["start_ns"].to_numpy(np.int64)
    of_call = calls[calls["correlation"] > 0].sort_values("start_ns")
    of_call = of_call.drop_duplicates("correlation").set_index("correlation")
    at = known["correlation"]
    returned = (at.map(of_call["start_ns"]) + at.map(of_call["dur_ns"])).fillna(-1)
    back = np.maximum(returned.to_numpy(np.int64), begin)
    thread = at.map(of_call["thread"])
    of_op = ops.drop_duplicates("op_id").set_index("op_id")["thread"]
    found = thread.fillna(known["op_id"].map(of_op)).fillna(_ANY_THREAD).to_numpy(np.int64)
    first = known["start_ns"].groupby(at.where(at > 0)).transform("min").fillna(known["start_ns"])
    reached = np.minimum(back + LATENCY_NS, first.to_numpy(np.int64))
    order = np.argsort(begin, kind="stable")
    return _Launches(*(column[order] for column in (begin, back, start, reached, found)))


def _gaps_of_the_device(gaps: IntArray, launches: _Launches) -> int:
    """Return how much of a merged set of gaps, ns, lies behind the arrival of the work that ends each."""
    order = np.argsort(launches.start, kind="stable")
    place = np.searchsorted(launches.start[order], gaps[:, 1], side="left")
    is_ended = place < len(order)
    reached = launches.reached[order][np.minimum(place, len(order) - 1)]
    own = gaps[:, 1] - np.maximum(gaps[:, 0], reached)
    return int(own[is_ended].clip(min=0).sum())


def _of_thread(late: IntArray, launches: _Launches, thread: int) -> IntArray:
    """Return the parts of a merged set after which this thread is the next to launch.

    After the last launch of all it is the thread that made that one.
    """
    cuts = launches.begin
    bounds = np.unique(np.concatenate([late.ravel(), cuts]))
    place = np.searchsorted(cuts, bounds[:-1], side="left")
    place = np.minimum(np.where(np.isin(bounds[:-1], cuts), place + 1, place), len(cuts) - 1)
    segments = np.column_stack([bounds[:-1], bounds[1:]])
    return intersect(segments[launches.thread[place] == thread], late)


def _blocking(
    trace: Trace, rank: int, calls: pd.DataFrame, ops: pd.DataFrame, launches: _Launches
) -> pd.DataFrame:
    """Return calls and operators of all threads with the cause that each stands for."""
    names = trace.rank_frame("name", rank).set_index("name_id")["name"].astype(str)
    named = calls.assign(is_call=True, cause=_cause_of_call(calls, names))
    end = (ops["start_ns"] + ops["dur_ns"]).to_numpy(np.int64)
    first = np.searchsorted(launches.begin, ops["start_ns"].to_numpy(np.int64), side="left")
    is_empty = np.searchsorted(launches.begin, end, side="left") == first
    is_long = is_empty & (ops["dur_ns"].to_numpy(np.int64) >= LONG_NS)
    of_ops = ops.assign(is_call=False, cause=np.where(is_long, LONG_OPERATOR, LAUNCHING))
    columns = ["name_id", "thread", "start_ns", "dur_ns", "is_call", "cause"]
    both = pd.concat([named[columns], of_ops[columns]], ignore_index=True)
    return both.assign(name=both["name_id"].map(names).fillna("unknown").astype(str))


def _cause_of_call(calls: pd.DataFrame, names: pd.Series[str]) -> npt.NDArray[np.object_]:
    name_id = calls["name_id"]
    is_wait = name_id.isin(names.index[names.str.contains(WAITING_CALL)])
    is_memory = name_id.isin(names.index[names.str.contains(ALLOCATOR_CALL)])
    choices = [is_memory, is_wait, calls["dur_ns"] >= LONG_NS]
    found = np.select([c.to_numpy(bool) for c in choices], [0, 1, 2], 3)
    words = np.array([ALLOCATOR, SYNCHRONISE, LONG_CALL, LAUNCHING], dtype=object)
    return np.asarray(words[found])


def _swept(
    own: IntArray, blocking: pd.DataFrame, thread: int, launched: IntArray
) -> tuple[pd.DataFrame, IntArray]:
    """Return what a thread was in during its idle instants, and those at which it was in nothing."""
    rows = blocking
    if thread != _ANY_THREAD:
        rows = blocking[blocking["thread"] == thread]
    rows = rows.reset_index(drop=True)
    columns = ["cause", "name", "is_call", "thread", "start_ns", "dur_ns"]
    if not len(own):
        return rows.iloc[:0][columns].assign(idle_ns=np.empty(0, np.int64)), own
    level = rows["cause"].map({cause: at for at, cause in enumerate(CAUSES)}).to_numpy(np.int64)
    start = rows["start_ns"].to_numpy(np.int64)
    intervals = np.column_stack([start, start + rows["dur_ns"].to_numpy(np.int64)])
    segments = sweep_priority(intervals, level, (int(own[0, 0]), int(own[-1, 1])))
    idle = covered_length(own, segments.start, segments.end)
    is_in = segments.owner != NO_OWNER

    def by_row(lengths: IntArray) -> IntArray:
        """Return the sum of what lies in the segments of each row, ns."""
        sums = np.bincount(segments.owner[is_in], weights=lengths[is_in], minlength=len(rows))
        return sums.astype(np.int64)[: len(rows)]

    without = intersect(own, _without_launch(rows, launched))
    is_launching = (rows["cause"] == LAUNCHING).to_numpy(bool) & ~rows["is_call"].to_numpy(bool)
    held = np.where(is_launching, by_row(covered_length(without, segments.start, segments.end)), 0)
    found = pd.concat(
        [
            rows[columns].assign(idle_ns=by_row(idle) - held),
            rows[columns].assign(idle_ns=held, cause=LONG_OPERATOR),
        ],
        ignore_index=True,
    )
    free = np.column_stack([segments.start[~is_in], segments.end[~is_in]])
    return found[found["idle_ns"] > 0], intersect(own, free)


def _without_launch(rows: pd.DataFrame, launched: IntArray) -> IntArray:
    """Return the stretches of ``LONG_NS`` or more that a thread is in operators and nothing is launched.

    Time in a call that blocks is none of them; between two operators less than the way of a launch is.

    Args:
        rows: Calls and operators of the thread: cause, is_call, start_ns, dur_ns.
        launched: When all launches began, rising, ns.
    """
    far = np.iinfo(np.int64).max // 2
    bounds = np.concatenate([[-far], launched, [far]])
    is_gap = np.diff(bounds) >= LONG_NS
    gaps = pair(bounds[:-1][is_gap], bounds[1:][is_gap])
    is_call = rows["is_call"].to_numpy(bool)
    stuck = is_call & (rows["cause"] != LAUNCHING).to_numpy(bool)
    start = rows["start_ns"].to_numpy(np.int64)
    end = start + rows["dur_ns"].to_numpy(np.int64)
    in_operators = union(pair(start[~is_call], end[~is_call] + LATENCY_NS))
    found = subtract(intersect(in_operators, gaps), union(pair(start[stuck], end[stuck])))
    return found[found[:, 1] - found[:, 0] >= LONG_NS]


def _intervals(rows: pd.DataFrame) -> IntArray:
    start_ns = rows["start_ns"].to_numpy(np.int64)
    return union(pair(start_ns, start_ns + rows["dur_ns"].to_numpy(np.int64)))


class DeviceIdle(NamedTuple):
    """Times of one rank, ns; None where launches are not known."""

    span_ns: int
    """From the first start to the last end of device work, see ``device_extents``."""
    busy_ns: int
    """Union of all device work; synchronisation rows are none."""
    starved_ns: int | None
    """Idle while nothing was launched that had not started: the host was late."""
    launch_bound_ns: int | None
    """The part of it in which the thread that launches was launching (``idle_causes``)."""

    @property
    def idle_ns(self) -> int:
        """Return the span less what is busy."""
        return self.span_ns - self.busy_ns


def device_idle(trace: Trace, rank: int, kernel: pd.DataFrame) -> DeviceIdle:
    """Split the idle time of one rank's device, all its streams together.

    With A the instants at which any device work runs, and Q those between the launch of
    an activity and its start: idle = span - A, starved = idle - Q. Launch-bound is the part of
    starved in which the CPU is launching: the thread that launches next is inside an operator or a
    call, and not in one that blocks it. ``idle_causes`` says what else the host did.

    HolisticTraceAnalysis asks the same of each stream alone and counts a gap as ``host_wait``
    from its beginning to the next start if that was launched after the gap began; here the
    gap ends with the launch, and a stream that waits while another works is not idle.

    Args:
        trace: The capture.
        rank: The rank.
        kernel: Its device activities: step, category, start_ns, dur_ns, launch_ns, correlation, op_id.
    """
    work = device_work(kernel)
    if work.empty:
        return DeviceIdle(0, 0, None, None)
    busy = _intervals(work)
    extents = device_extents(trace, work)
    starved = starved_intervals(trace, work)
    span_ns, busy_ns = total_length(extents), total_length(busy)
    if starved is None:
        return DeviceIdle(span_ns, busy_ns, None, None)
    causes = idle_causes(trace, rank, work, extents)
    is_host_recorded = bool(trace.row_count("op") or trace.row_count("runtime_call"))
    bound = causes.total_ns[LAUNCHING] if causes is not None and is_host_recorded else None
    return DeviceIdle(span_ns, busy_ns, total_length(starved), bound)


def starved_intervals(trace: Trace, work: pd.DataFrame) -> IntArray | None:
    """Return when the device of a rank had nothing to do; None where no launch is known.

    Args:
        trace: The capture.
        work: Device work of the rank: step, start_ns, dur_ns, launch_ns.
    """
    launched = work[work["launch_ns"].notna()]
    if launched.empty:
        return None
    queued = pair(launched["launch_ns"].to_numpy(np.int64), launched["start_ns"].to_numpy(np.int64))
    return subtract(subtract(device_extents(trace, work), _intervals(work)), queued)
