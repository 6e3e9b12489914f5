"""Runs that came to a standstill: who did not arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from meshscope.probe.schema.terms import FindingKind, Severity

from ..account import Account
from ..capture.trace import FLIGHT_RECORDER, Trace
from ..hangs.ended import Death, alive_until_ns, died_first
from ..hangs.hang import WaitGraph, wait_graph
from ..hangs.stacks import stack_words
from ..labels import rank_words
from ..results import Finding
from ..words import counted
from .crash import crash_finding
from .silence import all_silent, all_wait_for_silent, ended_together, silences
from .standstill_words import (
    SHOWN,
    capital,
    device_faults_of,
    last_record_ns,
    place_of,
    since_when,
    waited_for,
    waiting_since_ns,
    where_of,
)

PATIENCE_STEPS = 10
"""Steps that ranks must have waited before a capture of ours is called hung: in one that was
killed at work, some rank is always the last."""
PATIENCE_NS = 60_000_000_000
"""The same where the length of a step is not known."""
LONG_NS = 10_000_000_000
"""There, what is long enough for a warning: a first step may compile, or read a checkpoint."""
SILENT_NS = 5_000_000_000
"""A process that is ten times as long without a sign of life as it should be."""


def hang(account: Account) -> Iterator[Finding]:
    """Ranks that others waited for when the capture broke off."""
    windows = account.windows
    yield from hang_findings(account.trace, windows.step_time_ns if windows.has_marks else None)


def hang_findings(trace: Trace, step_time_ns: float | None = None) -> Iterator[Finding]:
    """Yield who did not arrive, then operations that all had issued and that did not end.

    Args:
        trace: A capture that broke off; others give nothing.
        step_time_ns: Usual length of a step, by which waiting is judged. A dump of a
            flight recorder has none: it is made because something timed out.
    """
    if trace.frame("progress").empty:
        return
    graph = wait_graph(trace)
    patience_ns = PATIENCE_STEPS * step_time_ns if step_time_ns else PATIENCE_NS
    death = None if trace.origin == FLIGHT_RECORDER else died_first(trace, graph, patience_ns)
    if death is not None:
        yield crash_finding(trace, graph, death)
    long_ns = patience_ns if step_time_ns else LONG_NS
    if graph is None:
        yield from all_silent(trace, (long_ns, patience_ns), step_time_ns)
        return
    together = tuple(ended_together(trace, patience_ns))
    standing = _standing(trace, graph, (long_ns, patience_ns))
    for finding in _standstills(trace, graph, standing, death):
        yield replace(finding, evidence=(*finding.evidence, *together))


def _standstills(
    trace: Trace, graph: WaitGraph, standing: _Standing, death: Death | None
) -> Iterator[Finding]:
    if graph.absent and death is None:
        yield _absent(trace, graph, standing)
    if graph.uncaptured:
        yield _uncaptured(trace, graph, standing)
    if graph.absent or graph.uncaptured or death is not None:
        return
    if graph.ring:
        yield _ring(trace, graph, standing)
    elif graph.stuck:
        yield _stuck(trace, graph, standing)


class _Standing(NamedTuple):
    """How sure it is that the job stood still; that it did is critical, whatever the chance."""

    severity: Severity
    factor: float
    """On the confidence."""


_WAITED = _Standing(Severity.CRITICAL, 1.0)
_LONG = _Standing(Severity.WARNING, 0.8)
_SILENT = _Standing(Severity.CRITICAL, 0.6)
_BROKE_OFF = _Standing(Severity.INFO, 0.3)
"""In a job that was killed at work, some rank is always the last: no standstill is claimed."""


def _standing(trace: Trace, graph: WaitGraph, patience_ns: tuple[float, float]) -> _Standing:
    """Return how sure it is that the job stood still, by how long the ranks have waited.

    Args:
        trace: The capture.
        graph: Who waited for whom.
        patience_ns: From which waiting is long, and from which it is a standstill.
    """
    if trace.origin == FLIGHT_RECORDER:
        return _WAITED
    alive_ns = alive_until_ns(trace, graph.waiting)
    until_ns = max(last_record_ns(trace), alive_ns or 0)
    waited_ns = until_ns - waiting_since_ns(graph)
    if waited_ns >= patience_ns[1]:
        return _WAITED
    if waited_ns >= patience_ns[0]:
        return _LONG
    # Where no process left a sign of life the capture ends with the last record, and a job that
    # stood still for hours looks as one that was killed in that moment.
    return _SILENT if alive_ns is None and all_wait_for_silent(trace, graph) else _BROKE_OFF


def _absent(trace: Trace, graph: WaitGraph, standing: _Standing) -> Finding:
    names = rank_words(graph.absent)
    claim = f"{names} did not arrive: {counted(len(graph.waiting), 'rank')} stood still in communication"
    if standing is _SILENT:
        claim = f"{names} did not arrive: all other ranks waited when the records end, not known for how long"
    elif standing in (_LONG, _BROKE_OFF):
        claim = f"When the capture broke off the others {_had_waited(trace, graph, names)}"
    evidence = [
        *waited_for(trace, graph, graph.absent, "it had nothing open"),
        *stack_words(trace, graph.absent, most=SHOWN),
        since_when(trace, graph),
        *_signs_of_life(trace, graph),
        *silences(trace, graph),
        *device_faults_of(trace, graph.absent),
    ]
    victims = set(graph.waiting) & {rank for o in graph.operations for rank in o.absent}
    if victims:
        evidence.append(
            f"{rank_words(sorted(victims))} did not arrive somewhere either, but waited in turn for "
            "others"
        )
    return Finding(
        kind=FindingKind.HANG,
        severity=standing.severity,
        where=where_of(graph.absent, trace),
        claim=capital(claim),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=round(0.95 * standing.factor, 2),
        evidence=tuple(evidence),
        remedy=f"Look at what {names} did instead: {_stacks(trace, graph.absent)}, a lock, "
        "data loading, a checkpoint, an exception, errors of the device; the others are waiting",
    )


def _had_waited(trace: Trace, graph: WaitGraph, names: str) -> str:
    alive_ns = alive_until_ns(trace, graph.waiting)
    if alive_ns is None:
        return f"waited for {names}, not known for how long"
    return f"had waited {max(0, alive_ns - waiting_since_ns(graph)) / 1e9:.1f} s for {names}"


def _stacks(trace: Trace, ranks: Sequence[int]) -> str:
    known = set(trace.frame("standing")["rank"])
    if len(ranks) <= SHOWN and known.issuperset(ranks):
        return f"what {'it was' if len(ranks) == 1 else 'they were'} in (above)"
    return "the stacks of the process (py-spy dump)"


def _signs_of_life(trace: Trace, graph: WaitGraph) -> Iterator[str]:
    """Say of those who did not arrive whether their processes were alive, where that is known."""
    waiters_ns = alive_until_ns(trace, graph.waiting)
    if waiters_ns is None:
        return
    waited_ns = waiters_ns - waiting_since_ns(graph)
    yield f"the others are known to have waited {waited_ns / 1e9:.1f} s"
    for rank in graph.absent[:SHOWN]:
        seen_ns = alive_until_ns(trace, (rank,))
        if seen_ns is not None and waiters_ns - seen_ns < SILENT_NS <= waited_ns:
            yield f"the process of rank {rank} was alive in that time"
        elif seen_ns is not None and waiters_ns - seen_ns >= SILENT_NS:
            yield (
                f"the process of rank {rank} gave no sign of life in the last "
                f"{(waiters_ns - seen_ns) / 1e9:.1f} s of it: dead, stopped, or its interpreter locked"
            )


def _uncaptured(trace: Trace, graph: WaitGraph, standing: _Standing) -> Finding:
    names = rank_words(graph.uncaptured)
    return Finding(
        kind=FindingKind.HANG,
        severity=standing.severity,
        where=where_of(graph.uncaptured, trace),
        claim=capital(
            f"{names} may not have arrived: others waited there, and there is no capture to tell"
        ),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=round(0.6 * standing.factor, 2),
        evidence=(
            *waited_for(trace, graph, graph.uncaptured, "there is no capture of it"),
            since_when(trace, graph),
        ),
        remedy=f"See whether the processes and hosts of {names} are alive, and why they left no dump",
    )


def _ring(trace: Trace, graph: WaitGraph, standing: _Standing) -> Finding:
    names = rank_words(graph.ring)
    inner = [found for found in graph.operations if set(found.since_ns) & set(graph.ring)]
    return Finding(
        kind=FindingKind.HANG,
        severity=standing.severity,
        where=where_of(graph.ring, trace),
        claim=capital(f"{names} waited for each other in a circle"),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=round(0.7 * standing.factor, 2),
        evidence=(
            *(
                f"{rank_words(sorted(found.since_ns))} waited in {place_of(trace, found)} for "
                f"{rank_words(found.absent or found.delayed)}"
                for found in inner[:SHOWN]
            ),
            since_when(trace, graph),
            *stack_words(trace, graph.ring, most=SHOWN),
        ),
        remedy="Make all ranks issue their communication in the same order",
    )


def _stuck(trace: Trace, graph: WaitGraph, standing: _Standing) -> Finding:
    worst = max(graph.stuck, key=lambda found: len(found.since_ns))
    ranks = sorted({rank for found in graph.stuck for rank in found.since_ns})
    where = where_of(ranks, trace)
    where["group_id"] = worst.key[0]
    # A dump can be made of a job at work, where something is always on its way.
    is_dump = trace.origin == FLIGHT_RECORDER
    return Finding(
        kind=FindingKind.HANG,
        severity=Severity.WARNING if is_dump else standing.severity,
        where=where,
        claim=f"All members had issued {place_of(trace, worst)}, and it had not ended",
        cost_frac=None,
        removal_gain_frac=None,
        confidence=round(0.5 * standing.factor, 2),
        evidence=(
            f"{counted(len(graph.stuck), 'operation')} of this kind, on {rank_words(ranks)}; nothing "
            "older was open there",
            since_when(trace, graph),
            *stack_words(trace, ranks, most=SHOWN),
        ),
        remedy="If the job was still at work this is normal. If not, look at the links and devices of "
        "these ranks, and whether all gave the same sizes and types",
    )
