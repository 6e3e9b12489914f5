"""Processes that ended while others still worked: in the middle of the job, or with fewer batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV
from typing import NamedTuple

from meshscope.probe.schema.terms import FindingKind, Severity, StackMoment

from ...account.hangs.ended import Death
from ...account.hangs.hang import WaitGraph
from ...account.hangs.rank_ends import ends_of_ranks
from ...account.hangs.stacks import stack_messages, stack_places, waits_for_others
from ...tables.results import Finding
from ...tables.trace import Trace
from ...wording.message import Message, message
from ...wording.words import exit_words
from .standstill_words import (
    SHOWN,
    device_faults_of,
    step_counts,
    steps_message,
    unlike_passes,
    waited_for,
    where_of,
)

_WATCH_OF_WORKERS = r"[/\\]torch[/\\]utils[/\\]data[/\\]_utils[/\\]signal_handling\.py$"
"""Where torch raises that a worker of a DataLoader has died."""
_ERRORS_OF_WORKERS = r"[/\\]torch[/\\]_utils\.py$"
"""Where it raises the error of a worker anew."""
_SIGNAL_BITS = 0x7F
"""Of what ``wait`` tells; the next bit says that memory was dumped."""

_WITH_STACK = (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL)
"""Signals after which the interpreter writes stacks."""


def crash_finding(trace: Trace, graph: WaitGraph | None, death: Death) -> Finding:
    """Return the finding about ranks that ended before the others."""
    is_waited_for = graph is not None and set(death.ranks) <= set(graph.absent)
    others = [rank for rank in trace.ranks if rank not in death.ranks]
    return Finding(
        kind=FindingKind.CRASH,
        severity=Severity.CRITICAL,
        where=where_of(death.ranks, trace),
        claim=_claim(death),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=(
            *_how(death),
            *stack_messages(trace, death.ranks, most=SHOWN),
            *_without_stack(trace, death.ranks),
            *_of_workers(trace, death.ranks),
            *stack_messages(trace, others, most=SHOWN),
            *(waited_for(trace, graph, death.ranks) if graph and is_waited_for else ()),
            *device_faults_of(trace, death.ranks),
            *_whole_host(trace, death.ranks),
        ),
        remedy=_remedy_of_death(trace, death),
    )


def _remedy_of_death(trace: Trace, death: Death) -> Message:
    """Return what to do: whom a library aborted in a call that differs from those of others is a victim of that."""
    is_aborted = any(status & _SIGNAL_BITS == SIGABRT for status in death.wait_statuses)
    if is_aborted and waits_for_others(trace).issuperset(death.ranks):
        places = stack_places(trace)
        # A stack that a signal left has no qualified names: file and line alone are compared.
        lines = places["callers"].map(lambda own: own[0].rpartition(" (")[2] if own else "")
        is_own = places["rank"].isin(death.ranks)
        elsewhere = places[~is_own & ~lines.isin({"", *lines[is_own]})]
        if len(elsewhere):
            others = sorted(map(int, elsewhere["rank"]))
            return message("crash.remedy_aborted", ranks=death.ranks, others=others)
    return message("crash.remedy", ranks=death.ranks)


def _without_stack(trace: Trace, ranks: Sequence[int]) -> Iterator[Message]:
    """Yield which ranks a signal ended of which the interpreter wrote no stack here, and where that may be."""
    status = ends_of_ranks(trace)["wait_status"].dropna().astype("int64") & _SIGNAL_BITS
    signalled = set(status.index[status.isin(_WITH_STACK)]) & set(ranks)
    frame = trace.frame("standing")
    lacking = signalled - set(frame.loc[frame["moment"].eq(StackMoment.FATAL_SIGNAL.value), "rank"])
    if lacking:
        yield message("crash.no_stack", ranks=sorted(lacking))


def _whole_host(trace: Trace, ranks: Sequence[int]) -> Iterator[Message]:
    """Yield the hosts of which all ranks ended first, where others had ranks too: they may be lost."""
    hosts = [trace.clocks.get(rank) for rank in ranks]
    rest = {trace.clocks.get(rank) for rank in trace.ranks if rank not in ranks}
    lost = sorted({host for host in hosts if host is not None} - rest)
    if lost and len(lost) == len(set(hosts)) and len(ranks) > 1 and rest - {None}:
        yield message("crash.whole_host", hosts=lost)


def _of_workers(trace: Trace, ranks: Sequence[int]) -> Iterator[Message]:
    """Say which of some ranks failed because of a worker of theirs: their own lines tell only who noticed."""
    inner = trace.frame("standing")
    inner = inner[(inner["depth"] == 0) & inner["rank"].isin(ranks)]
    inner = inner[inner["moment"].eq(StackMoment.RAISED.value)]
    file, function = inner["file"].astype(str), inner["function"].astype(str)
    died = sorted(map(int, inner.loc[file.str.contains(_WATCH_OF_WORKERS), "rank"]))
    is_raised = file.str.contains(_ERRORS_OF_WORKERS) & function.str.contains("reraise")
    failed = sorted(map(int, inner.loc[is_raised, "rank"]))
    if died:
        yield message("crash.loader_worker", ranks=died)
    if failed:
        yield message("crash.in_worker", ranks=failed)


def _claim(death: Death) -> Message:
    """Say who ended first, and by what, as far as that is known."""
    how = death.exceptions or tuple(map(exit_words, death.wait_statuses))
    if not how:
        return message("crash.first", ranks=death.ranks)
    return message("crash.first_by", ranks=death.ranks, how=how)


def _how(death: Death) -> Iterator[Message]:
    """Say what else is known of the end: whether others outlived it, the status, the close mark."""
    if death.next_ns > death.ended_ns:
        yield message("crash.lead", lead_ns=death.next_ns - death.ended_ns)
    if death.exceptions and death.wait_statuses:
        yield message("crash.status", how=list(map(exit_words, death.wait_statuses)))
    if SIGKILL in death.wait_statuses:
        yield message("crash.killed")
    if any(status & _SIGNAL_BITS == SIGABRT for status in death.wait_statuses):
        yield message("crash.aborted")
    if death.closed and not death.exceptions:
        yield message("crash.closed")
    if not death.closed and not death.wait_statuses:
        yield message("crash.not_closed")


def fewer_batches(trace: Trace, graph: WaitGraph) -> Finding:
    """Return the finding about ranks that others wait for and that ended with status 0: the fewer of both are named.

    Where those who wait are in no later step than the others ended with, the steps are as many, and one of them
    had an operation too many or too few.
    """
    ended, waiting = graph.absent, graph.waiting
    is_more = len(ended) > len(waiting)
    steps = step_counts(trace, ended, waiting)
    is_same = steps is not None and steps.others < steps.own
    said = _SAID[is_more, is_same]
    return Finding(
        kind=FindingKind.HANG,
        severity=Severity.CRITICAL,
        where=where_of(waiting if is_more else ended, trace),
        claim=_claim_of_ended(ended, waiting, is_more=is_more, is_same=is_same),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.95,
        evidence=(
            message("fewer_batches.status", ended=_with_status_0(trace, ended)),
            *(() if steps is None else (steps_message(ended, steps),)),
            *unlike_passes(trace),
            *waited_for(trace, graph, ended),
            *stack_messages(trace, waiting, most=SHOWN),
        ),
        remedy=said.remedy,
        cause=said.cause,
    )


def _with_status_0(trace: Trace, ranks: tuple[int, ...]) -> list[int]:
    status = ends_of_ranks(trace)["wait_status"]
    return [rank for rank in ranks if status.eq(0).fillna(value=False).get(rank, False)]


class _Said(NamedTuple):
    """What to do about a number of batches or operations, and how its cause is called."""

    remedy: Message
    cause: str


_BATCHES = _Said(message("fewer_batches.remedy"), "fewer_batches")
_SAID = {
    (True, False): _BATCHES,
    (False, False): _BATCHES,
    (True, True): _Said(message("mismatch.remedy_extra"), "mismatch_extra"),
    (False, True): _Said(message("mismatch.remedy_left_out"), "mismatch_left_out"),
}
"""By whether those who wait are the fewer, and whether the steps are as many."""


def _claim_of_ended(
    ended: tuple[int, ...], waiting: tuple[int, ...], *, is_more: bool, is_same: bool
) -> Message:
    if is_more and is_same:
        return message("fewer_batches.extra", waiting=waiting, ended=len(ended))
    if is_more:
        return message("fewer_batches.more", waiting=waiting, ended=len(ended))
    if is_same:
        return message("fewer_batches.left_out", ended=ended, waiting=len(waiting))
    return message("fewer_batches.claim", ended=ended, waiting=len(waiting))
