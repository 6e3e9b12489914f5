"""Which process ended before the others, in a capture of ours that broke off.

A launcher ends all ranks once one is gone, so in the end none has a close mark; but it
needs some time to notice, and ends them by SIGTERM. Where the ends are known, the rank that was
first is distinguished from those that were ended because of it.
"""

from __future__ import annotations

from signal import SIGBUS, SIGFPE, SIGILL, SIGINT, SIGKILL, SIGSEGV, SIGTERM

import msgspec
import pandas as pd

from ...align.steps.last_records import last_progress_ns
from ...tables.trace import Trace
from .hang import WaitGraph, wait_graph
from .stacks import lost_a_peer, raised_elsewhere, timed_out, waits_for_others

LED_BY_NS = 50_000_000
"""Processes that are ended together are seen to end within that."""
KILLED_APART_NS = 10_000_000
"""Of processes that are all killed at once one may be seen to end before the others by that."""
TOGETHER_NS = 1_000_000_000
"""The same after a long silence: who ended first by less was not waited for, it was killed first."""
LEAST_SILENCE_NS = 5_000_000_000
"""Silence of all ranks is not reported below that, however short steps are."""
LEAST_HUNG_NS = 1_000_000_000
"""Nobody is hung whom others waited for no longer than that, however short steps are."""
_SIGNAL_BITS = 0x7F
"""Of what ``wait`` tells; 0 where no signal ended the process."""
OWN_SIGNALS = frozenset({SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE})
"""Signals that end a process in the middle of its work. Not SIGABRT: a watchdog gives up waiting by it."""

INTERRUPTS = frozenset({KeyboardInterrupt.__name__, SystemExit.__name__})
"""Exceptions that end ranks because somebody wants it, not because a peer is gone."""


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
    left = left.mask(_interrupted(times) & left.lt(others_ns), others_ns)
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
    interrupted, gave_up = _interrupted(times), _gave_up(trace, times)
    closed = times["closed"] & ~interrupted & ~gave_up
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
    if left.empty or not done.any() or ended.isna().any() or _raised(left).any():
        return None
    first_ns, last_ns = int(ended[~done].min()), int(ended[~done].max())
    last = last_progress_ns(trace)
    silent_ns = first_ns - int(last[last.index.isin(left.index)].max())
    if first_ns <= ended[done].min() or silent_ns < max(patience_ns, LEAST_SILENCE_NS):
        return None
    return Standstill(
        silent_ns=silent_ns,
        between_ns=last_ns - first_ns,
        interrupted=bool(_interrupted(left)[ended[~done].eq(first_ns)].any()),
        done=tuple(map(int, times.index[done])),
    )


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
    raised, is_first = _raised(times), times["ended_ns"] == ended.min()
    by_ctrl_c = times.loc[is_first, "ended_by"].eq(KeyboardInterrupt.__name__).any()
    if by_ctrl_c or (_interrupted(times) & ~raised).all():
        return None
    gave_up = _gave_up(trace, times)
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


def _interrupted(times: pd.DataFrame) -> pd.Series[bool]:
    """Return which ranks are known to have ended by Ctrl-C."""
    by_status = times["wait_status"].isin([SIGINT, (128 + SIGINT) << 8])
    return times["ended_by"].isin([KeyboardInterrupt.__name__]) | by_status


def _raised(times: pd.DataFrame) -> pd.Series[bool]:
    """Return which ranks an error of their own or of a peer ended; Ctrl-C may then have ended their exit."""
    return times["ended_by"].notna() & ~times["ended_by"].isin(INTERRUPTS)


def _gave_up(trace: Trace, times: pd.DataFrame) -> pd.Series[bool]:
    """Return which ranks an error ended that stood, by their stacks, where ranks wait for each other."""
    return _raised(times) & times.index.isin(waits_for_others(trace))


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
    was_led = _raised(others) | others["wait_status"].isin([SIGTERM])
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
    is_own = ended.index.isin(raised_elsewhere(trace) & set(times.index[_raised(times)]))
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
    of_itself = _died_of_itself(times).reindex(first.index).to_numpy(bool)
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
    if _interrupted(times)[first.index].any():
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


def _died_of_itself(times: pd.DataFrame) -> pd.Series[bool]:
    """Return which ranks a signal ended in the middle of their work."""
    status = times["wait_status"].fillna(0).astype("int64")
    return (status & _SIGNAL_BITS).isin(OWN_SIGNALS)


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
    of_themselves = bool(_died_of_itself(own).all()) or raised.issuperset(ranks)
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


def ends_of_ranks(trace: Trace) -> pd.DataFrame:
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
