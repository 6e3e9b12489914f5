"""One dump of PyTorch's flight recorder: what one rank had asked for, group by group.

A dump is a dict, pickled or as JSON: ``entries`` (a ring of the newest operations),
``pg_config`` (the groups that the rank is in) and ``pg_status`` (the last
collective of each group that was enqueued and completed). The two last ones are
keyed differently: by the name of the group, and by its number on this rank.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

import msgspec

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.terms import CollectiveKind, Direction

from ...wording.message import message
from ..byte_source import read_whole
from ..files import DAMAGED_JSON, InputFile
from ..kernel_names import collective_kind, dtype_name
from ..kineto.groups import NamedGroup, parse_ranks
from ..plain_pickle import load_plain
from .operation import Operation
from .rank_names import MAX_RANKS, rank_of
from .unnamed_groups import with_own_groups
from .values import elements_of, size_of, splits_of, to_dict, to_list, to_number, to_stamp, to_text

MAX_BYTES = 64 << 20
"""Larger dumps are refused, packed or not; one of 2,000 collectives has about 2 MB."""
MAX_OPERATIONS = 6_000_000
"""Longer pickles are refused; one of 2,000 collectives has about 200,000 operations."""
_BY_OUTPUT = (CollectiveKind.ALL_GATHER, CollectiveKind.SCATTER)
"""Kinds whose message is what a member gets."""
_MOST_FRAMES, _MOST_TEXT = 64, 300
_STARTED = {"scheduled": False, "started": True, "completed": True}
_FIRST_GROUP = "0"
_COALESCED = "coalesced"
"""How the name of the entry ends that stands for a coalesced call, and that has no sizes."""
_WITHOUT_ENDS = "gloo:"
"""How names of a backend begin that retires an operation when it is done, and notes no end of it."""
_LONGEST_MS = 86_400_000
"""A day: no collective that ended took longer."""
_PICKLE_MAGIC = b"\x80"
_TRANSFER = re.compile(r"(send|recv)\s+(\d+)(?:->|<-)(\d+)")


class Oddity(Enum):
    """What may be missing or odd in a dump."""

    STATUS_WITHOUT_NAME = auto()
    """Not every status could be given the name of its group."""
    UNREADABLE_MEMBERS = auto()
    ENTRY_WITHOUT_GROUP = auto()
    COALESCED_PART = auto()
    """Has the number of its call, and is added to the first part of it."""


@dataclass(slots=True, kw_only=True)
class Dump:
    """One rank's dump in one form, whichever version wrote it."""

    label: str
    rank: int
    groups: dict[str, NamedGroup]
    """Groups that the rank is in, by name."""
    operations: list[Operation]
    status: dict[str, tuple[int, int]]
    """Last enqueued and last completed number of each group; transfers count too in groups
    that have some."""
    entries: int
    """How many entries its ring held, those included that no operation stands for."""
    is_status_whole: bool
    """Every status could be given the name of its group."""
    oddities: Counter[Oddity] = field(default_factory=Counter)
    """What is missing or odd, and how often."""


def read_dump(file: InputFile) -> Dump:
    """Read one dump.

    Raises:
        TraceFormatError: It is damaged, too large, no dump, or does not say its rank.
    """
    content, ends_early = read_whole(
        file, most_bytes=MAX_BYTES, remedy=message("advice.fewer_operations")
    )
    if ends_early:
        raise TraceFormatError(
            message("refused.gzip_cut_off"), where=file.label, remedy=message("advice.copy_again")
        )
    value: Any
    if content.startswith(_PICKLE_MAGIC):
        value = load_plain(content, file.label, most_operations=MAX_OPERATIONS)
    else:
        try:
            value = msgspec.json.decode(content)
        except DAMAGED_JSON as error:
            raise TraceFormatError(
                message("refused.damaged_json", error=str(error)),
                where=file.label,
                remedy=message("advice.copy_again"),
            ) from error
    if isinstance(value, list) and value:
        # The first recorder, of PyTorch 2.2, dumped its entries alone.
        value = {"entries": value}
    if not isinstance(value, dict) or not {"entries", "pg_config", "pg_status"} & value.keys():
        raise TraceFormatError(message("refused.no_flight_recorder"), where=file.label)
    return _dump(value, file, rank_of(value, file))


