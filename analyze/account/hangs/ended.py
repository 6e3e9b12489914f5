"""Which process ended before the others, in a capture of ours that broke off.

A launcher ends all ranks once one is gone, so in the end none has a close mark; but it
needs some time to notice, and ends them by SIGTERM. Where the ends are known, the rank that was
first is distinguished from those that were ended because of it.
"""

from __future__ import annotations

from signal import SIGTERM

import msgspec
import pandas as pd

from ...tables.trace import Trace
from .hang import WaitGraph, wait_graph
from .rank_ends import (
    LED_BY_NS,
    died_of_itself,
    ended_by_ctrl_c,
    ended_by_error,
    ended_by_giving_up,
    ended_by_sigterm,
    ends_of_ranks,
)
from .stacks import lost_a_peer, raised_elsewhere
from .standstill import LEAST_HUNG_NS, stood_still

KILLED_APART_NS = 10_000_000
"""Of processes that are all killed at once one may be seen to end before the others by that."""


class Death(msgspec.Struct, frozen=True, kw_only=True):
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


def alive_until_ns(trace: Trace, ranks: tuple[int, ...] | None = None) -> int | None:
    """Return until when one of some ranks, or of all, is known to have been there."""
    times = ends_of_ranks(trace)
    if ranks is not None:
        times = times[times.index.isin(ranks)]
    known = times["until_ns"].dropna()
    return int(known.max()) if len(known) else None


def last_sign_of_life_ns(trace: Trace, rank: int) -> int | None:
    """Return when a process last showed that it runs; its end shows nothing, a stopped one can be killed."""
    own = ends_of_ranks(trace)
    known = own.loc[own.index == rank, "alive_ns"].dropna()
    return int(known.iloc[0]) if len(known) else alive_until_ns(trace, (rank,))


def waited_until_ns(trace: Trace, graph: WaitGraph) -> int | None:
    """Return until when those who waited are known to have been there, and did not wait for the dead.

    Whom an exception ended left the job when its process gave the last sign of life: to end takes a
    busy machine seconds. None where nothing is known.
    """
    until_ns = alive_until_ns(trace, graph.waiting)
    times = ends_of_ranks(trace)
    left = _left_ns(times)
    # Ctrl-C comes to all at once, and a rank that holds the interpreter gives no sign of life until then.
    others_ns = times.loc[times.index.isin(graph.waiting), "alive_ns"].max()
    left = left.mask(ended_by_ctrl_c(times) & left.lt(others_ns), others_ns)
    left = left[left.index.isin(graph.absent)].dropna()
    if until_ns is None or left.empty:
        return until_ns
    return min(until_ns, int(left.max()))


def ended_in_order(trace: Trace, ranks: tuple[int, ...]) -> bool:
    """Return whether ranks ended before the others without an exception and with status 0, as is known.

    Of one of several the status may not have been seen, as a launcher asks for it once.
    """
    times = ends_of_ranks(trace)
    own = times[times.index.isin(ranks)]
    if len(own) < len(ranks) or not ranks or not own["closed"].all():
        return False
    status = own["wait_status"].dropna()
    was_broken = own["ended_by"].notna().any() or status.empty or status.ne(0).any()
    others = times[~times.index.isin(ranks)]["until_ns"].dropna()
    ended = own["ended_ns"].dropna()
    return not was_broken and (ended.empty or bool((others >= ended.max()).any()))


def died_first(trace: Trace, patience_ns: float | None) -> Death | None:
    """Return who ended first and made the job break off; None where that is not known.

    Where all were silent for long and were then killed together, the order of ends tells nothing. Nor
    does it where Ctrl-C ended all, or the first: who computes notices that before those who wait.
    A rank for which others had waited longer than ``patience_ns`` when it ended was hung
    before it died. Whom a signal ended in the middle of its work did not give up. Others may have:
    where somebody had not arrived by then, only those who had not can be the first cause.

    Args:
        trace: A capture that broke off; others have nobody.
        patience_ns: From which waiting on a rank counts as hung; None: not known.
    """
    times = ends_of_ranks(trace)
    ended = times["ended_ns"].dropna().astype("int64")
    if len(times) < 2 or ended.empty:
        return None
    raised, is_first = ended_by_error(times), times["ended_ns"] == ended.min()
    by_ctrl_c = times.loc[is_first, "ended_by"].eq(KeyboardInterrupt.__name__).any()
    by_all = (ended_by_ctrl_c(times) & ~raised).all() or ended_by_sigterm(times).all()
    if by_ctrl_c or by_all:
        return None
    gave_up = ended_by_giving_up(trace, times)
    silent = None if (raised & ~gave_up)[is_first].any() else stood_still(trace, 0.0)
    if silent is not None and (
        silent.interrupted or (patience_ns is not None and silent.silent_ns >= patience_ns)
    ):
        return None
    first, later = _of_own_errors(trace, times)
    if first.empty:
        first, later = _fell_silent(times)
    if first.empty:
        first, later = _first_and_later(times, ended)
    if first.empty or later.empty:
        return None
    ranks = tuple(sorted(map(int, first.index)))
    # What others began once it was dead tells nothing about it.
    graph = wait_graph(trace, before_ns=int(first.max()))
    if not _may_be_blamed(ranks, times, graph, patience_ns, raised_elsewhere(trace)):
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


