"""Whom everybody waits for: waiting billed to its origin, not to who was the last to arrive.

The rank that arrives last at a collective may be late because it waited for another one before, and
that for a third: a rank that makes the next stage late is the last to arrive nowhere. So the last to
arrive is compared with who waited for it, from the last release of each on::

    lateness = (release of the last - release of the other) + (work since of the last - of the other)

What comes from the work since is its own; the rest is handed on to whoever released it, compared
with whoever released the other. All waits are followed at once, link by link.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import SYNCHRONISING

from ..align.communication.events import CommunicationEvents
from ..align.communication.waiting import stood_waiting
from ..tables.arrays import FloatArray, IntArray
from ..tables.sorting import greatest_of_group
from .replay.marks import ISSUE, WAIT
from .replay.program import Program

MOST_LINKS = 256
"""Links of a chain that are followed; one that is longer is billed to where it got."""
LEAST_NS = 1_000.0
"""What is left of a wait below this is not followed on."""
NOBODY = -1


class _Releases(NamedTuple):
    """Of each mark of a program: when its rank was last released, and by which issue."""

    time_ns: FloatArray
    by: IntArray
    """Row of the mark that the rank waited for; -1 where it waited for none."""


def with_origins(
    waits: pd.DataFrame, events: CommunicationEvents, program: Program | None
) -> pd.DataFrame:
    """Return the waits by rank, with what each caused billed to the origin of the waiting.

    Args:
        waits: One row a rank, as ``waits_by_rank`` gives them.
        events: The communication.
        program: The replay graph; without one they stay as they are.
    """
    if program is None or waits["wait_caused_ns"].isna().all():
        return waits
    caused = waits["rank"].map(_caused(events, program)).fillna(0.0)
    return waits.assign(wait_caused_ns=caused.where(waits["wait_caused_ns"].notna()))


def _caused(events: CommunicationEvents, program: Program) -> pd.Series:
    """Return how long others waited for each rank in all steps, rank-nanoseconds, by rank."""
    marks = program.marks
    start = marks["start_ns"].to_numpy(np.float64)
    rank = marks["rank"].to_numpy(np.int64)
    last = _last_members(program, start)
    releases = _releases(program, last)
    late, other, amount = _waits(events, program, last)
    total = np.zeros(int(rank.max()) + 1)
    for _ in range(MOST_LINKS):
        if not len(late):
            break
        since = start[other] - releases.time_ns[other]
        own = start[late] - releases.time_ns[late] - np.where(other == NOBODY, 0.0, since)
        billed = np.clip(np.where(other == NOBODY, amount, own), 0.0, amount)
        ends = releases.by[late] == NOBODY
        billed = np.where(ends, amount, billed)
        total += np.bincount(rank[late], billed, len(total))
        amount = amount - billed
        onward = np.flatnonzero(amount > LEAST_NS)
        late, other = releases.by[late[onward]], releases.by[other[onward]]
        amount = amount[onward]
        # Both were released by the same: nobody is late any more.
        apart = late != other
        late, other, amount = late[apart], other[apart], amount[apart]
    total += np.bincount(rank[late], amount, len(total))
    return pd.Series(total)


def _last_members(program: Program, start: FloatArray) -> IntArray:
    """Return the mark of the last member of each operation; -1 where two came at once."""
    mark, join = program.members
    came = start[mark]
    is_last = came == greatest_of_group(came, join)
    mark, join = mark[is_last], join[is_last]
    last = np.full(program.joins, NOBODY, np.int64)
    last[join] = np.where(np.bincount(join)[join] > 1, NOBODY, mark)
    return last


def _releases(program: Program, last: IntArray) -> _Releases:
    """Return when and by whom the rank of each mark was last released from waiting for another one."""
    marks = program.marks
    row = np.arange(len(marks), dtype=np.int32)
    rank, end = marks["rank"].to_numpy(np.int64), marks["end_ns"].to_numpy(np.float64)
    is_wait = (marks["mark"].to_numpy() == WAIT) & (end > marks["start_ns"].to_numpy())
    for_whom = np.where(is_wait, last[marks["join"].to_numpy()], NOBODY)
    blocked = (for_whom != NOBODY) & (rank[for_whom] != rank)
    root = np.maximum.accumulate(np.where(marks["is_root"].to_numpy(bool), row, np.int32(0)))
    wait = np.maximum.accumulate(np.where(blocked, row, np.int32(NOBODY)))
    released = wait >= root
    return _Releases(
        end[np.where(released, wait, root)], np.where(released, for_whom[wait], NOBODY)
    )


def _waits(
    events: CommunicationEvents, program: Program, last: IntArray
) -> tuple[IntArray, IntArray, FloatArray]:
    """Return the marks of the last to arrive and of who waited for it, and how long, by wait."""
    frame = events.frame
    is_billed = frame["kind"].isin([kind.value for kind in SYNCHRONISING]).to_numpy(bool)
    wait_ns = np.where(is_billed, stood_waiting(frame).to_numpy(np.float64), 0.0)
    marks = program.marks
    other = np.flatnonzero(marks["mark"].to_numpy() == ISSUE)
    amount = wait_ns[marks["event"].to_numpy()[other]]
    late = last[marks["join"].to_numpy()[other]]
    rank = marks["rank"].to_numpy()
    chosen = (amount > LEAST_NS) & (late != NOBODY) & (rank[late] != rank[other])
    return late[chosen], other[chosen], amount[chosen]