def _dump(value: Mapping[str, Any], file: InputFile, rank: int) -> Dump:
    oddities: Counter[Oddity] = Counter()
    read = [entry for entry in to_list(value.get("entries")) if isinstance(entry, dict)]
    entries = with_own_groups(read, rank)
    operations = list(_operations(entries, oddities))
    groups = _groups(to_dict(value.get("pg_config")), entries, oddities)
    strangers = sorted(n for n, g in groups.items() if g.ranks and rank not in g.ranks)
    if strangers:
        raise TraceFormatError(
            message("refused.rank_not_in_group", rank=rank, group=strangers[0]),
            where=file.label,
            remedy=message("advice.name_as_pytorch"),
        )
    rows = {str(number): row for number, row in to_dict(value.get("pg_status")).items()}
    names, is_whole = _group_names(rows, groups, entries)
    status = {
        names[number]: _last(row)
        for number, row in rows.items()
        if number in names and isinstance(row, dict)
    }
    if not is_whole:
        oddities[Oddity.STATUS_WITHOUT_NAME] += 1
    return Dump(
        label=file.label,
        rank=rank,
        groups=groups,
        operations=operations,
        status=status,
        entries=len(entries),
        is_status_whole=is_whole,
        oddities=oddities,
    )


def _last(row: Mapping[str, Any]) -> tuple[int, int]:
    return to_number(row.get("last_enqueued_collective")), to_number(
        row.get("last_completed_collective")
    )


def _groups(
    config: Mapping[Any, Any], entries: Sequence[Mapping[str, Any]], oddities: Counter[Oddity]
) -> dict[str, NamedGroup]:
    """Return the groups that the dump lists or uses; gloo lists none of those that it uses."""
    groups: dict[str, NamedGroup] = {}
    for name, description in filter(None, map(_group_of, entries)):
        groups.setdefault(name, NamedGroup((), description))
    for key, row in config.items():
        if not isinstance(row, dict) or not str(key):
            continue
        ranks = row.get("ranks")
        if isinstance(ranks, list) and not all(isinstance(rank, int) for rank in ranks):
            ranks = None
        members = parse_ranks(ranks)
        if not 0 < len(members) == len(set(members)) or max(members) >= MAX_RANKS:
            oddities[Oddity.UNREADABLE_MEMBERS] += 1
            members = ()
        groups[str(key)] = NamedGroup(members, to_text(row.get("desc")))
    return groups


def _group_names(
    status: Mapping[str, Any],
    groups: Mapping[str, NamedGroup],
    entries: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, str], bool]:
    """Return the name of each group number that ``pg_status`` uses, and whether all are known.

    Entries carry both. A dump without entries of a group is resolved by order: names
    and numbers both count the groups as they were made. That is believed only if
    there are as many names as numbers and no entry contradicts it.
    """
    seen = {
        str(to_number(entry.get("pg_id"))): found[0]
        for entry in entries
        if (found := _group_of(entry))
    }
    numbers = sorted((to_number(number), number) for number in status)
    names = sorted(groups, key=lambda name: to_number(name))
    if len(numbers) == len(names) and all(name.isdecimal() for name in names):
        by_order = {number: name for (_, number), name in zip(numbers, names, strict=True)}
        if all(by_order.get(number) == name for number, name in seen.items()):
            return by_order, True
    return seen, {number for _, number in numbers} <= seen.keys()


def _group_of(entry: Mapping[str, Any]) -> tuple[str, str] | None:
    pair = entry.get("process_group")
    if isinstance(pair, list | tuple) and len(pair) == 2:
        name = pair[0] if isinstance(pair[0], str | int) else ""
        return (str(name), to_text(pair[1])) if name != "" else None
    if not _is_old(entry):
        return None
    if isinstance(pair, str | int) and str(pair):
        return str(pair), ""
    # A number alone is only for the first group the same on all ranks.
    return (_FIRST_GROUP, "") if pair is None and entry.get("pg_id") == 0 else None


