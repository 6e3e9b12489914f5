"""Ranks that wait for each other in a circle: nobody stayed away, so what they differ in is named."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from meshscope.probe.schema.terms import FindingKind, Severity

from ...account.hangs.hang import OpenOperation, WaitGraph
from ...account.hangs.stacks import stack_messages, stack_places
from ...tables.results import Finding
from ...tables.trace import Trace
from ...wording.message import Message, message
from .standstill_words import (
    SHOWN,
    oldest_open,
    operation_message,
    places_of,
    waited,
    where_of,
)


def circle_finding(trace: Trace, graph: WaitGraph, severity: Severity, factor: float) -> Finding:
    """Return the finding about ranks that wait for each other.

    Args:
        trace: The capture.
        graph: Who waited for whom, with a circle in it.
        severity: How sure it is that the job stood still.
        factor: The same on the confidence.
    """
    inner = [found for found in graph.operations if set(found.since_ns) & set(graph.ring)]
    return Finding(
        kind=FindingKind.HANG,
        severity=severity,
        where=where_of(graph.ring, trace),
        claim=_ring_claim(trace, graph, inner),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=round(0.7 * factor, 2),
        evidence=(
            *(
                message(
                    "hang.waited_for",
                    waiting=_waiting(found),
                    absent=found.absent or found.delayed,
                    operation=operation_message(trace, found),
                )
                for found in inner[:SHOWN]
            ),
            *places_of(trace, graph),
            oldest_open(trace, graph),
            *waited(trace, graph),
            *stack_messages(trace, graph.ring, most=SHOWN),
        ),
        remedy=_ring_remedy(inner),
    )


def _waiting(found: OpenOperation) -> list[int]:
    """Return who waits in an operation; who had issued it behind another one is waited for."""
    return sorted(set(found.since_ns) - set(found.delayed)) or sorted(found.since_ns)


def _first_lacking(inner: Sequence[OpenOperation]) -> OpenOperation | None:
    """Return the message that lacks an end whose rank waits for no such message; None if that is not one."""
    lacking = [found for found in inner if found.key[2] >= 0 and found.absent]
    held = {rank for found in lacking for rank in found.since_ns}
    first = [found for found in lacking if not held & set(found.absent)]
    return first[0] if len(first) == 1 else None


def _apart(trace: Trace, graph: WaitGraph, inner: Sequence[OpenOperation]) -> Message | None:
    """Return where the fewer ranks of a circle stand and where the rest; None unless these are two lines."""
    lines = _lines_of_stacks(trace, graph)
    if set(lines) != set(graph.ring):
        lines = _lines_of_calls(trace, inner)
    ranks = pd.Series(sorted(set(lines) & set(graph.ring)), dtype="int64")
    by_line = ranks.groupby(ranks.map(lines)).agg(list).sort_values(key=lambda own: own.map(len))
    if len(ranks) < len(graph.ring) or len(by_line) != 2 or "" in by_line.index:
        return None
    few, rest = by_line
    if len(few) == len(rest):
        return None
    own, others = by_line.index
    return message("hang.deadlock_apart", ranks=few, own=own, others=rest, usual=others)


def _lines_of_stacks(trace: Trace, graph: WaitGraph) -> dict[int, str]:
    """Return the line of the program in which each rank of a circle stands, by its stack; empty where it called nothing."""
    places = stack_places(trace)
    places = places[places["rank"].isin(graph.ring) & ~places["goes_on"]]
    lines = places["callers"].map(lambda callers: callers[0] if callers else "")
    return dict(zip(map(int, places["rank"]), lines, strict=True))


def _lines_of_calls(trace: Trace, inner: Sequence[OpenOperation]) -> dict[int, str]:
    """Return the same of the collective that each rank waits in first, where its place was recorded, as dumps do."""
    calls = trace.frame("collective_call").dropna(subset=["place"])
    calls = calls.astype({"group_id": str, "place": str})
    places = calls.set_index(["group_id", "seq", "rank"])["place"].to_dict()
    found = {}
    for own in inner:
        for rank in set(own.since_ns) - set(own.delayed):
            place = places.get((own.key[0], own.key[1], rank))
            if own.key[2] < 0 and place:
                found[rank] = place
    return found


def _ring_claim(trace: Trace, graph: WaitGraph, inner: Sequence[OpenOperation]) -> Message:
    """Return that ranks wait in a circle; a single message in it that was never sent, or received, is named."""
    found = _first_lacking(inner)
    if found is not None:
        _, _, source, target = found.key
        ends = {"source": source, "target": target, "absent": found.absent}
        return message("hang.deadlock_transfer", waiting=_waiting(found), **ends)
    apart = _apart(trace, graph, inner)
    if apart is not None:
        return apart
    if _in_groups(inner):
        return message("hang.deadlock_groups", ranks=graph.ring)
    return message("hang.deadlock", ranks=graph.ring)


def _ring_remedy(inner: Sequence[OpenOperation]) -> Message:
    """Say what to do about a circle; a transfer in it of which one end lacks may be all there is to it."""
    found = _first_lacking(inner)
    if found is not None:
        ends = {"source": found.key[2], "target": found.key[3], "absent": found.absent}
        return message("hang.deadlock_transfer_remedy", **ends)
    if _in_groups(inner):
        return message("hang.deadlock_groups_remedy")
    return message("hang.deadlock_remedy")


def _in_groups(inner: Sequence[OpenOperation]) -> bool:
    """Return whether the ranks of a circle wait in collectives of one kind on several groups."""
    are_collectives = all(found.key[2] < 0 for found in inner)
    is_one_kind = len({found.kind for found in inner}) == 1
    return are_collectives and is_one_kind and len({found.key[0] for found in inner}) > 1
