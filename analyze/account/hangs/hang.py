"""Who waited for whom when a capture broke off, and who waited for nobody.

Compared are the numbers of the collectives of each group: a member that is behind
the collective that others have issued did not arrive. It may itself be waiting
elsewhere, so the chain is followed: from a rank to the operations that it has open,
from an operation to the members that did not come, or, where all have come, to
those that have an older operation open. Whoever stands at the end waits for nobody.

Five ranks; 3 reads a file, all others are stuck::

    group [0, 1]: 0 and 1 have issued 7; rank 1 has 4 of [1, 2] open since before
    group [1, 2]: 1 has issued 4, 2 only 3          1 waits for 2
    group [2, 3]: 2 has issued 9, 3 only 8          2 waits for 3: rank 3 is named
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

import msgspec
import pandas as pd

from meshscope.probe.schema.terms import SYNCHRONISING, Direction

from ...align.steps.last_records import last_progress_ns
from ...tables.trace import Trace
from .newest_attempt import rows_of_newest_attempt
from .stacks import CALL_FILE, standing_inner
from .unrecorded_ranks import lost_ranks, unheard_ranks

OpKey = tuple[str, int, int, int]
"""Group, number, and for a transfer sender and receiver, else -1 twice."""
_KEY = ["group_id", "seq", "source", "target"]
_LAST = 1 << 62
"""The event id of an operation that has no record: it is the last of its rank."""
_COLUMNS = ["rank", *_KEY, "kind", "issue_ns", "event_id"]


class OpenOperation(msgspec.Struct, frozen=True, kw_only=True):
    """One operation that was not complete, and who of its members is missing in it."""

    key: OpKey
    kind: str
    since_ns: dict[int, int]
    """When each rank that waits in it had issued it."""
    absent: tuple[int, ...]
    """Members that had not issued it."""
    uncaptured: tuple[int, ...]
    """Members of which there is no capture."""
    delayed: tuple[int, ...] = ()
    """Members that had issued it, but had an older operation open."""


class WaitGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The open operations of a capture and the ends of the chains of waiting."""

    operations: tuple[OpenOperation, ...]
    absent: tuple[int, ...]
    """Ranks that others wait for and that wait for nobody."""
    uncaptured: tuple[int, ...]
    """Ranks without a capture that others wait for."""
    stuck: tuple[OpenOperation, ...]
    """Operations that all members had issued, none delayed, and that did not end."""
    ring: tuple[int, ...]
    """Ranks that wait for each other in a circle."""
    waiting: tuple[int, ...]
    """Ranks that have an operation open."""


def wait_graph(trace: Trace, *, before_ns: int | None = None) -> WaitGraph | None:
    """Return who waited for whom at the end of a capture; None where nothing was open.

    Only captures with a ``progress`` table tell: dumps of a flight recorder, and
    our own of which a rank has no close mark.

    Args:
        trace: The capture.
        before_ns: Only what was issued before that moment and never ended; everything, if not given.
    """
    if trace.frame("progress").empty:
        return None
    rows = pd.concat([_open_collectives(trace), _open_transfers(trace), _counted_ahead(trace)])
    sends = _blocking_sends(trace)
    if before_ns is not None:
        rows, sends = rows[rows["issue_ns"] < before_ns], sends[sends["issue_ns"] < before_ns]
    graph = _graph(trace, rows)
    # A rank that stands in a send has not stayed away of its own accord.
    if sends.empty or (graph is not None and not set(graph.absent) & set(sends["rank"])):
        return graph
    return _graph(trace, pd.concat([rows, sends]))


def _graph(trace: Trace, rows: pd.DataFrame) -> WaitGraph | None:
    """Return who waits for whom in some operations, None without any."""
    if rows.empty:
        return None
    rows = rows.sort_values(["rank", "event_id"], ignore_index=True)
    # Where one member is through, all have come: the others only note it later. Such
    # rows explain a hang only where nothing else does.
    pending = rows[~_ended_elsewhere(trace, rows)].reset_index(drop=True)
    rows = rows if pending.empty else pending
    operations = _operations(trace, rows)
    return _ends(trace, operations, _edges(rows, operations))


