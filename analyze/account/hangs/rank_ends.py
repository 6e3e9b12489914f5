"""How the processes of ranks ended, and what of that tells nothing about the others."""

from __future__ import annotations

from signal import SIGBUS, SIGFPE, SIGILL, SIGINT, SIGKILL, SIGSEGV, SIGTERM

import pandas as pd

from ...tables.trace import Trace
from .stacks import waits_for_others

LED_BY_NS = 50_000_000
"""Processes that are ended together are seen to end within that."""
_SIGNAL_BITS = 0x7F
"""Of what ``wait`` tells; 0 where no signal ended the process."""
OWN_SIGNALS = frozenset({SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE})
"""Signals that end a process in the middle of its work. Not SIGABRT: a watchdog gives up waiting by it."""
INTERRUPTS = frozenset({KeyboardInterrupt.__name__, SystemExit.__name__})
"""Exceptions that end ranks because somebody wants it, not because a peer is gone."""


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


def killed_first(trace: Trace) -> tuple[int, ...]:
    """Return the ranks that a signal ended in the middle of their work before the others ended, and otherwise."""
    times = ends_of_ranks(trace)
    of_itself, ended = died_of_itself(times), times["ended_ns"]
    first, later = ended[of_itself], ended[~of_itself]
    if first.empty or later.empty or ended.isna().any() or first.max() > later.min():
        return ()
    return tuple(map(int, first.index))


def ended_by_ctrl_c(times: pd.DataFrame) -> pd.Series[bool]:
    """Return which ranks are known to have ended by Ctrl-C."""
    by_status = times["wait_status"].isin([SIGINT, (128 + SIGINT) << 8])
    return times["ended_by"].isin([KeyboardInterrupt.__name__]) | by_status


def ended_by_sigterm(times: pd.DataFrame) -> pd.Series[bool]:
    """Return which ranks are known to have ended by SIGTERM; a handler of the program may exit with its code."""
    return times["wait_status"].isin([SIGTERM, (128 + SIGTERM) << 8])


def ended_by_error(times: pd.DataFrame) -> pd.Series[bool]:
    """Return which ranks an error of their own or of a peer ended; Ctrl-C may then have ended their exit."""
    return times["ended_by"].notna() & ~times["ended_by"].isin(INTERRUPTS)


def ended_by_giving_up(trace: Trace, times: pd.DataFrame) -> pd.Series[bool]:
    """Return which ranks an error ended that stood, by their stacks, where ranks wait for each other."""
    return ended_by_error(times) & times.index.isin(waits_for_others(trace))


def died_of_itself(times: pd.DataFrame) -> pd.Series[bool]:
    """Return which ranks a signal ended in the middle of their work."""
    status = times["wait_status"].fillna(0).astype("int64")
    return (status & _SIGNAL_BITS).isin(OWN_SIGNALS)
