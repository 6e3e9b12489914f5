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
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import msgspec

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.imported_tables import ELEMENTS
from meshscope.probe.schema.terms import CollectiveKind, Direction

from ...wording.message import message
from ..byte_source import read_whole
from ..files import DAMAGED_JSON, InputFile
from ..kernel_names import collective_kind, item_bytes
from ..kineto.events import to_int as integer
from ..kineto.groups import NamedGroup, parse_ranks
from ..plain_pickle import load_plain

MAX_BYTES = 64 << 20
"""Larger dumps are refused, packed or not; one of 2,000 collectives has about 2 MB."""
MAX_OPERATIONS = 6_000_000
"""Longer pickles are refused; one of 2,000 collectives has about 200,000 operations."""
MAX_RANKS = 1 << 20
"""A larger number is no rank but something else, such as a date in a file name."""
_BY_OUTPUT = (CollectiveKind.ALL_GATHER, CollectiveKind.SCATTER)
"""Kinds whose message is what a member gets."""
_MOST_FRAMES, _MOST_TEXT = 64, 300
_MOST_TENSORS = 4096
_STARTED = {"scheduled": False, "started": True, "completed": True}
_MOST_DIMS = 64
_LONGEST_MS = 86_400_000
"""A day: no collective that ended took longer."""
_PICKLE_MAGIC = b"\x80"
_NUMBER_IN_NAME = re.compile(r"(\d+)(?:\.[A-Za-z]\w*)*$")
_TRANSFER = re.compile(r"(send|recv)\s+(\d+)(?:->|<-)(\d+)")


class Oddity(Enum):
    """What may be missing or odd in a dump."""

    STATUS_WITHOUT_NAME = auto()
    """Not every status could be given the name of its group."""
    UNREADABLE_MEMBERS = auto()
    ENTRY_WITHOUT_GROUP = auto()
    COALESCED_PART = auto()
    """Has the number of its call, and counts with the first part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One entry of the ring."""

    record: int
    """Position among all operations of the rank."""
    group: str
    """Name of the process group."""
    seq: int
    """Number among the collectives of the group; for a transfer among those of the rank in it."""
    kind: CollectiveKind
    direction: Direction | None
    """Which end of a transfer it is; None for a collective."""
    peer: int
    """Other end of a transfer, as a number inside the group; -1 if unknown."""
    size_bytes: int
    dtype: str | None
    created_ns: int
    started_ns: int | None
    completed_ns: int | None
    is_complete: bool
    is_started: bool | None
    """Whether its device had begun it; None if the dump does not tell."""
    input_bytes: int
    output_bytes: int
    input_splits: str | None
    """Bytes of each tensor of an all-to-all of lists, one tensor a member; or elements, with that word behind."""
    output_splits: str | None
    elements: int | None
    """Elements of the message, where its bytes are unknown: old versions keep no types."""
    place: str | None
    """Function, file and line of the program that issued it."""
    duration_ns: int | None
    """Length by events on the device, where the recorder had them."""


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
    if not isinstance(value, dict) or not {"entries", "pg_config", "pg_status"} & value.keys():
        raise TraceFormatError(message("refused.no_flight_recorder"), where=file.label)
    return _dump(value, file, _rank(value, file))


def _rank(value: Mapping[str, Any], file: InputFile) -> int:
    rank = _number(value.get("rank"), bits=32)
    if rank < 0 and (match := _NUMBER_IN_NAME.search(file.name)):
        rank = _number(int(match[1][:10]), bits=32)
    if not 0 <= rank < MAX_RANKS:
        raise TraceFormatError(
            message("refused.no_rank_of_dump"),
            where=file.label,
            remedy=message("advice.name_as_pytorch"),
        )
    return rank


def _dump(value: Mapping[str, Any], file: InputFile, rank: int) -> Dump:
    oddities: Counter[Oddity] = Counter()
    entries = [entry for entry in _list(value.get("entries")) if isinstance(entry, dict)]
    operations = list(_operations(entries, oddities))
    groups = _groups(_dict(value.get("pg_config")), entries, oddities)
    strangers = sorted(n for n, g in groups.items() if g.ranks and rank not in g.ranks)
    if strangers:
        raise TraceFormatError(
            message("refused.rank_not_in_group", rank=rank, group=strangers[0]),
            where=file.label,
            remedy=message("advice.name_as_pytorch"),
        )
    rows = {str(number): row for number, row in _dict(value.get("pg_status")).items()}
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
        is_status_whole=is_whole,
        oddities=oddities,
    )


def _last(row: Mapping[str, Any]) -> tuple[int, int]:
    return _number(row.get("last_enqueued_collective")), _number(
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
        groups[str(key)] = NamedGroup(members, _text(row.get("desc")))
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
        str(_number(entry.get("pg_id"))): found[0]
        for entry in entries
        if (found := _group_of(entry))
    }
    numbers = sorted((_number(number), number) for number in status)
    names = sorted(groups, key=lambda name: _number(name))
    if len(numbers) == len(names) and all(name.isdecimal() for name in names):
        by_order = {number: name for (_, number), name in zip(numbers, names, strict=True)}
        if all(by_order.get(number) == name for number, name in seen.items()):
            return by_order, True
    return seen, {number for _, number in numbers} <= seen.keys()


def _group_of(entry: Mapping[str, Any]) -> tuple[str, str] | None:
    pair = entry.get("process_group")
    if isinstance(pair, list | tuple) and len(pair) == 2:
        name = pair[0] if isinstance(pair[0], str | int) else ""
        return (str(name), _text(pair[1])) if name != "" else None
    return None


