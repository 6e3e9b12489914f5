"""The idle time of all devices by cause, with the calls that the hosts were in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd

from ...align.steps.windows import StepWindows
from ...tables.arrays import IntArray
from ...tables.early_work import early_ns
from ...tables.intervals import covered_length, intersect, pair, subtract, total_length, union
from ...tables.trace import Trace
from ...wording.message import Message, message
from .host_waits import host_waits, outermost_operator, python_around
from .idle import (
    CAUSES,
    DEVICE_WAIT,
    EVENT_WAIT_CALL,
    LONG_NS,
    LONG_OPERATOR,
    NOTHING,
    SYNCHRONISE,
    IdleCauses,
    device_work,
)
from .lost_work import lost_launches, time_of_lost_work
from .work_by_device import causes_by_device, mean_causes, work_by_device

_COLUMNS = [
    "step", "device", "category", "stream", "start_ns", "dur_ns", "launch_ns", "correlation", "op_id"
]  # fmt: skip
_SHOWN = 3
"""Calls that are named for each cause."""
_OVERHEAD = (
    r"Buffer Flush|Activity Buffer Request|Instrumentation|Resource|UVM Activity Init|Driver Compiler"
    r"|Runtime Triggered Module Loading|Lazy Function Loading|Command Buffer Full"
)
"""What profilers call their own work, and that of the driver."""
_DOUBTFUL = 0.25
"""Share of the idle time from which on a clock that is off makes the causes unknown."""
_WHOLE_STEP = 0.9
"""Share of a step that an annotation must take to stand for it."""
_LEAST_WAIT = 0.02
"""Share of the step from which on what waiting calls cost is worth a sentence."""


class IdleReport(msgspec.Struct, frozen=True, kw_only=True):
    """Idle time of the ranks whose launches are known."""

    frac: dict[str, float]
    """Share of the steps of these ranks by cause."""
    by_rank: pd.DataFrame
    """The same by rank (index), one column a cause."""
    time_ns: float
    """Length of the steps of these ranks together."""
    blockers: pd.DataFrame
    """Most costly first: cause, name, inside (operator, else Python function, around the most costly call;
    empty if none), idle_ns, calls, most_ns (idle in the most costly call), rank (of that call)."""
    longest_call: Message | None
    """The longest single call of a host, idle or not; None below 1 ms."""
    waits: Message | None
    """What calls that wait for the device cost up to the next launch; None where that is little."""
    notes: dict[str, list[Message]] = msgspec.field(default_factory=dict)
    """More that was measured, by cause."""
    lost_frac: float = 0.0
    """Share of the steps that looks idle and may be work that was not recorded: it is in no cause."""
    lost_launches: int = 0
    """How many launches lack their work."""
    clock_off: Message | None = None
    """Why the causes are not to be believed: work begins before its launch, by much of the idle time."""


class Lost(NamedTuple):
    """Launches of which the work is not recorded."""

    launches: int
    idle_ns: int
    """Idle time that may be theirs."""


class _Rank(NamedTuple):
    rank: int
    causes: IdleCauses
    time_ns: int
    blockers: pd.DataFrame
    device_wait: Message | None
    nothing: Message | None
    lost: Lost
    early_ns: int
    """By how much the clock of the device is behind at least."""
    doubtful_ns: int
    """Idle time that a clock so far behind may place at another cause."""


def idle_report(
    trace: Trace, windows: StepWindows, common: IntArray | None, explained: Sequence[str]
) -> IdleReport | None:
    """Return why the devices idled in the analysed steps; None where a rank has no known launch.

    Args:
        trace: The capture.
        windows: The analysed steps.
        common: Those of them that were traced in depth, None for all.
        explained: Kinds of spans that say by themselves why a device idles.
    """
    found = []
    for rank in windows.ranks.tolist():
        kernel = trace.rank_frame("kernel", rank, _COLUMNS)
        if kernel.empty:
            continue
        one = _of_rank(trace, rank, kernel, windows.intervals_of(rank, common), explained)
        if one is None:
            return None
        found.append(one)
    if not found:
        return None
    totals = {one.rank: one.causes.total_ns for one in found}
    ns = pd.DataFrame.from_dict(totals, orient="index", columns=list(CAUSES))
    time = pd.Series({one.rank: float(one.time_ns) for one in found})
    longest = max(found, key=lambda one: _longest(one.causes.nothing))
    waiting = max(found, key=lambda one: _longest(one.causes.waits))
    frac = {cause: float(ns[cause].sum() / time.sum()) for cause in CAUSES}
    return IdleReport(
        frac=frac,
        by_rank=ns.div(time, axis=0),
        time_ns=float(time.sum()),
        blockers=_blockers(trace, found),
        longest_call=_longest_call(trace, [one.rank for one in found]),
        waits=_waits(trace, float(time.sum()), frac[SYNCHRONISE]),
        notes={
            cause: [said]
            for cause, said in (
                (NOTHING, longest.nothing),
                (DEVICE_WAIT, waiting.device_wait),
                (LONG_OPERATOR, _in_operator(trace, found)),
            )
            if said is not None
        },
        lost_frac=sum(one.lost.idle_ns for one in found) / float(time.sum()),
        lost_launches=sum(one.lost.launches for one in found),
        clock_off=_clock_off(found),
    )


def _clock_off(found: list[_Rank]) -> Message | None:
    """Return that the clock of a device is off by too much to tell the causes; None where it is not."""
    idle = sum(sum(one.causes.total_ns.values()) for one in found)
    if sum(one.doubtful_ns for one in found) <= _DOUBTFUL * idle:
        return None
    worst = max(found, key=lambda one: one.early_ns)
    return message("idle.clock_off", rank=worst.rank, apart_ns=worst.early_ns)


def _of_rank(
    trace: Trace, rank: int, kernel: pd.DataFrame, steps: IntArray, explained: Sequence[str]
) -> _Rank | None:
    window = union(steps)
    work = device_work(kernel)
    # What the ledger knows as a stall of the host is not idle without a reason.
    spans = trace.rank_frame("span", rank)
    known = spans[spans["kind"].astype(str).isin(explained)]
    start = known["start_ns"].to_numpy(np.int64)
    unknown = subtract(window, pair(start, start + known["dur_ns"].to_numpy(np.int64)))
    begin = work["start_ns"].to_numpy(np.int64)
    busy = union(pair(begin, begin + work["dur_ns"].to_numpy(np.int64)))
    gaps = subtract(window, busy)
    launches = lost_launches(trace, rank, work)
    lost = intersect(unknown, time_of_lost_work(gaps, work, launches))
    works = work_by_device(trace, rank, work)
    known_of = causes_by_device(trace, rank, works, subtract(subtract(unknown, lost), busy))
    if not known_of:
        return None
    causes = mean_causes(list(known_of.values()))
    waiting = max(known_of, key=lambda device: _longest(known_of[device].waits))
    known_launch = work[work["launch_ns"].notna()]
    early = early_ns((known_launch["start_ns"] - known_launch["launch_ns"]).to_numpy(np.int64))
    blockers = causes.blockers.reset_index(drop=True)
    operator, _ = outermost_operator(trace, rank, blockers)
    is_named = blockers["is_call"].to_numpy(bool)
    return _Rank(
        rank,
        causes,
        int((window[:, 1] - window[:, 0]).sum()),
        blockers.assign(operator=np.where(is_named, operator, ""), rank=rank),
        _device_wait(trace, rank, works[waiting], known_of[waiting].waits),
        _nothing(trace, rank, causes, np.sort(steps[:, 0])),
        Lost(len(launches), total_length(lost)),
        early,
        int(np.minimum(gaps[:, 1] - gaps[:, 0], early).sum()),
    )


def _blockers(trace: Trace, found: list[_Rank]) -> pd.DataFrame:
    every = pd.concat([one.blockers for one in found], ignore_index=True)
    every = every.sort_values(["idle_ns", "dur_ns"], ascending=False)
    sums = every.groupby(["cause", "name", "operator"], as_index=False, sort=False).agg(
        idle_ns=("idle_ns", "sum"),
        calls=("idle_ns", "size"),
        most_ns=("idle_ns", "first"),
        dur_ns=("dur_ns", "first"),
        start_ns=("start_ns", "first"),
        thread=("thread", "first"),
        rank=("rank", "first"),
    )
    top = sums.sort_values("idle_ns", ascending=False).groupby("cause").head(_SHOWN)
    rows: Any = top.to_dict("records")
    inside = [
        row["operator"]
        or python_around(trace, row["rank"], row["thread"], row["start_ns"], row["dur_ns"])
        for row in rows
    ]
    return top.assign(inside=inside).reset_index(drop=True)


def _longest_call(trace: Trace, ranks: list[int]) -> Message | None:
    """Return the longest single call of these ranks, with what is around it."""
    longest: tuple[int, int, pd.DataFrame] | None = None
    for rank in ranks:
        calls = trace.rank_frame("runtime_call", rank, ["name_id", "thread", "start_ns", "dur_ns"])
        if len(calls) and (longest is None or calls["dur_ns"].max() > longest[0]):
            row = calls.loc[[calls["dur_ns"].idxmax()]].reset_index(drop=True)
            longest = int(row["dur_ns"].iloc[0]), rank, row
    if longest is None or longest[0] < LONG_NS:
        return None
    dur_ns, rank, row = longest
    names = trace.rank_frame("name", rank).set_index("name_id")["name"]
    operator = str(outermost_operator(trace, rank, row)[0][0])
    thread, start_ns = int(row["thread"].iloc[0]), int(row["start_ns"].iloc[0])
    inside = operator or python_around(trace, rank, thread, start_ns, dur_ns)
    name = str(names[row["name_id"].iloc[0]])
    call = called(name, inside) if inside else message("idle.call_alone", name=name)
    return message("idle.longest_call", call=call, time_ns=dur_ns, rank=rank)


def called(name: str, inside: str) -> Message:
    """Return a call with the operator or line that it was made in; empty if that is not known."""
    if inside:
        return message("idle.call_inside", name=name, inside=inside)
    return message("idle.call", name=name)


def _waits(trace: Trace, time_ns: float, in_calls: float) -> Message | None:
    """Return what calls that wait for the device cost until the next launch.

    It is more than the idle time in them, unless they are copies that launch work themselves.
    """
    waits = host_waits(trace)
    share = float(waits["starved_ns"].sum()) / time_ns if time_ns else 0.0
    if share < max(_LEAST_WAIT, in_calls):
        return None
    most = waits.iloc[0]
    return message(
        "idle.waits",
        share=share,
        call=called(most["call"], most["operator"]),
        most=float(most["starved_ns"]) / time_ns,
        calls=int(most["count"]),
    )


def _longest(intervals: IntArray) -> int:
    return int((intervals[:, 1] - intervals[:, 0]).max(initial=0))


def _device_wait(trace: Trace, rank: int, work: pd.DataFrame, waits: IntArray) -> Message | None:
    """Return which work waited longest, and for what, as far as that was recorded."""
    if not len(waits):
        return None
    begin, end = waits[_index_of_longest(waits)].tolist()
    longest = {"time_ns": end - begin, "rank": rank}
    first = work[(work["start_ns"] >= end) & work["launch_ns"].notna()].sort_values("start_ns")
    if first.empty:
        return message("idle.longest_wait", **longest)
    stream, launch = int(first["stream"].iloc[0]), int(first["launch_ns"].iloc[0])
    names = trace.rank_frame("name", rank).set_index("name_id")["name"].astype(str)
    calls = trace.rank_frame("runtime_call", rank, ["name_id", "start_ns"])
    waiting = calls[calls["name_id"].isin(names.index[names.str.contains(EVENT_WAIT_CALL)])]
    own = work[(work["stream"] == stream) & (work["start_ns"] < end)]["launch_ns"]
    since = own.max() if own.notna().any() else np.iinfo(np.int64).min
    asked = waiting[(waiting["start_ns"] > int(since)) & (waiting["start_ns"] <= launch)]
    if asked.empty:
        return message("idle.longest_wait_before", **longest, stream=stream)
    name = str(names[asked["name_id"].iloc[-1]])
    return message("idle.longest_wait_for_event", **longest, stream=stream, name=name)


def _nothing(trace: Trace, rank: int, causes: IdleCauses, begun: IntArray) -> Message | None:
    """Return the longest time without any launch, where in the step it is, and what was recorded of it."""
    if not len(causes.nothing):
        return None
    begin, end = causes.nothing[_index_of_longest(causes.nothing)].tolist()
    step = int(begun[np.searchsorted(begun, begin, side="right") - 1])
    longest = {
        "time_ns": end - begin,
        "rank": rank,
        "host": _recorded(trace, rank, causes, begin, end),
    }
    if begin == step:
        return message("idle.longest_nothing_first", **longest)
    return message("idle.longest_nothing", **longest, after_ns=begin - step)


def _in_operator(trace: Trace, found: list[_Rank]) -> Message | None:
    """Return the Python function in which the host was during most of the operator that cost most; None if unknown."""
    every = pd.concat([one.blockers for one in found], ignore_index=True)
    every = every[every["cause"] == LONG_OPERATOR].sort_values("idle_ns", ascending=False)
    if every.empty:
        return None
    columns = ("rank", "start_ns", "dur_ns")
    rank, begin, length = (int(every[name].iloc[0]) for name in columns)
    causes = next(one.causes for one in found if one.rank == rank)
    return _around(trace, rank, causes, "python_call", (begin, begin + length))


def _index_of_longest(intervals: IntArray) -> int:
    return int((intervals[:, 1] - intervals[:, 0]).argmax())


def _recorded(trace: Trace, rank: int, causes: IdleCauses, begin: int, end: int) -> Message:
    """Return the innermost Python function, else annotation, that takes half of an interval."""
    tables = ("python_call", "annotation")
    found = (_around(trace, rank, causes, table, (begin, end)) for table in tables)
    return next((said for said in found if said is not None), message("idle.host_unknown"))


def _around(
    trace: Trace, rank: int, causes: IdleCauses, table: str, interval: tuple[int, int]
) -> Message | None:
    """Return the innermost row of one table that takes half of an interval, on a thread that launches; None if there is none."""
    names = trace.rank_frame("name", rank).set_index("name_id")["name"].astype(str)
    rows = trace.rank_frame(table, rank)
    if table == "annotation":
        text = rows["name_id"].map(names).fillna("")
        is_step = text.str.startswith("ProfilerStep") | _marks_step(trace, rank, rows)
        rows = rows[(rows["device"] < 0) & ~is_step]
    start = rows["start_ns"].to_numpy(np.int64)
    stop = start + rows["dur_ns"].to_numpy(np.int64)
    inside = covered_length(np.array([interval]), start, stop)
    launches = rows["thread"].isin(causes.threads).to_numpy(bool)
    if table == "annotation":
        # That of the profiler stops the program, whichever thread it is on.
        launches = launches | (
            rows["name_id"].map(names).fillna("").str.fullmatch(_OVERHEAD).to_numpy(bool)
        )
    around = rows[(inside >= (interval[1] - interval[0]) / 2) & launches]
    if around.empty:
        return None
    name = str(names[around.sort_values("dur_ns").iloc[0]["name_id"]])
    if table == "python_call":
        return message("idle.host_in", name=name)
    return message("idle.host_in_annotation", name=name)


def _marks_step(trace: Trace, rank: int, notes: pd.DataFrame) -> pd.Series[bool]:
    """Return which annotations are those that the steps begin with: each step has one, which says nothing of the host."""
    steps = trace.rank_frame("step", rank).drop_duplicates("start_ns").set_index("start_ns")
    length = notes["start_ns"].map(steps["dur_ns"])
    return notes["dur_ns"] >= _WHOLE_STEP * length