def _is_old(entry: Mapping[str, Any]) -> bool:
    """Return whether it is of one of the first versions: one number for all, and transfers known by name."""
    return "collective_seq_id" not in entry and "seq_id" in entry


def operations_of(entries: object) -> list[Operation]:
    """Return the operations of the entries of a dump; what is none of them is left out."""
    known = [entry for entry in to_list(entries) if isinstance(entry, dict)]
    return list(_operations(known, Counter()))


def _operations(
    entries: Sequence[Mapping[str, Any]], oddities: Counter[Oddity]
) -> Iterator[Operation]:
    """Yield the entries that can be read, each collective of a group once, each transfer by itself.

    The parts of a coalesced call share one number, and its own entry stands behind them. Only that one is
    followed to its end: the state of the parts remains what it was when they were issued.
    """
    calls = dict(filter(None, map(_coalesced_call, entries)))
    found: dict[tuple[object, ...], Operation] = {}
    for at, entry in enumerate(entries):
        own = _coalesced_call(entry)
        operation = _operation(entry)
        if own is not None and (own[0][1] or own[0] in found):
            continue
        if operation is None:
            oddities[Oddity.ENTRY_WITHOUT_GROUP] += 1
            continue
        is_transfer = operation.direction is not None
        number = (operation.group, is_transfer, operation.seq)
        if own is None and (call := calls.get(number)) is not None:
            operation = _with_end(operation, call)
        key = (*number, at) if is_transfer else number
        if key in found:
            oddities[Oddity.COALESCED_PART] += 1
            operation = _merged(found[key], operation)
        found[key] = operation
    yield from found.values()


def _coalesced_call(
    entry: Mapping[str, Any],
) -> tuple[tuple[str, bool, int], Mapping[str, Any]] | None:
    """Return group, whether of transfers, and number of a coalesced call, with its entry; None of other entries."""
    name = to_text(entry.get("profiling_name")).rpartition(":")[2]
    group = _group_of(entry)
    if group is None or not name.endswith(_COALESCED) or to_list(entry.get("input_sizes")):
        return None
    is_p2p = bool(entry.get("is_p2p"))
    return (group[0], is_p2p, to_number(entry.get(_number_name(entry, is_p2p=is_p2p)))), entry


def _with_end(part: Operation, call: Mapping[str, Any]) -> Operation:
    """Return a part of a coalesced call as far as the call has come."""
    completed_ns = to_stamp(call.get("time_discovered_completed_ns"))
    is_known = completed_ns is not None or call.get("state") == "completed"
    kind = collective_kind(to_text(call.get("profiling_name")).rpartition(":")[2])
    return replace(
        part,
        kind=part.kind if kind is CollectiveKind.OTHER else kind,
        started_ns=to_stamp(call.get("time_discovered_started_ns")),
        completed_ns=completed_ns,
        is_complete=is_known or _is_waited_for(call),
        is_end_seen=is_known,
        is_given_up=not is_known and _is_given_up(call),
        is_started=_STARTED.get(to_text(call.get("state"))),
    )


def _merged(first: Operation, part: Operation) -> Operation:
    """Return two parts of a coalesced call as one operation: what it sends is what its parts send."""
    input_bytes = first.input_bytes + part.input_bytes
    output_bytes = first.output_bytes + part.output_bytes
    # A part of unknown type makes the bytes of all unknown.
    is_sized = bool(first.size_bytes and part.size_bytes)
    elements = (first.elements or 0) + (part.elements or 0)
    return replace(
        first,
        size_bytes=(output_bytes if first.kind in _BY_OUTPUT else input_bytes) * is_sized,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        input_splits=None,
        output_splits=None,
        elements=None if is_sized else elements or None,
        dtype=first.dtype if first.dtype == part.dtype else None,
    )


