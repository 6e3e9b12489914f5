"""Runs that came to a standstill: who did not arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from meshscope.probe.schema.terms import FindingKind, Severity

from ...account.hangs.ended import (
    Death,
    died_first,
    ended_in_order,
    last_sign_of_life_ns,
    waited_until_ns,
)
from ...account.hangs.hang import OpenOperation, WaitGraph, stood_in, wait_graph
from ...account.hangs.mismatch import Mismatch, mismatches
from ...account.hangs.rank_ends import ends_of_ranks
from ...account.hangs.stacks import (
    MEETINGS,
    MESSAGES,
    away_from_call,
    calls_by_rank,
    stack_messages,
)
from ...account.hangs.unrecorded_ranks import SILENT_NS, lost_ranks, unheard_ranks
from ...align.steps.last_records import last_record_ns
from ...tables.results import Finding
from ...tables.trace import Trace
from ...wording.message import Message, message
from .circles import circle_finding
from .early_end import crash_finding, fewer_batches
from .mismatch import ended_mismatch_findings, mismatch_findings, noted_mismatch_findings
from .silence import all_silent, all_wait_for_silent, ended_together, silences
from .standstill_words import (
    SHOWN,
    device_faults_of,
    killed_of,
    not_begun,
    oldest_open,
    operation_message,
    places_of,
    stuck_message,
    waited,
    waited_at_least_ns,
    waited_for,
    waiting_since_ns,
    where_of,
)
from .transfers import crossed_transfer_findings, unequal_transfer_findings
from .unnamed_groups import unnamed_findings

PATIENCE_STEPS = 10
"""Steps that ranks must have waited before a capture of ours is called hung: in one that was
killed at work, some rank is always the last."""
PATIENCE_NS = 60_000_000_000
"""The same where the length of a step is not known."""
LONG_NS = 10_000_000_000
"""There, what is long enough for a warning: a first step may compile, or read a checkpoint."""

_FROM_WORKERS = "_try_get_data"
"""The function of a DataLoader in which a rank waits for a batch that its workers make."""


def hang_findings(trace: Trace, step_time_ns: float | None = None) -> Iterator[Finding]:
    """Yield who did not arrive, then operations that all had issued and that did not end.

    Args:
        trace: A capture that broke off; others give nothing.
        step_time_ns: Usual length of a step, by which waiting is judged. A dump of a
            flight recorder has none: it is made because something timed out.
    """
    if trace.frame("progress").empty:
        return
    ended = mismatches(trace, ended=True)
    yield from _findings(trace, step_time_ns, ended)
    yield from ended_mismatch_findings(trace, ended)


def _findings(
    trace: Trace, step_time_ns: float | None, ended: Sequence[Mismatch]
) -> Iterator[Finding]:
    different = (*mismatch_findings(trace, ended), *unequal_transfer_findings(trace))
    different = different or tuple(noted_mismatch_findings(trace))
    yield from different
    if different:
        # Who waits, or whose socket broke, is a victim of it.
        return
    graph = wait_graph(trace)
    patience_ns = PATIENCE_STEPS * step_time_ns if step_time_ns else PATIENCE_NS
    death = died_first(trace, patience_ns) if trace.capabilities.records_whole_life else None
    if death is not None and not ended_in_order(trace, death.ranks):
        yield crash_finding(trace, graph, death)
    long_ns = patience_ns if step_time_ns else LONG_NS
    if graph is None or _is_miscounted(trace, graph):
        silent = tuple(all_silent(trace, (long_ns, patience_ns), step_time_ns))
        yield from silent
        if graph is None or silent:
            return
    together = tuple(ended_together(trace, patience_ns))
    standing = _standing(trace, graph, (long_ns, patience_ns))
    crossed = tuple(crossed_transfer_findings(trace, graph))
    if crossed and death is None and standing is _WAITED:
        yield from crossed
        return
    for finding in _standstills(trace, graph, standing, death):
        yield replace(finding, evidence=(*finding.evidence, *together))


def _is_miscounted(trace: Trace, graph: WaitGraph) -> bool:
    """Return whether counts blame ranks that wait themselves.

    So they do where a lost rank may be waited for in several groups, and where a call counts otherwise on
    other ranks, as a monitored barrier does on the first: ranks stand in it with those that they keep waiting.
    Of messages only receives are known to be open: who stands in a send keeps nobody waiting by choice.
    """
    lost = lost_ranks(trace)
    if not lost <= set(graph.absent):
        return True
    met = away_from_call(trace, lost)
    is_counted = unheard_ranks(trace.tables).issuperset(graph.waiting)
    are_messages = all(found.key[2] >= 0 for found in graph.operations)
    return (
        (is_counted or are_messages) and met is not None and set(graph.absent) <= set(met.waiting)
    )


def _standstills(
    trace: Trace, graph: WaitGraph, standing: _Standing, death: Death | None
) -> Iterator[Finding]:
    if graph.absent and ended_in_order(trace, graph.absent):
        yield fewer_batches(trace, graph)
        return
    if graph.absent and death is None:
        stood = stood_in(trace, graph.absent)
        if {rank for found in stood for rank in found.since_ns} == set(graph.absent):
            yield _unfinished(trace, graph, standing, stood)
        elif calls := _counted_calls(trace, graph):
            yield _behind(trace, graph, standing, calls)
        else:
            yield _absent(trace, graph, standing)
    if graph.uncaptured:
        yield _uncaptured(trace, graph, standing)
    if graph.absent or graph.uncaptured or death is not None:
        return
    unnamed = tuple(unnamed_findings(trace, graph))
    if unnamed:
        yield from unnamed
    elif graph.ring:
        yield circle_finding(trace, graph, standing.severity, standing.factor)
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
    if not trace.capabilities.records_whole_life:
        return _WAITED
    alive_ns = waited_until_ns(trace, graph)
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
    claim = _absent_claim(trace, graph, standing)
    evidence = [
        *waited_for(trace, graph, graph.absent),
        *stack_messages(trace, graph.absent, most=SHOWN),
        *_waits_for_workers(trace, graph.absent),
        *killed_of(trace, graph.absent),
        *places_of(trace, graph),
        oldest_open(trace, graph),
        # Evidence does not repeat the claim.
        *(waited(trace, graph) if claim.code != "hang.absent_for" else ()),
        *_signs_of_life(trace, graph),
        *silences(trace, graph),
        *device_faults_of(trace, graph.absent),
    ]
    if unheard_ranks(trace.tables).issuperset(graph.waiting):
        # No record tells what they wait in.
        evidence += stack_messages(trace, graph.waiting, most=SHOWN)
    victims = set(graph.waiting) & {rank for o in graph.operations for rank in o.absent}
    if victims:
        evidence.append(message("hang.victims", victims=sorted(victims)))
    return Finding(
        kind=FindingKind.HANG,
        severity=standing.severity,
        where=where_of(graph.absent, trace),
        claim=claim,
        cost_frac=None,
        removal_gain_frac=None,
        confidence=round(0.95 * standing.factor, 2),
        evidence=tuple(evidence),
        remedy=_remedy(trace, graph.absent),
    )


def _waits_for_workers(trace: Trace, ranks: Sequence[int]) -> Iterator[Message]:
    """Yield which of some ranks stand in their DataLoader: what holds them is in another process."""
    frame = trace.frame("standing")
    is_within = frame["function"].astype(str).str.endswith(_FROM_WORKERS)
    within = frame[is_within & frame["rank"].isin(ranks)]
    if len(within):
        yield message("hang.loader_worker", ranks=sorted(set(map(int, within["rank"]))))


def _absent_claim(trace: Trace, graph: WaitGraph, standing: _Standing) -> Message:
    absent, waiting = graph.absent, len(graph.waiting)
    if standing is _SILENT:
        return message("hang.absent_at_last_record", absent=absent)
    if standing is _WAITED:
        return message("hang.absent", absent=absent, waiting=waiting)
    waited_ns = waited_at_least_ns(trace, graph)
    if waited_ns is None:
        return message("hang.absent_at_end", absent=absent, waiting=waiting)
    return message("hang.absent_for", absent=absent, waiting=waiting, waited_ns=waited_ns)


def _remedy(trace: Trace, ranks: Sequence[int]) -> Message:
    known = set(trace.frame("standing")["rank"])
    if len(ranks) <= SHOWN and known.issuperset(ranks):
        return message("hang.remedy_stacks", absent=ranks)
    return message("hang.remedy", absent=ranks)


def _signs_of_life(trace: Trace, graph: WaitGraph) -> Iterator[Message]:
    """Say of those who did not arrive whether their processes were alive, where that is known."""
    waiters_ns, waited_ns = waited_until_ns(trace, graph), waited_at_least_ns(trace, graph)
    if waiters_ns is None or waited_ns is None:
        return
    ended_ns = ends_of_ranks(trace)["ended_ns"].dropna()
    for rank in graph.absent[:SHOWN]:
        seen_ns = last_sign_of_life_ns(trace, rank)
        if seen_ns is None:
            continue
        # Who has ended gives none, as who left at Ctrl-C before the others.
        silent_ns = min(waiters_ns, int(ended_ns.get(rank, waiters_ns))) - seen_ns
        if silent_ns < SILENT_NS <= waited_ns:
            yield message("hang.alive", rank=rank)
        elif silent_ns >= SILENT_NS:
            yield message("hang.no_sign_of_life", rank=rank, silent_ns=silent_ns)


def _unfinished(
    trace: Trace, graph: WaitGraph, standing: _Standing, stood: Sequence[OpenOperation]
) -> Finding:
    """Return the finding about ranks that others wait for, and that stand in what all its members issued."""
    first = stood[0]
    return Finding(
        kind=FindingKind.HANG,
        severity=standing.severity,
        where={**where_of(graph.absent, trace), "group_id": first.key[0]},
        claim=message(
            "hang.unfinished",
            operation=operation_message(trace, first),
            ranks=sorted(first.since_ns),
        ),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=round(0.8 * standing.factor, 2),
        evidence=(
            *stack_messages(trace, graph.absent, most=SHOWN),
            *waited_for(trace, graph, graph.absent),
            oldest_open(trace, graph),
            *waited(trace, graph),
        ),
        remedy=message("hang.unfinished_remedy"),
    )


def _counted_calls(trace: Trace, graph: WaitGraph) -> list[str]:
    """Return the collectives in which all stand who did not arrive, where no record but counts tells that."""
    calls = calls_by_rank(trace)
    inside = [rank for rank in graph.absent if calls.get(rank, "send") not in MESSAGES]
    if len(inside) < len(graph.absent) or not unheard_ranks(trace.tables).issuperset(inside):
        return []
    return sorted({calls[rank] for rank in inside})


def _behind(trace: Trace, graph: WaitGraph, standing: _Standing, calls: Sequence[str]) -> Finding:
    """Return the finding about ranks that wait in a collective, by their stacks, with a number that others have passed."""
    return Finding(
        kind=FindingKind.HANG,
        severity=standing.severity,
        where=where_of(graph.absent, trace),
        claim=message("hang.behind", ranks=graph.absent, calls=calls, waiting=len(graph.waiting)),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=round(0.7 * standing.factor, 2),
        evidence=(
            *stack_messages(trace, trace.ranks, most=SHOWN),
            *waited_for(trace, graph, graph.absent),
            *waited(trace, graph),
        ),
        remedy=message("hang.behind_remedy_group")
        if set(calls) <= set(MEETINGS)
        else message("hang.behind_remedy"),
    )


def _uncaptured(trace: Trace, graph: WaitGraph, standing: _Standing) -> Finding:
    missing = graph.uncaptured
    return Finding(
        kind=FindingKind.HANG,
        severity=standing.severity,
        where=where_of(missing, trace),
        claim=message("hang.uncaptured", missing=missing, waiting=len(graph.waiting)),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=round(0.6 * standing.factor, 2),
        evidence=(
            *waited_for(trace, graph, missing),
            oldest_open(trace, graph),
            *waited(trace, graph),
        ),
        remedy=message("hang.uncaptured_remedy", missing=missing),
    )


def _stuck(trace: Trace, graph: WaitGraph, standing: _Standing) -> Finding:
    worst = max(graph.stuck, key=lambda found: len(found.since_ns))
    ranks = sorted({rank for found in graph.stuck for rank in found.since_ns})
    where = where_of(ranks, trace)
    where["group_id"] = worst.key[0]
    # A dump can be made of a job at work, where something is always on its way.
    is_dump = not trace.capabilities.records_whole_life
    return Finding(
        kind=FindingKind.HANG,
        severity=Severity.WARNING if is_dump else standing.severity,
        where=where,
        claim=stuck_message(trace, worst),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=round(0.5 * standing.factor, 2),
        evidence=(
            message("hang.stuck_operations", operations=len(graph.stuck), ranks=ranks),
            *not_begun(trace, worst),
            *places_of(trace, graph),
            oldest_open(trace, graph),
            *waited(trace, graph),
            *stack_messages(trace, ranks, most=SHOWN),
        ),
        remedy=message("hang.stuck_remedy"),
    )
