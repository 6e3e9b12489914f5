"""The JSON form of how a job ended: who stood in which operation, who was missing, who ended first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import FindingKind

from ...account.hangs.ended import waited_until_ns
from ...account.hangs.hang import OpenOperation, OpKey, WaitGraph, wait_graph
from ...account.hangs.rank_ends import ends_of_ranks
from ...account.hangs.stacks import stack_places
from ...account.hangs.unrecorded_ranks import unknown_at_the_end
from ...align.steps.last_records import last_records_ns
from ...findings.location import ranks_named
from ...findings.rules.ended import way_words
from ...findings.rules.standstill_words import operation_message
from ...tables.results import Finding
from ...tables.trace import Trace, places_of
from ...wording.message import Text, message
from .diagnosis import finding_to_json


def standstill_to_json(
    trace: Trace, findings: Sequence[Finding], *, is_running: bool = False
) -> dict[str, Any]:
    """Return how a job ended; keys may be added, these stay.

    Times of operations and records are ``before_last_record_ns``: how long before the last record
    of any rank.

    Args:
        trace: The capture.
        findings: What was found in it.
        is_running: Whether the job may still be recorded.
    """
    ends = [found for found in findings if found.is_end]
    state, claim = _state(trace, ends, is_running=is_running)
    result: dict[str, Any] = {
        "version": 1,
        "state": state,
        "claim": str(claim),
        "findings": [finding_to_json(found) for found in ends],
        "operations": [],
        "ranks": [],
    }
    if trace.frame("progress").empty:
        return result
    graph = wait_graph(trace)
    moments = _Moments.of(trace, graph)
    operations = [] if graph is None else [_operation(one, moments) for one in _by_age(graph)]
    return result | {
        "operations": operations,
        "ranks": _ranks(trace, graph, ends, moments),
    }


def _state(trace: Trace, ends: list[Finding], *, is_running: bool) -> tuple[str, Text]:
    """Return how the job ended, in a word and in a sentence."""
    if ends:
        return str(ends[0].kind), ends[0].claim
    if trace.frame("progress").empty:
        if not trace.capabilities.records_how_it_ended:
            return "unknown", message("standstill.unknown")
        return "in_order", message("standstill.in_order")
    if is_running:
        return "running", message("standstill.running")
    return "broke_off", message("standstill.broke_off")


class _Moments(NamedTuple):
    """What waiting is counted to, and how operations are called.

    Attributes:
        last_ns: The last record of any rank.
        until_ns: Until when those who waited were seen.
        records_ns: The last record of each rank.
        words: Each open operation in words.
        sites: By group and number of an open collective, where in the program each rank issued it.
    """

    last_ns: int
    until_ns: int
    records_ns: pd.Series
    words: dict[OpKey, str]
    sites: dict[tuple[str, int], dict[int, str]]

    @classmethod
    def of(cls, trace: Trace, graph: WaitGraph | None) -> _Moments:
        records_ns = last_records_ns(trace)
        last_ns = int(records_ns.max()) if len(records_ns) else 0
        seen_ns = None if graph is None else waited_until_ns(trace, graph)
        operations = () if graph is None else graph.operations
        return cls(
            last_ns=last_ns,
            until_ns=max(last_ns, seen_ns or 0),
            records_ns=records_ns,
            words={one.key: str(operation_message(trace, one)) for one in operations},
            sites=_sites(trace, {one.key[:2] for one in operations if one.key[2] < 0}),
        )

    def sites_of(self, key: OpKey, ranks: Sequence[int]) -> list[str]:
        """Return at which lines of the program ranks issued a collective, that of most ranks first."""
        own = self.sites.get(key[:2], {}) if key[2] < 0 else {}
        count = Counter(own[rank] for rank in ranks if rank in own)
        return [place for place, _ in count.most_common()]


def _sites(trace: Trace, wanted: set[tuple[str, int]]) -> dict[tuple[str, int], dict[int, str]]:
    """Return where ranks issued some collectives: of all that was ever issued few are open."""
    calls = trace.frame("collective_call").dropna(subset=["place"])
    calls = calls[calls["seq"].isin([seq for _, seq in wanted])].astype({"group_id": str})
    sites: dict[tuple[str, int], dict[int, str]] = {key: {} for key in wanted}
    columns = (calls[name].tolist() for name in ("group_id", "seq", "rank", "place"))
    for group_id, seq, rank, place in zip(*columns, strict=True):
        if (group_id, seq) in sites:
            sites[group_id, seq][int(rank)] = str(place)
    return sites


def _by_age(graph: WaitGraph) -> list[OpenOperation]:
    """Return the open operations, the oldest first."""
    return sorted(graph.operations, key=lambda one: min(one.since_ns.values()))


def _operation(found: OpenOperation, moments: _Moments) -> dict[str, Any]:
    waiting = sorted(found.since_ns)
    since_ns = min(found.since_ns.values())
    return {
        "operation": moments.words[found.key],
        "kind": found.kind,
        "group_id": found.key[0],
        "seq": found.key[1],
        "waiting": waiting,
        "missing": [*found.absent, *found.uncaptured],
        "delayed": list(found.delayed),
        "before_last_record_ns": max(moments.last_ns - since_ns, 0),
        "waited_ns": moments.until_ns - since_ns,
        "places": moments.sites_of(found.key, waiting),
    }


def _ranks(
    trace: Trace, graph: WaitGraph | None, ends: list[Finding], moments: _Moments
) -> list[dict[str, Any]]:
    """Return what each rank did at the end, culprits first."""
    uncaptured = () if graph is None else graph.uncaptured
    ranks = sorted({*trace.ranks, *uncaptured})
    place = places_of(trace, [rank for rank in ranks if _is_inside(trace, rank)]).set_index("rank")
    at = place.to_dict("index")
    standing = stack_places(trace).set_index("rank").to_dict("index")
    last = _last_issued(trace)
    at_noted = _last_noted(trace).dropna(subset=["place"]).astype({"place": str})
    noted = {
        int(rank): [place] for rank, place in zip(at_noted["rank"], at_noted["place"], strict=True)
    }
    process = _processes(trace)
    standing_in = {} if graph is None else _stands_in(graph)
    roles, unknown = _roles(graph, ends), unknown_at_the_end(trace)
    rows = []
    for rank in ranks:
        found, role = standing_in.get(rank), roles.get(rank)
        own = standing.get(rank, {})
        rows.append(
            {
                "rank": rank,
                **{axis: at.get(rank, {}).get(axis, -1) for axis in ("pp", "dp", "tp")},
                "host": trace.host_of(rank),
                "role": role or ("waits" if found else _idle_role(rank, unknown)),
                "is_culprit": role in _CULPRITS,
                "operation": None if found is None else moments.words[found.key],
                "is_unknown": found is None and rank in unknown,
                "waited_ns": None if found is None else moments.until_ns - found.since_ns[rank],
                "places": noted.get(rank, [])
                if found is None
                else moments.sites_of(found.key, [rank]),
                "function": own.get("function"),
                "callers": list(own.get("callers", ())),
                "last_issued": last.get(rank),
                "silent_ns": _silent_ns(moments, rank),
                **process.get(rank, dict.fromkeys(_PROCESS)),
            }
        )
    return sorted(rows, key=lambda row: (not row["is_culprit"], row["operation"] is None))


def _idle_role(rank: int, unknown: list[int]) -> str:
    """Return the part of a rank that is in no recorded operation."""
    return "not recorded" if rank in unknown else "not waiting"


_CULPRITS = (
    "ended first",
    "did not arrive",
    "issued something else",
    "left no capture",
    "in a circle",
)
_PROCESS = ("ended_by", "ended_after_ns")


def _roles(graph: WaitGraph | None, ends: list[Finding]) -> dict[int, str]:
    """Return the part of ranks that findings blame, the surest last; nothing where nobody is blamed.

    That some rank is the last in a job that was killed at work blames nobody.
    """
    roles: dict[int, str] = {}
    if not ends:
        return roles
    blames = [found for found in ends if found.kind is FindingKind.HANG]
    if graph is not None and blames:
        roles |= dict.fromkeys(graph.ring, "in a circle")
        roles |= dict.fromkeys(graph.uncaptured, "left no capture")
        roles |= dict.fromkeys(graph.absent, "did not arrive")
    for found in ends:
        if (found.cause or "").startswith("mismatch"):
            roles |= dict.fromkeys(ranks_named(found.where), "issued something else")
        if found.kind is FindingKind.CRASH:
            roles |= dict.fromkeys(ranks_named(found.where), "ended first")
    return roles


def _stands_in(graph: WaitGraph) -> dict[int, OpenOperation]:
    """Return the oldest open operation of each rank that waits."""
    found: dict[int, OpenOperation] = {}
    for operation in graph.operations:
        for rank, since_ns in operation.since_ns.items():
            if rank not in found or since_ns < found[rank].since_ns[rank]:
                found[rank] = operation
    return found


def _last_noted(trace: Trace) -> pd.DataFrame:
    """Return the last operation that each rank noted where it was not recorded."""
    return trace.frame("noted_collective").drop_duplicates("rank", keep="last")


def _last_issued(trace: Trace) -> dict[int, str]:
    """Return the last operation that each rank issued, in words: noted ones are later than recorded ones."""
    noted = _last_noted(trace)
    columns = ["rank", "group_id", "seq", "kind"]
    parts = [
        noted[columns]
        .assign(issue_ns=noted["time_ns"], peer="")
        .astype({"kind": str, "group_id": str})
    ]
    for name, kind in (("collective", "kind"), ("p2p", "direction")):
        columns = ["rank", "issue_ns", "group_id", "seq"]
        frame = trace.frame(name)
        part = frame[columns].assign(kind=frame[kind].astype(str))
        peer = ", rank " + frame["peer"].astype(str) if name == "p2p" else ""
        part = part.assign(peer=peer)
        parts.append(part.astype({"group_id": str}))
    rows = pd.concat(parts, ignore_index=True)
    if rows.empty:
        return {}
    rows = rows.loc[rows.groupby("rank")["issue_ns"].idxmax()]
    words = (
        rows["kind"]
        + " "
        + rows["seq"].astype(str)
        + rows["peer"]
        + " of group "
        + rows["group_id"]
    )
    return dict(zip(rows["rank"].astype(int).tolist(), words.tolist(), strict=True))


def _processes(trace: Trace) -> dict[int, dict[str, Any]]:
    """Return how the process of each rank ended, and how long after the first one; None if unknown."""
    times = ends_of_ranks(trace)
    if times.empty:
        return {}
    first_ns = times["ended_ns"].min()
    after = (times["ended_ns"] - first_ns).astype("Int64")
    # What a dump or a simulation notes as complete is no end of a process.
    is_known = times[["ended_ns", "ended_by", "wait_status"]].notna().any(axis=1)
    ways = way_words(times).where(is_known | trace.capabilities.sees_processes_end, None)
    return {
        int(rank): {
            "ended_by": ways[rank],
            "ended_after_ns": None if pd.isna(after[rank]) else int(after[rank]),
        }
        for rank in times.index
    }


def _silent_ns(moments: _Moments, rank: int) -> int | None:
    last = moments.records_ns.get(rank)
    return (
        None if last is None or not np.isfinite(last) or last <= 0 else moments.last_ns - int(last)
    )


def _is_inside(trace: Trace, rank: int) -> bool:
    return trace.layout is None or rank < trace.layout.world_size
