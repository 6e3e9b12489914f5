"""How findings about broken-off captures name ranks, operations and moments."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from ..capture.trace import FLIGHT_RECORDER, Trace
from ..devices.faults import faults_text, faulty_devices
from ..hangs.ended import alive_until_ns
from ..hangs.hang import OpenOperation, WaitGraph
from ..labels import rank_words
from ..results import Where
from ..steps.last_records import last_records_ns

MOST_LISTED = 32
SHOWN = 4
"""Ranks or operations that are told one by one."""


def waited_for(trace: Trace, graph: WaitGraph, ranks: tuple[int, ...], state: str) -> Iterator[str]:
    """Yield where others waited for each of the first few ranks."""
    progress = trace.frame("progress").astype({"group_id": str})
    issued = progress.set_index(["group_id", "rank"])["issued_seq"].dropna().to_dict()
    for rank in ranks[:SHOWN]:
        lacking = [o for o in graph.operations if rank in (*o.absent, *o.uncaptured)]
        # The operation that most ranks wait in says most; of equals the oldest.
        worst = min(lacking, key=lambda o: (-len(o.since_ns), min(o.since_ns.values())))
        known = issued.get((worst.key[0], rank)) if worst.key[2] < 0 else None
        last = f"; its last one there was {known}" if known is not None and known > 0 else ""
        yield (
            f"rank {rank}: {rank_words(sorted(worst.since_ns))} waited for it in "
            f"{place_of(trace, worst)}; {state}{last}"
        )


def device_faults_of(trace: Trace, ranks: tuple[int, ...]) -> Iterator[str]:
    """Yield what the devices of the first few ranks reported, where they did."""
    faulty = {device.rank: device for device in faulty_devices(trace)}
    for device in [faulty[rank] for rank in ranks if rank in faulty][:SHOWN]:
        yield f"the device of rank {device.rank} ({device.uuid}) reported {faults_text(device.faults)}"


def where_of(ranks: list[int] | tuple[int, ...], trace: Trace) -> Where:
    """Return ranks as a place, with their stage if they have only one."""
    where: Where = {"ranks": list(ranks[:MOST_LISTED])}
    if trace.layout is not None:
        inside = [rank for rank in ranks if rank < trace.layout.world_size]
        stages = {trace.layout.coordinates(rank)["pp"] for rank in inside}
        if len(stages) == 1 and trace.layout.pp > 1:
            where["stage"] = stages.pop()
    return where


def place_of(trace: Trace, found: OpenOperation) -> str:
    """Return an operation as words: its kind, number and group."""
    group, seq, source, target = found.key
    groups = trace.frame("group")
    described = groups.loc[groups["group_id"].astype(str) == group, "description"]
    name = next((f" ({text})" for text in described if isinstance(text, str) and text), "")
    if source >= 0:
        return f"the transfer {source}->{target} of group {group}{name}"
    return f"{found.kind} {seq} of group {group}{name}"


def since_when(trace: Trace, graph: WaitGraph) -> str:
    """Say when the first rank began to wait."""
    since_ns = waiting_since_ns(graph)
    later = f"{(last_record_ns(trace) - since_ns) / 1e6:.1f} ms before the last record of any rank"
    if trace.origin != FLIGHT_RECORDER:
        until_ns = alive_until_ns(trace, graph.waiting)
        waited = None if until_ns is None else (until_ns - since_ns) / 1e9
        alive = "" if waited is None else f"; who waits in it was there {waited:.1f} s later"
        return f"the oldest open operation was issued {later}{alive}"
    moment = datetime.fromtimestamp(since_ns // 10**9, UTC)
    return f"the oldest open operation was issued at {moment:%Y-%m-%d %H:%M:%S} UTC, {later}"


def waiting_since_ns(graph: WaitGraph) -> int:
    """Return when the first rank began to wait in an operation that is open."""
    return min(min(found.since_ns.values()) for found in graph.operations)


def last_record_ns(trace: Trace) -> int:
    """Return the last time that a record of any rank has; 0 without records."""
    return int(last_records_ns(trace).max()) if trace.ranks else 0


def capital(text: str) -> str:
    """Return a sentence with its first letter large."""
    return text[:1].upper() + text[1:]
