"""Tables from the dumps of all ranks: groups, collectives, transfers, progress."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from meshscope.probe.schema.columns import TableSpec
from meshscope.probe.schema.imported_tables import COLLECTIVE_CALL, TRANSFER_CALL
from meshscope.probe.schema.standstill_tables import NO_GROUP, PROGRESS
from meshscope.probe.schema.tables import COLLECTIVE, GROUP, P2P, TABLES
from meshscope.probe.schema.terms import Axis, Direction, TimeSource

from ...wording.limits import Limit
from ...wording.message import message
from ..kineto.groups import GroupIdentity
from .dump import Dump
from .operation import Operation


class DumpTables(NamedTuple):
    """The tables of a set of dumps."""

    tables: dict[str, pa.Table]
    members: dict[str, tuple[int, ...]]
    """Ranks of each group in group order, by id."""
    limits: tuple[Limit, ...]


def dump_tables(dumps: Sequence[Dump]) -> DumpTables:
    """Return the tables of the dumps of one job, one dump a rank."""
    groups = GroupIdentity({dump.rank: dump.groups for dump in dumps})
    users: dict[str, list[int]] = defaultdict(list)
    for dump in dumps:
        for name in dump.groups:
            users[groups.of(dump.rank, name)].append(dump.rank)
    table = groups.table(users)
    members = {row["group_id"]: tuple(row["ranks"]) for row in table}
    collectives = [_collective(d, o, groups) for d, o in _operations(dumps, transfers=False)]
    transfers, unknown = _transfers(dumps, groups, members)
    limits: list[Limit] = []
    if unknown:
        limits.append(message("missing.transfers_of_unknown_rank", count=unknown))
    assumed = sum(row["evidence"] is not None for row in table)
    if assumed:
        limits.append(message("assumed.members_by_use", assumed=assumed, groups=len(table)))
    tables = {name: spec.empty() for name, spec in TABLES.items()}
    for spec, rows in (
        (GROUP, table),
        (COLLECTIVE, collectives),
        (P2P, transfers),
        (COLLECTIVE_CALL, _calls(dumps, groups)),
        (TRANSFER_CALL, _transfer_calls(dumps)),
        (PROGRESS, list(_progress(dumps, groups, members))),
    ):
        if rows:
            tables[spec.name] = _table(spec, rows)
    return DumpTables(tables, members, tuple(limits))


def _table(spec: TableSpec, rows: Sequence[dict[Any, Any]]) -> pa.Table:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return spec.conform(pa.table(columns))


def _operations(dumps: Sequence[Dump], *, transfers: bool) -> Iterator[tuple[Dump, Operation]]:
    for dump in dumps:
        for operation in sorted(dump.operations, key=lambda o: o.record):
            if (operation.direction is not None) is transfers:
                yield dump, operation


def _common(dump: Dump, operation: Operation, groups: GroupIdentity) -> dict[str, Any]:
    """Return the columns that collectives and transfers share.

    The recorder's times are those at which its watchdog looked; only a duration
    by device events is exact.
    """
    start_ns = operation.started_ns or operation.created_ns
    end_ns, source = operation.completed_ns, TimeSource.IMPORTED
    if operation.duration_ns is not None:
        end_ns, source = start_ns + operation.duration_ns, TimeSource.DEVICE
    elif end_ns is None:
        source = TimeSource.HOST_ISSUE
    return {
        "rank": dump.rank,
        "step": -1,
        "group_id": groups.of(dump.rank, operation.group),
        "axis": Axis.OTHER.value,
        "size_bytes": operation.size_bytes,
        "dtype": operation.dtype,
        "issue_ns": operation.created_ns,
        "start_ns": start_ns,
        "end_ns": None if end_ns is None else max(end_ns, start_ns),
        "source": source.value,
        "event_id": operation.record,
    }


def _collective(dump: Dump, operation: Operation, groups: GroupIdentity) -> dict[str, Any]:
    return {
        **_common(dump, operation, groups),
        "kind": operation.kind.value,
        "seq": operation.seq,
    }


def _calls(dumps: Sequence[Dump], groups: GroupIdentity) -> list[dict[str, Any]]:
    return [
        {
            "rank": dump.rank,
            "group_id": groups.of(dump.rank, operation.group),
            "seq": operation.seq,
            "input_bytes": operation.input_bytes,
            "output_bytes": operation.output_bytes,
            "is_started": operation.is_started,
            "input_splits": operation.input_splits,
            "output_splits": operation.output_splits,
            "elements": operation.elements,
            "place": operation.place,
        }
        for dump, operation in _operations(dumps, transfers=False)
    ]


def _transfer_calls(dumps: Sequence[Dump]) -> list[dict[str, Any]]:
    return [
        {
            "rank": dump.rank,
            "event_id": operation.record,
            "elements": operation.elements,
            "place": operation.place,
        }
        for dump, operation in _operations(dumps, transfers=True)
    ]


def _transfers(
    dumps: Sequence[Dump], groups: GroupIdentity, members: dict[str, tuple[int, ...]]
) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of sends and receives, and how many have no usable peer.

    The recorder numbers the transfers of a rank in a group, whoever the peer is, and
    its ring forgets the oldest. So both ends of a pair of ranks are lined up where
    neither end is complete any more: those are as many on both sides, in order.
    """
    by_end: dict[tuple[str, int, int, Direction], list[tuple[Operation, dict[str, Any]]]]
    by_end = defaultdict(list)
    unknown = 0
    for dump, operation in _operations(dumps, transfers=True):
        row = _common(dump, operation, groups)
        ranks = members.get(row["group_id"], ())
        direction = operation.direction
        lost = operation.is_complete and row["end_ns"] is None
        if direction is None or lost or not 0 <= operation.peer < len(ranks):
            unknown += 1
            continue
        row |= {"peer": ranks[operation.peer], "direction": direction.value}
        row |= {"microbatch": -1, "chunk": -1}
        pair = (dump.rank, row["peer"])
        source, target = pair if direction is Direction.SEND else pair[::-1]
        by_end[row["group_id"], source, target, direction].append((operation, row))
    complete: Counter[tuple[str, int, int, Direction]] = Counter(
        {key: sum(o.is_complete for o, _ in ends) for key, ends in by_end.items()}
    )
    rows = []
    for key, ends in by_end.items():
        first_open = max(complete[*key[:3], direction] for direction in Direction)
        for position, (_, row) in enumerate(ends):
            rows.append(row | {"seq": position - complete[key] + first_open})
    return sorted(rows, key=lambda row: (row["rank"], row["event_id"])), unknown


