"""Processes that ended while others still worked: in the middle of the job, or with fewer batches."""

from __future__ import annotations

from collections.abc import Iterator
from signal import SIGKILL

from meshscope.probe.schema.terms import FindingKind, Severity

from ...account.hangs.ended import Death
from ...account.hangs.hang import WaitGraph
from ...account.hangs.stacks import stack_messages
from ...tables.results import Finding
from ...tables.trace import Trace
from ...wording.message import Message, message
from ...wording.words import exit_words
from .standstill_words import SHOWN, device_faults_of, waited_for, where_of


def crash_finding(trace: Trace, graph: WaitGraph | None, death: Death) -> Finding:
    """Return the finding about ranks that ended before the others."""
    is_waited_for = graph is not None and set(death.ranks) <= set(graph.absent)
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
            *stack_messages(trace, trace.ranks if death.exceptions else (), most=SHOWN),
            *(waited_for(trace, graph, death.ranks) if graph and is_waited_for else ()),
            *device_faults_of(trace, death.ranks),
        ),
        remedy=message("crash.remedy", ranks=death.ranks),
    )


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
    if death.closed and not death.exceptions:
        yield message("crash.closed")
    if not death.closed and not death.wait_statuses:
        yield message("crash.not_closed")


def fewer_batches(trace: Trace, graph: WaitGraph) -> Finding:
    """Return the finding about ranks that others wait for and that ended with status 0: the fewer of both are named."""
    ended, waiting = graph.absent, graph.waiting
    is_more = len(ended) > len(waiting)
    return Finding(
        kind=FindingKind.HANG,
        severity=Severity.CRITICAL,
        where=where_of(waiting if is_more else ended, trace),
        claim=message("fewer_batches.more", waiting=waiting, ended=len(ended))
        if is_more
        else message("fewer_batches.claim", ended=ended, waiting=len(waiting)),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.95,
        evidence=(
            message("fewer_batches.status", ended=ended),
            *_steps(trace, graph),
            *waited_for(trace, graph, ended),
            *stack_messages(trace, waiting, most=SHOWN),
        ),
        remedy=message("fewer_batches.remedy"),
        cause="fewer_batches",
    )


def _steps(trace: Trace, graph: WaitGraph) -> Iterator[Message]:
    steps = trace.frame("step").groupby("rank")["step"].nunique()
    own = steps[steps.index.isin(graph.absent)]
    others = steps[steps.index.isin(graph.waiting)]
    if len(own) and len(others):
        yield message(
            "fewer_batches.steps",
            ended=graph.absent,
            own=int(own.max()),
            others=int(others.max()),
        )
