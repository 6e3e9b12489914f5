"""Runs that came to a standstill: who did not arrive."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from meshscope.probe.schema.terms import FindingKind, Severity

from ..account import Account
from ..hang import OpenOperation, WaitGraph, wait_graph
from ..results import Finding, Where
from ..steps import WHOLE_CAPTURE
from ..trace import FLIGHT_RECORDER, Trace
from ..words import counted

PATIENCE_STEPS = 10
"""Steps that ranks must have waited before a capture of ours is called hung: in one that was
killed at work, some rank is always the last."""
MOST_LISTED = 32
_SHOWN = 4


def hang(account: Account) -> Iterator[Finding]:
    """Ranks that others waited for when the capture broke off."""
    windows = account.windows
    has_steps = windows.steps[0] != WHOLE_CAPTURE
    yield from hang_findings(account.trace, windows.step_time_ns if has_steps else None)


def hang_findings(trace: Trace, step_time_ns: float | None = None) -> Iterator[Finding]:
    """Yield who did not arrive, then operations that all had issued and that did not end.

    Args:
        trace: A capture that broke off; others give nothing.
        step_time_ns: Usual length of a step, by which waiting is judged. A dump of a
            flight recorder has none: it is made because something timed out.
    """
    graph = wait_graph(trace)
    if graph is None:
        return
    doubt = _doubt(trace, graph, step_time_ns)
    if graph.absent:
        yield _absent(trace, graph, doubt)
    if graph.uncaptured:
        yield _uncaptured(trace, graph, doubt)
    if graph.absent or graph.uncaptured:
        return
    if graph.ring:
        yield _ring(trace, graph, doubt)
    elif graph.stuck:
        yield _stuck(trace, graph, doubt)


def _doubt(trace: Trace, graph: WaitGraph, step_time_ns: float | None) -> tuple[Severity, float]:
    """Return severity and the factor on the confidence, by how long the ranks have waited."""
    if trace.origin == FLIGHT_RECORDER:
        return Severity.CRITICAL, 1.0
    since_ns = min(min(found.since_ns.values()) for found in graph.operations)
    if step_time_ns and _last_record_ns(trace) - since_ns >= PATIENCE_STEPS * step_time_ns:
        return Severity.CRITICAL, 1.0
    return Severity.INFO, 0.3


def _absent(trace: Trace, graph: WaitGraph, doubt: tuple[Severity, float]) -> Finding:
    names = _names(graph.absent)
    claim = f"{names} did not arrive: {counted(len(graph.waiting), 'rank')} stood still in communication"
    if doubt[0] is not Severity.CRITICAL:
        claim = f"When the capture broke off the others waited for {names}, not known for how long"
    evidence = [
        *_waited_for(trace, graph, graph.absent, "it had nothing open"),
        _since(trace, graph),
    ]
    victims = set(graph.waiting) & {rank for o in graph.operations for rank in o.absent}
    if victims:
        evidence.append(
            f"{_names(sorted(victims))} did not arrive somewhere either, but waited for others "
            "themselves"
        )
    return Finding(
        kind=FindingKind.HANG,
        severity=doubt[0],
        where=_where(graph.absent, trace),
        claim=_capital(claim),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=round(0.95 * doubt[1], 2),
        evidence=tuple(evidence),
        remedy=f"Look at what {names} did instead: the stacks of the process (py-spy dump), a lock, "
        "data loading, a checkpoint, an exception, errors of the device; the others are waiting",
    )


def _uncaptured(trace: Trace, graph: WaitGraph, doubt: tuple[Severity, float]) -> Finding:
    names = _names(graph.uncaptured)
    severity = Severity.WARNING if graph.absent else doubt[0]
    return Finding(
        kind=FindingKind.HANG,
        severity=severity,
        where=_where(graph.uncaptured, trace),
        claim=_capital(
            f"{names} may not have arrived: others waited there, and there is no capture to tell"
        ),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=round(0.6 * doubt[1], 2),
        evidence=(
            *_waited_for(trace, graph, graph.uncaptured, "there is no capture of it"),
            _since(trace, graph),
        ),
        remedy=f"See whether the processes and hosts of {names} are alive, and why they left no dump",
    )


def _waited_for(
    trace: Trace, graph: WaitGraph, ranks: tuple[int, ...], state: str
) -> Iterator[str]:
    """Yield where others waited for each of the first few ranks."""
    progress = trace.frame("progress").astype({"group_id": str})
    issued = progress.set_index(["group_id", "rank"])["issued_seq"].to_dict()
    for rank in ranks[:_SHOWN]:
        lacking = [o for o in graph.operations if rank in (*o.absent, *o.uncaptured)]
        # The operation that most ranks wait in says most; of equals the oldest.
        worst = min(lacking, key=lambda o: (-len(o.since_ns), min(o.since_ns.values())))
        known = issued.get((worst.key[0], rank)) if worst.key[2] < 0 else None
        last = f"; its last one there was {known}" if known is not None and known > 0 else ""
        yield (
            f"rank {rank}: {_names(sorted(worst.since_ns))} waited for it in "
            f"{_place(trace, worst)}; {state}{last}"
        )


def _ring(trace: Trace, graph: WaitGraph, doubt: tuple[Severity, float]) -> Finding:
    names = _names(graph.ring)
    inner = [found for found in graph.operations if set(found.since_ns) & set(graph.ring)]
    return Finding(
        kind=FindingKind.HANG,
        severity=doubt[0],
        where=_where(graph.ring, trace),
        claim=_capital(f"{names} waited for each other in a circle"),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=round(0.7 * doubt[1], 2),
        evidence=(
            *(
                f"{_names(sorted(found.since_ns))} waited in {_place(trace, found)} for "
                f"{_names(found.absent or found.delayed)}"
                for found in inner[:_SHOWN]
            ),
            _since(trace, graph),
        ),
        remedy="Make all ranks issue their communication in the same order",
    )


def _stuck(trace: Trace, graph: WaitGraph, doubt: tuple[Severity, float]) -> Finding:
    worst = max(graph.stuck, key=lambda found: len(found.since_ns))
    ranks = sorted({rank for found in graph.stuck for rank in found.since_ns})
    where = _where(ranks, trace)
    where["group_id"] = worst.key[0]
    severity = Severity.WARNING if doubt[0] is Severity.CRITICAL else doubt[0]
    return Finding(
        kind=FindingKind.HANG,
        severity=severity,
        where=where,
        claim=f"All members had issued {_place(trace, worst)}, and it had not ended",
        cost_frac=None,
        removal_gain_frac=None,
        confidence=round(0.5 * doubt[1], 2),
        evidence=(
            f"{counted(len(graph.stuck), 'operation')} of this kind, on {_names(ranks)}; nothing "
            "older was open there",
            _since(trace, graph),
        ),
        remedy="If the job was still at work this is normal. If not, look at the links and devices of "
        "these ranks, and whether all gave the same sizes and types",
    )


def _where(ranks: list[int] | tuple[int, ...], trace: Trace) -> Where:
    where: Where = {"ranks": list(ranks[:MOST_LISTED])}
    if trace.layout is not None:
        inside = [rank for rank in ranks if rank < trace.layout.world_size]
        stages = {trace.layout.coordinates(rank)["pp"] for rank in inside}
        if len(stages) == 1 and trace.layout.pp > 1:
            where["stage"] = stages.pop()
    return where


def _place(trace: Trace, found: OpenOperation) -> str:
    group, seq, source, target = found.key
    groups = trace.frame("group")
    described = groups.loc[groups["group_id"].astype(str) == group, "description"]
    name = next((f" ({text})" for text in described if isinstance(text, str) and text), "")
    if source >= 0:
        return f"the transfer {source}->{target} of group {group}{name}"
    return f"{found.kind} {seq} of group {group}{name}"


def _since(trace: Trace, graph: WaitGraph) -> str:
    since_ns = min(min(found.since_ns.values()) for found in graph.operations)
    later = f"{(_last_record_ns(trace) - since_ns) / 1e6:.1f} ms before the last record of any rank"
    if trace.origin != FLIGHT_RECORDER:
        return f"the oldest open operation was issued {later}"
    moment = datetime.fromtimestamp(since_ns // 10**9, UTC)
    return f"the oldest open operation was issued at {moment:%Y-%m-%d %H:%M:%S} UTC, {later}"


def _last_record_ns(trace: Trace) -> int:
    last = 0
    for name in ("collective", "p2p"):
        frame = trace.frame(name)
        if len(frame):
            last = max(last, int(frame["issue_ns"].max()), int(frame["end_ns"].fillna(0).max()))
    for name in ("span", "step"):
        frame = trace.frame(name)
        if len(frame):
            last = max(last, int((frame["start_ns"] + frame["dur_ns"]).max()))
    return last


def _names(ranks: list[int] | tuple[int, ...]) -> str:
    """Return ranks as words: ``rank 3``, ``ranks 1, 2 and 5``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 * _SHOWN:
        listed = ", ".join(map(str, ranks[: 2 * _SHOWN]))
        return f"ranks {listed} and {len(ranks) - 2 * _SHOWN} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