def _open_collectives(trace: Trace) -> pd.DataFrame:
    """Return the collectives that a member had issued and that were not complete there.

    A host that never looks does not see an end. So a row of ours without one counts
    only where a member is behind it: then it cannot have ended.
    """
    progress = trace.frame("progress").astype({"group_id": str})
    rows = rows_of_newest_attempt(trace, "collective").assign(source=-1, target=-1)
    rows = rows[rows["end_ns"].isna()].merge(progress, on=["rank", "group_id"])
    floor = rows["completed_seq"].fillna(-1)
    if not trace.capabilities.sees_every_end:
        slowest = progress.groupby("group_id")["issued_seq"].min()
        floor = rows["group_id"].map(slowest).where(rows["completed_seq"].isna(), floor)
        # Where nobody knows what anyone had issued, nobody is behind.
        floor = floor.fillna(rows["seq"])
    return rows.loc[rows["seq"] > floor.astype("int64"), _COLUMNS]


def _counted_ahead(trace: Trace) -> pd.DataFrame:
    """Return the collectives that ranks stand in by the counts of their backends.

    Where communication was not recorded, a rank that has issued more on a group than another
    member waits in its last one, since its last record or later. So does one that has a group
    with a lost rank, if it has no other such group: else it may wait in any of them.
    """
    progress = trace.frame("progress").astype({"group_id": str})
    known = progress.dropna(subset=["issued_seq"])
    slowest = known.groupby("group_id")["issued_seq"].min()
    ahead = known["issued_seq"] > known["group_id"].map(slowest)
    lost_in = progress.loc[progress["rank"].isin(lost_ranks(trace)), "group_id"]
    of_lost = known[known["group_id"].isin(lost_in)]
    ahead |= known.index.isin(of_lost.index[~of_lost["rank"].duplicated(keep=False)])
    rows = known[ahead & known["rank"].isin(unheard_ranks(trace.tables))]
    return rows.assign(
        seq=rows["issued_seq"].astype("int64"),
        source=-1,
        target=-1,
        kind="collective",
        issue_ns=rows["rank"].map(last_progress_ns(trace)).astype("int64"),
        event_id=_LAST,
    )[_COLUMNS]


def _ended_elsewhere(trace: Trace, rows: pd.DataFrame) -> pd.Series[bool]:
    """Return which open collectives another member has seen complete.

    Only of kinds that nobody leaves before all have come.
    """
    progress = trace.frame("progress").astype({"group_id": str})
    furthest = progress.groupby("group_id")["completed_seq"].max()
    last = rows["group_id"].map(furthest).fillna(-1).astype("int64")
    kinds = [kind.value for kind in SYNCHRONISING]
    return rows["kind"].isin(kinds) & (rows["seq"] <= last)


def _open_transfers(trace: Trace) -> pd.DataFrame:
    """Return the sends and receives that were not complete.

    In a capture of ours only receives whose send was not issued: other ends may have
    gone unseen, and a send may be buffered.
    """
    rows = _ends_of_transfers(trace)
    is_open = rows["end_ns"].isna() & (rows["peer"] >= 0)
    if not trace.capabilities.sees_every_end:
        is_send = rows["kind"] == Direction.SEND.value
        pair = ["group_id", "source", "target"]
        sent = rows[is_send].groupby(pair)["seq"].max().rename("sent_seq")
        sent_seq = rows.join(sent, on=pair)["sent_seq"].fillna(-1)
        is_open &= ~is_send & rows["rank"].isin(trace.frame("progress")["rank"])
        is_open &= rows["seq"] > sent_seq
    return rows.loc[is_open, _COLUMNS]


