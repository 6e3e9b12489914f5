"""A rank that ended in order while the others still worked: it had fewer batches."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind, Severity

from ...account.hangs.hang import WaitGraph
from ...tables.results import Finding
from ...tables.trace import Trace
from ...wording.message import Message, message
from .standstill_words import waited_for, where_of


def fewer_batches(trace: Trace, graph: WaitGraph) -> Finding:
    """Return the finding about ranks that others wait for and that ended with status 0."""
    return Finding(
        kind=FindingKind.HANG,
        severity=Severity.CRITICAL,
        where=where_of(graph.absent, trace),
        claim=message("fewer_batches.claim", ended=graph.absent, waiting=len(graph.waiting)),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.95,
        evidence=(
            message("fewer_batches.status", ended=graph.absent),
            *_steps(trace, graph),
            *waited_for(trace, graph, graph.absent),
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