def _operations(
    entries: Sequence[Mapping[str, Any]], oddities: Counter[Oddity]
) -> Iterator[Operation]:
    """Yield the entries that can be read, each number of a group once.

    The parts of a coalesced call share one number.
    """
    seen: set[tuple[object, ...]] = set()
    for entry in entries:
        operation = _operation(entry)
        if operation is None:
            oddities[Oddity.ENTRY_WITHOUT_GROUP] += 1
            continue
        key = (operation.group, operation.direction, operation.seq, operation.peer)
        if key in seen:
            oddities[Oddity.COALESCED_PART] += 1
            continue
        seen.add(key)
        yield operation


def _operation(entry: Mapping[str, Any]) -> Operation | None:
    group = _group_of(entry)
    name = _text(entry.get("profiling_name"))
    created_ns = _stamp(entry.get("time_created_ns"))
    transfer = _TRANSFER.search(name) if entry.get("is_p2p") else None
    seq = _number(entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"))
    if group is None or created_ns is None or seq < 0 or (entry.get("is_p2p") and not transfer):
        return None
    kind = collective_kind(name.rpartition(":")[2])
    side = "output" if kind in _BY_OUTPUT else "input"
    dtypes = _list(entry.get(f"{side}_dtypes")) or [None]
    completed_ns = _stamp(entry.get("time_discovered_completed_ns"))
    is_known = completed_ns is not None or entry.get("state") == "completed"
    length_ms = entry.get("duration_ms")
    shapes = _list(entry.get(f"{side}_sizes"))
    size_bytes = _size(shapes, dtypes)
    return Operation(
        record=max(_number(entry.get("record_id")), 0),
        group=group[0],
        seq=seq,
        kind=kind,
        direction=_direction(transfer),
        peer=int(transfer[3][:9]) if transfer else -1,
        size_bytes=size_bytes,
        elements=None if size_bytes else _elements(shapes) or None,
        dtype=_text(dtypes[0]) or None,
        created_ns=created_ns,
        started_ns=_stamp(entry.get("time_discovered_started_ns")),
        completed_ns=completed_ns,
        # A work that the recorder no longer follows (retired) has been waited for.
        input_bytes=_size(
            _list(entry.get("input_sizes")), _list(entry.get("input_dtypes")) or [None]
        ),
        output_bytes=_size(
            _list(entry.get("output_sizes")), _list(entry.get("output_dtypes")) or [None]
        ),
        input_splits=_splits(kind, entry, "input"),
        output_splits=_splits(kind, entry, "output"),
        place=_place(_list(entry.get("frames"))),
        is_started=_STARTED.get(_text(entry.get("state"))),
        is_complete=is_known or entry.get("retired") is True,
        duration_ns=round(length_ms * 1e6)
        if isinstance(length_ms, float) and 0 < length_ms < _LONGEST_MS
        else None,
    )


def _direction(transfer: re.Match[str] | None) -> Direction | None:
    if transfer is None:
        return None
    return Direction.SEND if transfer[1] == "send" else Direction.RECV


def _size(shapes: Sequence[Any], dtypes: Sequence[Any]) -> int:
    """Return the bytes of all tensors of one side; 0 where the dump does not tell."""
    total = 0
    for at, shape in enumerate(shapes[:_MOST_TENSORS]):
        total += _items(shape) * item_bytes(_text(dtypes[min(at, len(dtypes) - 1)]))
    return min(total, 1 << 62)


def _elements(shapes: Sequence[Any]) -> int:
    return min(sum(map(_items, shapes[:_MOST_TENSORS])), 1 << 62)


def _items(shape: object) -> int:
    items = 1
    for length in _list(shape)[:_MOST_DIMS]:
        items = min(items * max(_number(length, bits=48), 0), 1 << 53)
    return items


def _splits(kind: CollectiveKind, entry: Mapping[str, Any], side: str) -> str | None:
    """Return the bytes of each tensor of one side; None where one tensor stands for all members, or a type is unknown.

    Dumps that keep no types at all give the elements, also of one tensor.
    """
    shapes = _list(entry.get(f"{side}_sizes"))
    dtypes = _list(entry.get(f"{side}_dtypes"))
    if kind is not CollectiveKind.ALL_TO_ALL or not 1 <= len(shapes) <= _MOST_TENSORS:
        return None
    if not dtypes:
        return " ".join([*(str(_items(one)) for one in shapes), ELEMENTS])
    if len(shapes) == 1 or not all(item_bytes(_text(dtype)) for dtype in dtypes):
        return None  # It would have no bytes, unlike what its peers expect.
    sizes = [_size([one], [dtypes[min(at, len(dtypes) - 1)]]) for at, one in enumerate(shapes)]
    return " ".join(map(str, sizes))


def _place(frames: Sequence[Any]) -> str | None:
    """Return the innermost frame outside of torch, else the innermost."""
    known = [frame for frame in frames[:_MOST_FRAMES] if isinstance(frame, dict)]
    files = [_text(frame.get("filename")).replace("\\", "/") for frame in known]
    own = [at for at, file in enumerate(files) if file and "/torch/" not in f"/{file}"]
    at = own[0] if own else 0
    if not known or not files[at]:
        return None
    name, line = _text(known[at].get("name")), _number(known[at].get("line"))
    return f"{name} ({files[at]}:{line})"[:_MOST_TEXT]


def _number(value: object, *, bits: int = 64) -> int:
    """Return a number, which JSON may hold as text; -1 where it is none.

    The text of a container is not looked at: shared parts may make it endless.
    """
    return integer(value, bits=bits) if isinstance(value, int | str) else -1


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _stamp(value: object) -> int | None:
    """Return a time; None where there is none (JSON writes 0)."""
    time_ns = _number(value)
    return time_ns if time_ns > 0 else None


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _dict(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}
