"""A process that ended in the middle of the job."""

from __future__ import annotations

from signal import Signals

from meshscope.probe.schema.terms import FindingKind, Severity

from ..capture.trace import Trace
from ..hangs.ended import Death
from ..hangs.hang import WaitGraph
from ..labels import exit_words, rank_words
from ..results import Finding
from .standstill_words import capital, device_faults_of, waited_for, where_of


def crash_finding(trace: Trace, graph: WaitGraph | None, death: Death) -> Finding:
    """Return the finding about ranks that ended before the others."""
    names = rank_words(death.ranks)
    lead_ns = death.next_ns - death.ended_ns
    several = len(death.ranks) > 1
    return Finding(
        kind=FindingKind.CRASH,
        severity=Severity.CRITICAL,
        where=where_of(death.ranks, trace),
        claim=capital(
            f"the process{'es' if several else ''} of {names} ended first, and the job broke off"
        ),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=(
            f"at least {lead_ns / 1e9:.2f} s later other ranks were still there",
            _how(death),
            *map(_status_words, death.wait_statuses),
            *_waits(trace, graph, death),
            *device_faults_of(trace, death.ranks),
        ),
        remedy=f"Look at the log and the exit code of {names}: an exception, a signal (SIGKILL: the "
        "kernel's out-of-memory killer writes to dmesg), errors of the device; the other ranks were "
        "ended because of it",
    )


def _how(death: Death) -> str:
    if death.exceptions:
        return f"the program ended by an exception: {', '.join(death.exceptions)}"
    if death.closed:
        return "the capture was closed: an exception, or the training code ended there"
    return "there is no close mark: a signal, or an exit without clean-up"


def _status_words(status: int) -> str:
    """Say how a process ended, of what ``wait`` tells."""
    how = exit_words(status)
    if not how.lower().startswith("sig"):
        return f"it ended with {how}"
    killers = ": somebody's kill -9, or the kernel's out-of-memory killer"
    return f"it was ended by {how}{killers * (how == Signals.SIGKILL.name)}"


def _waits(trace: Trace, graph: WaitGraph | None, death: Death) -> list[str]:
    if graph is None or not set(death.ranks) <= set(graph.absent):
        return []
    return list(waited_for(trace, graph, death.ranks, "it had nothing open"))
