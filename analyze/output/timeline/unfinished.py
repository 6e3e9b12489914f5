"""The steps in which a capture broke off: no rank, or not every one, has an end of them.

A job that hangs does so in a step that never ends, so the list of finished steps lacks the one
to look at. Here its ranks get windows up to the last record of the capture, and the operations
in which ranks stood are listed with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...account.hangs.hang import wait_graph
from ...align.steps.last_records import last_record_ns
from ...tables.trace import Trace

_EVENTS = ("span", "collective", "p2p")


class OpenWait(NamedTuple):
    """One rank that stood in an operation when the capture broke off."""

    rank: int
    group_id: str
    since_ns: int
    axis: str
    kind: str


def unfinished_steps(trace: Trace) -> tuple[int, ...]:
    """Return the steps that a rank had begun and not ended, ascending.

    Empty for a capture that was closed, and for one without step marks.
    """
    ends = trace.frame("step").groupby("rank")["step"].max()
    if trace.frame("progress").empty or ends.empty or trace.per_step_clock:
        return ()
    begun: set[int] = set()
    for rank, last in ends.items():
        seen = _steps_seen(trace, int(rank))  # type: ignore[call-overload]
        begun |= {step for step in seen if step > last}
    return tuple(sorted(begun))


def last_step(trace: Trace, ranks: Iterable[int]) -> int | None:
    """Return the unfinished step that ranks were in when the capture broke off.

    Of ranks in different steps the earliest one: the others may have gone on without them. The
    first unfinished step where nothing of these ranks is recorded; None without any.
    """
    unfinished = unfinished_steps(trace)
    last = [max(_steps_seen(trace, rank), default=-1) for rank in ranks if rank in trace.ranks]
    found = [step for step in last if step in unfinished]
    return min(found or unfinished, default=None)


def with_unfinished(
    trace: Trace, step: int, windows: dict[int, tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    """Return the windows with those of the ranks that did not end the step."""
    found, end_ns = dict(windows), last_record_ns(trace)
    for rank in trace.ranks:
        if rank not in found:
            begin_ns = _begin_ns(trace, step, rank)
            found |= {} if begin_ns is None else {rank: (begin_ns, max(end_ns, begin_ns))}
    return found


def _begin_ns(trace: Trace, step: int, rank: int) -> int | None:
    """Return when a rank began a step that it did not end; None where it was not in it yet.

    That is when it ended the one before, or its first record where it has ended none.
    """
    steps = trace.frame("step")
    before = steps[steps["step"] < step]
    own = before[before["rank"] == rank]
    first_ns = _first_record_ns(trace, step, rank)
    if own.empty or (first_ns is None and own["step"].max() < before["step"].max()):
        return first_ns
    return int((own["start_ns"] + own["dur_ns"]).max())


def _first_record_ns(trace: Trace, step: int, rank: int) -> int | None:
    """Return the first time of a rank in a step, None where it has no record of it."""
    times = [
        rows.loc[rows["step"] == step, column].min()
        for table, column in (("span", "start_ns"), ("collective", "issue_ns"), ("p2p", "issue_ns"))
        if len(rows := trace.rank_frame(table, rank, ["step", column]))
    ]
    return min((int(time) for time in times if pd.notna(time)), default=None)


def open_waits(trace: Trace) -> tuple[OpenWait, ...]:
    """Return in which operations ranks stood when the capture broke off."""
    graph = wait_graph(trace)
    if graph is None:
        return ()
    groups = trace.frame("group")
    axes = dict(zip(groups["group_id"].astype(str), groups["axis"].astype(str), strict=True))
    return tuple(
        OpenWait(rank, found.key[0], since_ns, axes.get(found.key[0], "other"), found.kind)
        for found in graph.operations
        for rank, since_ns in found.since_ns.items()
    )


def _steps_seen(trace: Trace, rank: int) -> set[int]:
    """Return the steps of which a rank has a record."""
    seen: set[int] = set()
    for table in _EVENTS:
        seen.update(np.unique(trace.rank_frame(table, rank, ["step"])["step"]).tolist())
    return seen - {-1}