def _number_name(entry: Mapping[str, Any], *, is_p2p: bool) -> str:
    return "seq_id" if _is_old(entry) else "p2p_seq_id" if is_p2p else "collective_seq_id"


def _operation(entry: Mapping[str, Any]) -> Operation | None:
    group = _group_of(entry)
    name = to_text(entry.get("profiling_name"))
    created_ns = to_stamp(entry.get("time_created_ns"))
    is_old = _is_old(entry)
    found = _TRANSFER.search(name)
    is_p2p = bool(entry.get("is_p2p", is_old and found is not None))
    transfer = found if is_p2p else None
    seq = to_number(entry.get(_number_name(entry, is_p2p=is_p2p)))
    if group is None or created_ns is None or seq < 0 or (is_p2p and not transfer):
        return None
    kind = collective_kind(name.rpartition(":")[2])
    side = "output" if kind in _BY_OUTPUT else "input"
    dtypes = to_list(entry.get(f"{side}_dtypes")) or [None]
    completed_ns = to_stamp(entry.get("time_discovered_completed_ns"))
    is_known = completed_ns is not None or entry.get("state") == "completed"
    length_ms = entry.get("duration_ms")
    shapes = to_list(entry.get(f"{side}_sizes"))
    size_bytes = size_of(shapes, dtypes)
    return Operation(
        record=max(to_number(entry.get("record_id")), 0),
        group=group[0],
        seq=seq,
        kind=kind,
        direction=_direction(transfer),
        peer=int(transfer[3][:9]) if transfer else -1,
        size_bytes=size_bytes,
        elements=None if size_bytes else elements_of(shapes) or None,
        dtype=dtype_name(to_text(dtypes[0])) or None,
        created_ns=created_ns,
        started_ns=to_stamp(entry.get("time_discovered_started_ns")),
        completed_ns=completed_ns,
        input_bytes=size_of(
            to_list(entry.get("input_sizes")), to_list(entry.get("input_dtypes")) or [None]
        ),
        output_bytes=size_of(
            to_list(entry.get("output_sizes")), to_list(entry.get("output_dtypes")) or [None]
        ),
        input_splits=splits_of(kind, entry, "input"),
        output_splits=splits_of(kind, entry, "output"),
        place=_place(to_list(entry.get("frames"))),
        is_started=_STARTED.get(to_text(entry.get("state"))),
        is_complete=is_known or _is_waited_for(entry),
        is_end_seen=is_known,
        is_given_up=not is_known and _is_given_up(entry),
        duration_ns=round(length_ms * 1e6)
        if isinstance(length_ms, float) and 0 < length_ms < _LONGEST_MS
        else None,
    )


def _is_waited_for(entry: Mapping[str, Any]) -> bool:
    """Return whether it is of a backend that reports no ends, and the recorder no longer follows it."""
    return entry.get("retired") is True and not _reports_ends(entry)


def _is_given_up(entry: Mapping[str, Any]) -> bool:
    """Return whether the recorder no longer follows it, if it has no end: backends of devices retire what timed out."""
    return entry.get("retired") is True and _reports_ends(entry)


def _reports_ends(entry: Mapping[str, Any]) -> bool:
    return not to_text(entry.get("profiling_name")).startswith(_WITHOUT_ENDS)


def _direction(transfer: re.Match[str] | None) -> Direction | None:
    if transfer is None:
        return None
    return Direction.SEND if transfer[1] == "send" else Direction.RECV


def _place(frames: Sequence[Any]) -> str | None:
    """Return the innermost frame outside of torch, else the innermost."""
    known = [frame for frame in frames[:_MOST_FRAMES] if isinstance(frame, dict)]
    files = [to_text(frame.get("filename")).replace("\\", "/") for frame in known]
    own = [at for at, file in enumerate(files) if file and "/torch/" not in f"/{file}"]
    at = own[0] if own else 0
    if not known or not files[at]:
        return None
    name, line = to_text(known[at].get("name")), to_number(known[at].get("line"))
    return f"{name} ({files[at]}:{line})"[:_MOST_TEXT]