def _blocking_sends(trace: Trace) -> pd.DataFrame:
    """Return the sends that their ranks stand in, as far as a capture of ours tells.

    A send may be buffered, or waited for later. One that nobody receives, and after which
    nothing more was recorded of its rank, holds the rank.
    """
    if trace.capabilities.sees_every_end:
        return pd.DataFrame(columns=_COLUMNS)
    rows = _ends_of_transfers(trace)
    is_send = rows["kind"] == Direction.SEND.value
    pair = ["group_id", "source", "target"]
    received = rows[~is_send].groupby(pair)["seq"].max().rename("received_seq")
    waits = is_send & rows["end_ns"].isna() & (rows["peer"] >= 0)
    waits &= rows["rank"].isin(trace.frame("progress")["rank"])
    waits &= rows["seq"] > rows.join(received, on=pair)["received_seq"].fillna(-1)
    waits &= rows["issue_ns"] >= rows["rank"].map(last_progress_ns(trace))
    return rows.loc[waits, _COLUMNS]


def _ends_of_transfers(trace: Trace) -> pd.DataFrame:
    rows = rows_of_newest_attempt(trace, "p2p")
    is_send = rows["direction"] == Direction.SEND.value
    return rows.assign(
        kind=rows["direction"],
        source=rows["rank"].where(is_send, rows["peer"]),
        target=rows["peer"].where(is_send, rows["rank"]),
    )


def stood_in(trace: Trace, ranks: Sequence[int]) -> tuple[OpenOperation, ...]:
    """Return what ranks were in by their stacks, although all its members had issued it.

    A root or a tag differs there, of which there is no record: some members went on, the others wait.
    """
    inner = standing_inner(trace)
    inner = inner[inner["file"].astype(str).str.endswith(CALL_FILE)]
    collectives = rows_of_newest_attempt(trace, "collective").assign(source=-1, target=-1)
    transfers = _ends_of_transfers(trace)
    stood = set(inner["rank"]) & set(ranks)
    parts = [
        own.loc[own["rank"].isin(stood), [*_COLUMNS, "end_ns"]]
        for own in (collectives, transfers[transfers["peer"] >= 0])
    ]
    parts = [own for own in parts if len(own)]
    if not parts:
        return ()
    rows = pd.concat(parts)
    last = rows.sort_values("event_id").drop_duplicates("rank", keep="last")
    last = last[last["end_ns"].isna()]
    away = _Away(trace)
    found: dict[OpKey, OpenOperation] = {}
    for key, rank, kind, since_ns in zip(
        _keys(last), *(last[name].tolist() for name in ("rank", "kind", "issue_ns")), strict=True
    ):
        if not any(away.of(key)):
            before = found[key].since_ns if key in found else {}
            since = {**before, rank: int(since_ns)}
            found[key] = OpenOperation(key=key, kind=kind, since_ns=since, absent=(), uncaptured=())
    return tuple(found.values())


def _operations(trace: Trace, rows: pd.DataFrame) -> dict[OpKey, OpenOperation]:
    """Return what each rank stands in first in each group and on each link."""
    heads = rows.drop_duplicates(["rank", "group_id", "source", "target"])
    away = _Away(trace)
    oldest = rows.groupby("rank")["event_id"].min()
    delayed_rows = rows[rows["event_id"] > rows["rank"].map(oldest)]
    delayed: dict[OpKey, list[int]] = defaultdict(list)
    for key, rank in zip(_keys(delayed_rows), delayed_rows["rank"].tolist(), strict=True):
        delayed[key].append(rank)
    since: dict[OpKey, dict[int, int]] = defaultdict(dict)
    kinds: dict[OpKey, str] = {}
    for key, rank, kind, issue_ns in zip(
        _keys(heads), *(heads[name].tolist() for name in ("rank", "kind", "issue_ns")), strict=True
    ):
        since[key][rank] = int(issue_ns)
        kinds[key] = kind
    found = {}
    for key, issued in since.items():
        absent, uncaptured = away.of(key)
        found[key] = OpenOperation(
            key=key,
            kind=kinds[key],
            since_ns=issued,
            absent=absent,
            uncaptured=uncaptured,
            delayed=() if absent else tuple(delayed[key]),
        )
    return found


def _keys(rows: pd.DataFrame) -> list[OpKey]:
    return list(rows[_KEY].itertuples(index=False, name=None))


