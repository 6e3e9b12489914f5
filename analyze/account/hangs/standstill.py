"""Jobs in which nothing was recorded for long before they were ended from outside, or gave up."""

from __future__ import annotations

import msgspec

from ...align.steps.last_records import last_progress_ns
from ...tables.trace import Trace
from .rank_ends import (
    ended_by_ctrl_c,
    ended_by_error,
    ended_by_giving_up,
    ended_by_sigterm,
    ends_of_ranks,
)
from .stacks import timed_out

TOGETHER_NS = 1_000_000_000
"""The same after a long silence: who ended first by less was not waited for, it was killed first."""
LEAST_SILENCE_NS = 5_000_000_000
"""Silence of all ranks is not reported below that, however short steps are."""
LEAST_HUNG_NS = 1_000_000_000
"""Nobody is hung whom others waited for no longer than that, however short steps are."""


class Standstill(msgspec.Struct, frozen=True, kw_only=True):
    """A job in which nothing was recorded for long, and that was then ended as a whole."""

    silent_ns: int
    """From the last record of any rank to the first end of a process."""
    between_ns: int
    """From the first end to the last."""
    interrupted: bool
    """Whether Ctrl-C ended the first."""
    gave_up: tuple[int, ...] = ()
    """Ranks that an exception ended where they waited for others: a timeout, or a peer that was gone."""
    done: tuple[int, ...] = ()
    """Ranks that had ended in order before; the rest is about the others."""


def stood_still(trace: Trace, patience_ns: float) -> Standstill | None:
    """Return how long all ranks were silent before they were ended from outside; None if they were not.

    They were killed together, or Ctrl-C ended the first: a launcher then gives the others half a minute.
    Or the first gave up: where it waited for others, an exception ended it.

    Args:
        trace: A capture that broke off.
        patience_ns: From which silence on a job at work would have recorded something.
    """
    times = ends_of_ranks(trace)
    ended = times["ended_ns"]
    interrupted, gave_up = ended_by_ctrl_c(times), ended_by_giving_up(trace, times)
    closed = times["closed"] & ~interrupted & ~gave_up & ~ended_by_sigterm(times)
    if times.empty or ended.isna().any() or closed.any():
        return None
    silent_ns = int(ended.min()) - int(last_progress_ns(trace).max())
    between_ns = int(ended.max() - ended.min())
    by_ctrl_c = bool(interrupted.to_numpy()[ended.astype("int64").to_numpy().argmin()])
    is_one_end = between_ns <= TOGETHER_NS or by_ctrl_c or bool(gave_up[ended == ended.min()].any())
    # An error that says it waited too long says more than silence.
    least_ns = LEAST_HUNG_NS if timed_out(trace) else LEAST_SILENCE_NS
    if silent_ns < max(patience_ns, least_ns) or not is_one_end:
        return None
    return Standstill(
        silent_ns=silent_ns,
        between_ns=between_ns,
        interrupted=by_ctrl_c,
        gave_up=tuple(map(int, times.index[gave_up])),
    )


def left_behind(trace: Trace, patience_ns: float) -> Standstill | None:
    """Return how long some ranks were silent until they were ended from outside, where the others had ended in order.

    Args:
        trace: A capture that broke off.
        patience_ns: From which silence on a rank at work would have recorded something.
    """
    times = ends_of_ranks(trace)
    in_order = times["wait_status"].fillna(0).eq(0).to_numpy(bool)
    done = times["closed"] & times["ended_by"].isna() & in_order
    left, ended = times[~done], times["ended_ns"]
    if left.empty or not done.any() or ended.isna().any() or ended_by_error(left).any():
        return None
    first_ns, last_ns = int(ended[~done].min()), int(ended[~done].max())
    last = last_progress_ns(trace)
    silent_ns = first_ns - int(last[last.index.isin(left.index)].max())
    if first_ns <= ended[done].min() or silent_ns < max(patience_ns, LEAST_SILENCE_NS):
        return None
    return Standstill(
        silent_ns=silent_ns,
        between_ns=last_ns - first_ns,
        interrupted=bool(ended_by_ctrl_c(left)[ended[~done].eq(first_ns)].any()),
        done=tuple(map(int, times.index[done])),
    )