def _left_ns(times: pd.DataFrame) -> pd.Series:
    """Return when ranks left the job: whose exception is known at the last sign of life, else at the end."""
    known = times["ended_by"].notna() & times["alive_ns"].notna()
    return times["alive_ns"].where(known, times["ended_ns"])


def _fell_silent(times: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return last signs of life of ranks whose end nobody saw, and until when the others were there.

    Both are empty unless all the others ended later and because of somebody: by an exception, as the
    peers of a process do that is gone, or by SIGTERM, as a launcher ends those that are left.
    """
    is_seen = times["ended_ns"].notna() | times["closed"]
    others = times[is_seen]
    was_led = ended_by_error(others) | others["wait_status"].isin([SIGTERM])
    silent = times.loc[~is_seen, "alive_ns"]
    ended = others["ended_ns"]
    known = len(silent) and silent.notna().all() and ended.notna().all()
    if not known or len(silent) >= len(others) or not was_led.all() or silent.max() > ended.min():
        return ended.iloc[:0], ended.iloc[:0]
    return silent.astype("int64"), ended.astype("int64")


def _of_own_errors(trace: Trace, times: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return the ends of ranks that an error of their own ended while peers of theirs noticed no more than that.

    Such a peer may be seen to end first: an exit takes a busy machine seconds. Both are empty without
    such an error, or where others than peers and those whom a launcher ended may have been the cause.
    """
    ended = times["ended_ns"].dropna().astype("int64")
    is_own = ended.index.isin(raised_elsewhere(trace) & set(times.index[ended_by_error(times)]))
    rest = times.loc[times.index.difference(ended.index[is_own])]
    is_victim = rest.index.isin(lost_a_peer(trace)) | rest["wait_status"].isin([SIGTERM])
    known = rest["until_ns"].dropna().astype("int64")
    if not is_own.any() or rest.empty or known.empty or not is_victim.all():
        return ended.iloc[:0], ended.iloc[:0]
    first = ended[is_own]
    return first, known.clip(lower=int(first.max()))


def _first_and_later(times: pd.DataFrame, ended: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Return the ends of those who were first, and when others are known to have been there after."""
    first = ended[ended <= ended.min() + LED_BY_NS]
    until = times["until_ns"].dropna()
    later = until.drop(first.index)
    later = later[later >= first.max() + LED_BY_NS]
    of_itself = died_of_itself(times).reindex(first.index).to_numpy(bool)
    if not later.empty and of_itself.any():
        # The others of these noticed it at once.
        return first[of_itself], later
    if not later.empty:
        return first, later
    by_status = _ended_by_status(ended, times)
    if len(by_status[0]):
        return by_status
    survived = _survived(first, times)
    if len(survived[0]):
        return survived
    if ended_by_ctrl_c(times)[first.index].any():
        return first.iloc[:0], first.iloc[:0]
    # Seen to end at the same look: who closed its capture ended by an exception, as the
    # peers of a process do that is gone; who did not was killed.
    in_order = times.loc[first.index, "closed"].to_numpy(bool)
    return first[~in_order], first[in_order]


def _survived(first: pd.Series, times: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return the ends of ranks that did not close their captures, and signs of life of others after them.

    Both are empty where these others were seen to end too, or may have been killed at the same time.
    """
    own = first[~times.loc[first.index, "closed"].to_numpy(bool)]
    left = times[times["ended_ns"].isna()]["alive_ns"].dropna().astype("int64")
    if own.empty:
        return own, left
    left = left[left >= own.max() + KILLED_APART_NS]
    return (own, left) if len(left) else (own.iloc[:0], left)


def _ended_by_status(ended: pd.Series, times: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
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
    ranks: tuple[int, ...],
    times: pd.DataFrame,
    graph: WaitGraph | None,
    patience_ns: float | None,
    raised: frozenset[int],
) -> bool:
    """Return whether ranks that ended first are the cause, and no victims that gave up.

    Args:
        ranks: Those.
        times: The ends of all.
        graph: Who waited for whom when they ended.
        patience_ns: From which waiting on a rank counts as hung.
        raised: Ranks that an error of their own ended.
    """
    own = times.loc[list(ranks)]
    of_themselves = bool(died_of_itself(own).all()) or raised.issuperset(ranks)
    if graph is None or not (graph.absent or graph.uncaptured):
        waited = graph is not None and set(ranks) & set(graph.waiting)
        return of_themselves or (not waited and not own["closed"].any())
    if not of_themselves and not set(ranks) <= set(graph.absent):
        return False
    blamed = set(graph.absent) if of_themselves else set(ranks)
    since = [
        min(found.since_ns.values()) for found in graph.operations if set(found.absent) & blamed
    ]
    if patience_ns is None or not since:
        return True
    return int(_left_ns(own).max()) - min(since) < max(patience_ns, LEAST_HUNG_NS)