class _Away:
    """Which members of an operation had not issued it."""

    def __init__(self, trace: Trace) -> None:
        groups, progress = trace.frame("group"), trace.frame("progress")
        self._members = {
            str(group): tuple(map(int, ranks))
            for group, ranks in zip(groups["group_id"], groups["ranks"], strict=True)
        }
        issued = progress.astype({"group_id": str}).groupby(["group_id", "rank"])["issued_seq"]
        self._issued: dict[Hashable, int] = issued.max().dropna().to_dict()
        ends = _ends_of_transfers(trace)
        last = ends.groupby(["group_id", "rank", "source", "target"])["seq"].max()
        self._transferred: dict[Hashable, int] = last.to_dict()
        self._captured = set(trace.ranks)
        self._unheard = unheard_ranks(trace.tables)
        self._lost = lost_ranks(trace)

    def of(self, key: OpKey) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the members that are known not to have come, and those without a capture."""
        group, seq, source, target = key
        if source >= 0:
            behind = [
                rank
                for rank in (source, target)
                if rank not in self._unheard
                and self._transferred.get((group, rank, source, target), -1) < seq
            ]
        else:
            behind = [
                rank
                for rank in self._members.get(group, ())
                if rank not in self._captured
                or rank in self._lost
                or self._issued.get((group, rank), seq) < seq
            ]
        return (
            tuple(rank for rank in behind if rank in self._captured),
            tuple(rank for rank in behind if rank not in self._captured),
        )


def _edges(
    rows: pd.DataFrame, operations: Mapping[OpKey, OpenOperation]
) -> dict[Hashable, set[Hashable]]:
    """Return what each rank (an integer) and each operation (its key) waits for."""
    after: dict[Hashable, set[Hashable]] = defaultdict(set)
    for key, found in operations.items():
        after[key] = set(found.absent or found.delayed or found.uncaptured)
        if found.absent:
            for rank in found.since_ns:
                after[rank].add(key)
    first = rows.drop_duplicates("rank")
    for key, rank in zip(_keys(first), first["rank"].tolist(), strict=True):
        if key in operations:
            after[rank].add(key)
    return after


def _ends(
    trace: Trace,
    operations: Mapping[OpKey, OpenOperation],
    after: Mapping[Hashable, set[Hashable]],
) -> WaitGraph:
    waiting = sorted({rank for found in operations.values() for rank in found.since_ns})
    nodes = {node for targets in after.values() for node in targets} | after.keys()
    ends = {node for node in nodes if not after.get(node)}
    blamed = sorted(node for node in ends if isinstance(node, int))
    reaching = _reaching(ends, after)
    ring = _circles({node for node in nodes if node not in reaching}, after)
    if _is_under_way(found for key, found in operations.items() if key in ring):
        # Nobody waits for anybody: these are what has not ended.
        ends, ring = ends | ring, set()
    return WaitGraph(
        operations=tuple(operations.values()),
        absent=tuple(rank for rank in blamed if rank in trace.ranks and rank not in waiting),
        uncaptured=tuple(rank for rank in blamed if rank not in trace.ranks),
        stuck=tuple(found for key, found in operations.items() if key in ends),
        ring=tuple(sorted(node for node in ring if isinstance(node, int))),
        waiting=tuple(waiting),
    )


def _is_under_way(operations: Iterable[OpenOperation]) -> bool:
    """Return whether all are transfers that both ends have issued: in a batch they go side by side."""
    return all(
        found.key[2] >= 0 and not found.absent and not found.uncaptured for found in operations
    )


def _reaching(ends: Iterable[Hashable], after: Mapping[Hashable, set[Hashable]]) -> set[Hashable]:
    """Return the nodes from which an end can be reached, the ends included."""
    before: dict[Hashable, list[Hashable]] = defaultdict(list)
    for node, targets in after.items():
        for target in targets:
            before[target].append(node)
    found, open_nodes = set(), list(ends)
    while open_nodes:
        node = open_nodes.pop()
        if node not in found:
            found.add(node)
            open_nodes += before[node]
    return found


def _circles(nodes: set[Hashable], after: Mapping[Hashable, set[Hashable]]) -> set[Hashable]:
    """Return the nodes that others among them wait for, over and over: the circles."""
    while True:
        inner = {target for node in nodes for target in after.get(node, ())} & nodes
        if inner == nodes:
            return nodes
        nodes = inner