def _progress(
    dumps: Sequence[Dump], groups: GroupIdentity, members: dict[str, tuple[int, ...]]
) -> Iterator[dict[str, Any]]:
    """Yield how far each rank is in the collectives of each group it is in.

    The status of a group with transfers counts these too, differently on each
    member, so there only the ring tells. A member whose complete status, or whose ring from its first operation on,
    does not mention a group has issued nothing in it. A rank of which only transfers are known has one row of no group.
    """
    with_transfers = {
        groups.of(dump.rank, operation.group)
        for dump, operation in _operations(dumps, transfers=True)
    }
    for dump in dumps:
        last = {
            groups.of(dump.rank, name): status
            for name, status in dump.status.items()
            if groups.of(dump.rank, name) not in with_transfers
        }
        for group_id, (issued, completed) in _from_ring(dump, groups).items():
            known = last.get(group_id, (0, 0))
            last[group_id] = (max(known[0], issued), max(known[1], completed))
        for group_id, seq in _given_up(dump, groups).items():
            # The status counts what has timed out as complete.
            last[group_id] = (last[group_id][0], min(last[group_id][1], seq - 1))
        own = [group_id for group_id, ranks in members.items() if dump.rank in ranks]
        is_whole = _is_whole(dump)
        for group_id in own:
            if is_whole or (dump.is_status_whole and group_id not in with_transfers):
                last.setdefault(group_id, (0, 0))
        if not last:
            none = {"group_id": NO_GROUP, "issued_seq": None, "completed_seq": None}
            yield {"rank": dump.rank, **none}
        for group_id, (issued, completed) in last.items():
            yield {
                "rank": dump.rank,
                "group_id": group_id,
                "issued_seq": max(issued, 0),
                "completed_seq": max(completed, 0),
            }


def _is_whole(dump: Dump) -> bool:
    """Return whether a ring has lost nothing: it begins with the first operation, and all that follow are in it."""
    records = {operation.record for operation in dump.operations}
    return bool(records) and records == set(range(len(records))) and len(records) == dump.entries


def _given_up(dump: Dump, groups: GroupIdentity) -> dict[str, int]:
    """Return the first collective of each group that timed out and after which none has ended: it never did."""
    found: dict[str, int] = {}
    for _, operation in _operations([dump], transfers=False):
        key = groups.of(dump.rank, operation.group)
        if operation.is_end_seen:
            found.pop(key, None)
        elif operation.is_given_up:
            found.setdefault(key, operation.seq)
    return found


def _from_ring(dump: Dump, groups: GroupIdentity) -> dict[str, tuple[int, int]]:
    """Return the last issued and the last completed collective of each group in the ring."""
    found: dict[str, tuple[int, int]] = {}
    for _, operation in _operations([dump], transfers=False):
        key = groups.of(dump.rank, operation.group)
        issued, completed = found.get(key, (0, operation.seq - 1))
        if operation.is_complete:
            completed = max(completed, operation.seq)
        found[key] = (max(issued, operation.seq), completed)
    return found
