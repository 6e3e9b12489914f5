"""Which process ended before the others, in a capture of ours that broke off.

A launcher ends all ranks once one is gone, so in the end none has a close mark; but it
needs some time to notice, and ends them by SIGTERM. Where the ends are known, the rank that was
first is told from those that were ended because of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from signal import SIGTERM

import pandas as pd

from ..capture.trace import Trace
from ..steps.last_records import last_records_ns
from .hang import WaitGraph

LED_BY_NS = 50_000_000
"""Processes that are ended together are seen to end within that."""
KILLED_APART_NS = 10_000_000
"""Of processes that are all killed at once one may be seen to end before the others by that."""
TOGETHER_NS = 1_000_000_000
"""The same after a long silence: who ended first by less was not waited for, it was killed first."""
LEAST_SILENCE_NS = 5_000_000_000
"""Silence of all ranks is not told below that, however short steps are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """Ranks that ended before the others, although these were not done."""

    ranks: tuple[int, ...]
    ended_ns: int
    """When the last of them ended."""
    next_ns: int
    """When at least one other rank was still there; the first that is known."""
    closed: bool
    """Whether they closed their captures: an exception, or an end that the code wanted."""
    exceptions: tuple[str, ...]
    """Types of the exceptions that are known to have ended them."""
    wait_statuses: tuple[int, ...]
    """How they ended, as ``wait`` tells it, as far as that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """A job in which nothing was recorded for long, and that was then ended as a whole."""

    silent_ns: int
    """From the last record of any rank to the first end of a process."""
    between_ns: int
    """From the first end to the last."""


def alive_until_ns(trace: Trace, ranks: tuple[int, ...] | None = None) -> int | None:
    """Return until when one of some ranks, or of all, is known to have been there."""
    times = _times(trace)
    if ranks is not None:
        times = times[times.index.isin(ranks)]
    known = times["until_ns"].dropna()
    return int(known.max()) if len(known) else None


def stood_still(trace: Trace, patience_ns: float) -> Standstill | None:
    """Return how long all ranks were silent before they were killed together; None if they were not.

    Args:
        trace: A capture that broke off.
        patience_ns: From which silence on a job at work would have recorded something.
    """
    times = _times(trace)
    ended = times["ended_ns"]
    if times.empty or ended.isna().any() or times["closed"].any():
        return None
    silent_ns = int(ended.min()) - int(last_records_ns(trace).max())
    between_ns = int(ended.max() - ended.min())
    if silent_ns < max(patience_ns, LEAST_SILENCE_NS) or between_ns > TOGETHER_NS:
        return None
    return Standstill(silent_ns=silent_ns, between_ns=between_ns)


def died_first(trace: Trace, graph: WaitGraph | None, patience_ns: float | None) -> Death | None:
    """Return who ended first and made the job break off; None where that is not known.

    Where all were silent for long and were then killed together, the order of ends tells nothing.
    A rank for which others had waited longer than ``patience_ns`` when it ended was hung
    before it died. Where somebody did not arrive, only those who did not can be the first
    cause; the others may have given up.

    Args:
        trace: A capture that broke off; others have nobody.
        graph: Who waited for whom.
        patience_ns: From which waiting on a rank counts as hung; None: not known.
    """
    times = _times(trace)
    ended = times["ended_ns"].dropna().astype("int64")
    if len(times) < 2 or ended.empty:
        return None
    if patience_ns is not None and stood_still(trace, patience_ns) is not None:
        return None
    first = ended[ended <= ended.min() + LED_BY_NS]
    later = times["until_ns"].drop(first.index).dropna()
    later = later[later >= first.max() + LED_BY_NS]
    if later.empty:
        # Seen to end at the same look: who closed its capture ended by an exception, as the
        # peers of a process do that is gone; who did not was killed.
        in_order = times.loc[first.index, "closed"].to_numpy(bool)
        first, later = first[~in_order], first[in_order]
    if later.empty:
        first, later = _told_by_status(ended, times)
    ranks = tuple(sorted(map(int, first.index)))
    if first.empty or later.empty or not _may_be_blamed(ranks, times, graph, patience_ns):
        return None
    return Death(
        ranks=ranks,
        ended_ns=int(first.max()),
        next_ns=max(int(later.min()), int(first.max())),
        closed=bool(times.loc[list(ranks), "closed"].all()),
        exceptions=tuple(sorted(set(times.loc[list(ranks), "ended_by"].dropna().astype(str)))),
        wait_statuses=tuple(
            sorted(set(times.loc[list(ranks), "wait_status"].dropna().astype(int)))
        ),
    )


def _told_by_status(ended: pd.Series, times: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return the ends of ranks that ended by themselves, and those of ranks ended because of them.

    Both are empty where that is not known. A launcher ends by SIGTERM, as soon as it notices. Who ended
    otherwise, before all whom that may have ended, was the reason. How these ended is seen only until
    the launcher looks, which waits for those that it ends.
    """
    status = times.loc[ended.index, "wait_status"].astype("Int64")
    was_asked = status.isin([SIGTERM]).to_numpy(bool)
    by_itself = (~status.isin([0, SIGTERM]) & status.notna()).to_numpy(bool)
    first, later = ended[by_itself], ended[~by_itself]
    if len(first) and len(later):
        lead_ns = int(later.min()) - int(first.max())
        if lead_ns >= (0 if was_asked[~by_itself].all() else KILLED_APART_NS):
            return first, later
    return ended.iloc[:0], ended.iloc[:0]


def _may_be_blamed(
    ranks: tuple[int, ...], times: pd.DataFrame, graph: WaitGraph | None, patience_ns: float | None
) -> bool:
    """Return whether ranks that ended first are the cause, and no victims that gave up."""
    if graph is None or not (graph.absent or graph.uncaptured):
        waited = graph is not None and set(ranks) & set(graph.waiting)
        return not waited and not times.loc[list(ranks), "closed"].any()
    if not set(ranks) <= set(graph.absent):
        return False
    since = [
        min(found.since_ns.values()) for found in graph.operations if set(found.absent) & set(ranks)
    ]
    ended_ns = int(times.loc[list(ranks), "ended_ns"].max())
    return patience_ns is None or not since or ended_ns - min(since) < patience_ns


def _times(trace: Trace) -> pd.DataFrame:
    """Return for each rank: ended_ns, until_ns (its end, else its last sign of life), closed, ended_by, wait_status."""
    progress = trace.frame("progress")
    by_rank = progress.groupby("rank").agg(
        alive_ns=("alive_ns", "max"),
        ended_ns=("ended_ns", "max"),
        closed=("completed_seq", lambda seqs: bool(seqs.notna().any())),
        ended_by=("ended_by", "first"),
        wait_status=("wait_status", "max"),
    )
    by_rank["closed"] |= by_rank["ended_by"].notna()
    by_rank["until_ns"] = by_rank["ended_ns"].fillna(by_rank["alive_ns"])
    return by_rank
