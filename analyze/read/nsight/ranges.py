"""NVTX ranges of an Nsight Systems export: what they are called, where they nest, what they mean.

NCCL attaches communicator, message size and rank. Older exports hold that as JSON text. Newer ones hold the bytes as they were in memory, with
tables that say which field is where; a header of 32 bytes names the layout.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import msgspec
import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.terms import COMPUTE_KINDS, SpanKind

from ..kineto.columns import StepWindows
from ..kineto.columns import innermost as innermost_interval
from ..note_names import DATA_NAMES
from .database import MISSING, Database, IntArray, is_time

_HEADER = struct.Struct("<IIIIQQ")
"""Domain, unused, layout, unused, bytes of the payload, bytes with the header."""
_WIDTHS = {
    **dict.fromkeys((11, 12, 1, 2), 1),
    **dict.fromkeys((3, 4, 13, 14), 2),
    **dict.fromkeys((5, 6, 15, 16), 4),
    **dict.fromkeys((7, 8, 9, 10, 17, 18, 22, 23), 8),
}
"""Bytes of the integer types of NVTX payloads."""
_Field = tuple[str, int, int]
"""Name, offset and width in bytes."""


@dataclass(frozen=True, slots=True)
class Payloads:
    """Values by name, of the events that have a payload."""

    by_row: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """By position in the table of events."""
    unread: int = 0
    """Payloads that are laid out otherwise than they say."""


def read_payloads(database: Database, table: str) -> Payloads:
    """Return the payloads of all events of a table.

    Raises:
        TraceFormatError: The file is damaged.
    """
    found: dict[int, Mapping[str, int]] = {}
    code, texts = database.texts(table, "jsonText")
    decoded = [_from_json(text) for text in texts]
    says = np.array([bool(values) for values in decoded], dtype=bool)
    for row in np.flatnonzero(says[code]).tolist() if texts else ():
        found[row] = decoded[code[row]]
    layouts = _layouts(database)
    unread = 0
    for row, content in database.blobs(table, "binaryData") if layouts else ():
        values = _from_bytes(content, layouts)
        if values is None:
            unread += 1
        else:
            found[row] = values
    return Payloads(found, unread)


def _from_json(text: str) -> dict[str, int]:
    """Return the integers of a JSON object; they may be texts, with commas in them."""
    if not text.startswith("{"):
        return {}
    try:
        values = msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return {}
    pairs = ((name, _integer(value)) for name, value in values.items())
    return {name: value for name, value in pairs if value is not None}


def _integer(value: object) -> int | None:
    digits = str(value).replace(",", "")
    return int(digits) if digits.isdecimal() and len(digits) < 21 else None


def _layouts(database: Database) -> dict[tuple[int, int], tuple[int, list[_Field]]]:
    """Return the size and the fields of each payload, by domain and number of its layout."""
    columns = database.integers("NVTX_PAYLOAD_SCHEMAS", ("domainId", "schemaId", "payloadSize"))
    found: dict[tuple[int, int], tuple[int, list[_Field]]] = {
        (domain, layout): (size, [])
        for domain, layout, size in zip(*(c.tolist() for c in columns.values()), strict=True)
    }
    entries = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    columns = database.integers(entries, ("domainId", "schemaId", "type", "offset"))
    code, names = database.texts(entries, "name")
    rows = zip(*(c.tolist() for c in columns.values()), code.tolist(), strict=True)
    for domain, layout, kind, offset, name in rows:
        if (domain, layout) in found and kind in _WIDTHS:
            found[domain, layout][1].append((names[name], max(offset, 0), _WIDTHS[kind]))
    return found


def _from_bytes(
    content: bytes, layouts: Mapping[tuple[int, int], tuple[int, list[_Field]]]
) -> dict[str, int] | None:
    """Return the integers of a payload, None where it is not as its layout says."""
    if len(content) < _HEADER.size:
        return None
    domain, _, layout, _, size, total = _HEADER.unpack_from(content)
    stated, fields = layouts.get((domain, layout), (-1, []))
    if stated != size or total != len(content) or total != _HEADER.size + size:
        return None
    payload = content[_HEADER.size :]
    return {
        name: int.from_bytes(payload[offset : offset + width], "little")
        for name, offset, width in fields
        if offset + width <= size
    }


_TABLE = "NVTX_EVENTS"
_NESTED = {"NvtxPushPopRange": 59, "NvtxtPushPopRange": 70}
"""Event types of ranges that nest on their thread, and their usual numbers."""
_FREE = {"NvtxStartEndRange": 60, "NvtxtStartEndRange": 71}
_MARKS = {"NvtxMark": 34, "NvtxThread": 39}
_PROCESS_BITS = ~0xFFFFFF
_STEPS = (
    re.compile(r"ProfilerStep#(\d{1,9})"),
    re.compile(r"(?:global[ _-]?|train(?:ing)?[ _-]?)?step[ _#:=-]*(\d{1,9})", re.IGNORECASE),
    re.compile(r"(?:train(?:ing)?[ _-]?)?iter(?:ation)?[ _#:=-]*(\d{1,9})", re.IGNORECASE),
)
"""Names of whole steps, as the whole text of a range; the first pattern that occurs is used."""
_MICROBATCH = r"(?:[ _:#-]*(?:micro[ _-]?batch|mb)[ _:#=-]*(\d{1,9}))?"
_SPANS = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (rf"(?:forward|fwd)(?:[ _-]?(?:step|pass|compute))?{_MICROBATCH}", SpanKind.FORWARD),
        (rf"(?:backward|bwd)(?:[ _-]?(?:step|pass|compute))?{_MICROBATCH}", SpanKind.BACKWARD),
        (r"optimi[sz]er(?:[ _.:-]*step)?(?:#.*)?|opt(?:im)?[ _.-]step", SpanKind.OPTIMIZER),
        (r"clip[ _-]?(?:main[ _-]?)?grad(?:s|ients?)?(?:[ _-]?norm)?", SpanKind.GRAD_CLIP),
        (rf"(?:\w+\.)?{DATA_NAMES}|enumerate\(DataLoader\).*", SpanKind.DATA_LOAD),
        (r"save[ _-]?checkpoint|checkpoint[ _-]?sav(?:e|ing)", SpanKind.CHECKPOINT),
    )
)
_OPERATOR = re.compile(r"\w+::[\w.:]+$|\w+Backward\d*$")
_DETAILS = re.compile(r",? (?:seq|op_id|input_op_ids|sizes|trace_id) = ?.*$", re.DOTALL)
"""What the NVTX output of the PyTorch profiler appends to the name of an operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """NVTX ranges, one element each."""

    start: IntArray
    end: IntArray
    thread: IntArray
    name: IntArray
    """Positions in ``NvtxEvents.names``."""
    nests: npt.NDArray[np.bool_]
    """Whether the ranges of its thread nest."""
    row: IntArray
    """Positions in the table of the file."""

    def __len__(self) -> int:
        return len(self.start)

    def take(self, chosen: npt.NDArray[np.generic]) -> Ranges:
        """Return some of the ranges, by a mask or by positions."""
        return Ranges(
            **{column.name: getattr(self, column.name)[chosen] for column in fields(self)}
        )


@dataclass(frozen=True, slots=True)
class NvtxEvents:
    """All NVTX events of one file."""

    ranges: Ranges
    names: list[str]
    said: frozenset[tuple[int, str]]
    """Process and text of each mark and thread name, and of each range, without times."""
    payloads: Payloads
    lost: int
    """Ranges without an end."""

    def named(self, pattern: re.Pattern[str]) -> dict[int, re.Match[str]]:
        """Return the codes of the names that are wholly as the pattern says."""
        pairs = ((code, pattern.fullmatch(name)) for code, name in enumerate(self.names))
        return {code: match for code, match in pairs if match}


def process_of(thread: IntArray) -> IntArray:
    """Return the process of each serialized thread id, as a serialized process id."""
    return np.where(thread == MISSING, MISSING, thread & _PROCESS_BITS)


def read_nvtx(database: Database) -> NvtxEvents:
    """Return the NVTX events of a file.

    Raises:
        TraceFormatError: The file is damaged.
    """
    columns = database.integers(_TABLE, ("start", "end", "eventType", "globalTid", "textId"))
    name, names = _names(database, columns["textId"])
    labels = database.pairs("ENUM_NSYS_EVENT_TYPE", "id", "name")
    types = {str(text): key for key, text in labels if isinstance(key, int)}
    kind = columns["eventType"]
    nests = np.isin(kind, _numbers(types, _NESTED)) | (kind == MISSING)
    is_range = nests | np.isin(kind, _numbers(types, _FREE))
    is_whole = is_time(columns["start"]) & is_time(columns["end"])
    # The first exporters write 0 for what is not there.
    is_whole &= (columns["end"] != 0) | (columns["start"] == 0)
    every = Ranges(
        start=columns["start"],
        end=np.maximum(columns["end"], columns["start"]),
        thread=columns["globalTid"],
        name=name,
        nests=nests,
        row=np.arange(len(kind)),
    )
    says = is_range | np.isin(kind, _numbers(types, _MARKS))
    spoken = np.unique(np.column_stack([process_of(every.thread)[says], name[says]]), axis=0)
    return NvtxEvents(
        ranges=every.take(is_range & is_whole),
        names=names,
        said=frozenset((process, names[code]) for process, code in spoken.tolist()),
        payloads=read_payloads(database, _TABLE),
        lost=int((is_range & ~is_whole).sum()),
    )


def _numbers(types: dict[str, int], usual: dict[str, int]) -> list[int]:
    return [types.get(name, number) for name, number in usual.items()]


def _names(database: Database, text_id: IntArray) -> tuple[IntArray, list[str]]:
    """Return the name of each event as a code: its own text, else the registered one."""
    code, texts = database.texts(_TABLE, "text")
    registered = database.strings(text_id)
    code_of: dict[str, int] = {}
    plain = (_DETAILS.sub("", text) for text in texts)
    own = np.array([code_of.setdefault(text, len(code_of)) for text in plain], dtype=np.int64)
    name = own[code]
    ids, place = np.unique(text_id, return_inverse=True)
    found = [_DETAILS.sub("", registered.get(key, "")) for key in ids.tolist()]
    by_id = np.array([code_of.setdefault(text, len(code_of)) for text in found], dtype=np.int64)
    is_empty = name == code_of.get("", -1)
    name[is_empty] = by_id[place.reshape(-1)[is_empty]]
    return name, list(code_of)


def innermost(outer: Ranges, time: IntArray, thread: IntArray) -> IntArray:
    """Return for each instant on a thread the innermost range around it, -1 if none.

    Ranges of a thread nest. So as many of them are open at an instant as have begun and
    not ended, and the innermost is the last one of that depth to begin.
    """
    found = np.full(len(time), -1, dtype=np.int64)
    order = np.lexsort((-outer.end, outer.start, outer.thread))
    order = order[(outer.end > outer.start)[order]]
    asked = np.argsort(thread, kind="stable")
    for key in np.unique(thread).tolist():
        low, high = np.searchsorted(outer.thread[order], [key, key + 1])
        first, last = np.searchsorted(thread[asked], [key, key + 1])
        if low < high:
            own = order[low:high]
            places = asked[first:last]
            inside = innermost_interval(outer.start[own], outer.end[own], time[places])
            found[places] = np.where(inside >= 0, own[inside], -1)
    return found


def operators(nvtx: NvtxEvents, own: Ranges) -> npt.NDArray[np.bool_]:
    """Return which ranges are operators of a framework, by their names."""
    return own.nests & np.isin(own.name, np.fromiter(nvtx.named(_OPERATOR), np.int64))


def nvtx_steps(nvtx: NvtxEvents, own: Ranges) -> tuple[StepWindows | None, int]:
    """Return the steps that ranges of one process name, and how many ranges were not used.

    The first range of a number counts; a step that begins before the one before it has
    ended is not used, as windows do not overlap.
    """
    for pattern in _STEPS:
        number_of = {code: int(match[1]) for code, match in nvtx.named(pattern).items()}
        chosen = own.take(np.isin(own.name, np.fromiter(number_of, np.int64)))
        if not len(chosen):
            continue
        number = np.array([number_of[code] for code in chosen.name.tolist()], dtype=np.int64)
        order = np.lexsort((-chosen.end, chosen.start))
        number, start, end = number[order], chosen.start[order], chosen.end[order]
        kept = _apart(number, start, end)
        windows = StepWindows(number[kept], start[kept], end[kept], is_whole_file=False)
        return windows, len(chosen) - len(kept)
    return None, 0


def _apart(number: IntArray, start: IntArray, end: IntArray) -> IntArray:
    """Return the first windows of each number that do not overlap; they are sorted by start."""
    _, first = np.unique(number, return_index=True)
    kept: list[int] = []
    for place in np.sort(first).tolist():
        if not kept or start[place] >= end[kept[-1]]:
            kept.append(place)
    return np.array(kept, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class NamedSpans:
    """Ranges of one kind of span."""

    kind: SpanKind
    start: IntArray
    end: IntArray
    issued: IntArray
    """When the host began each."""
    microbatch: IntArray


def nvtx_spans(
    nvtx: NvtxEvents, own: Ranges, launch: IntArray, start: IntArray, end: IntArray
) -> list[NamedSpans]:
    """Return the ranges of one process that name a kind of span.

    Work of the model is done by the device, later than the host says: such a span lasts
    from the first start to the last end of what the process launched in its range.

    Args:
        nvtx: The events of the file.
        own: The ranges of the process.
        launch: When the process launched each device activity, in order.
        start: When the device began with each.
        end: When it was done.
    """
    found = []
    for pattern, kind in _SPANS:
        matches = nvtx.named(pattern)
        chosen = own.take(np.isin(own.name, np.fromiter(matches, np.int64)))
        if not len(chosen):
            continue
        batch = [_microbatch(matches[code]) for code in chosen.name.tolist()]
        begin, stop = chosen.start, chosen.end
        if kind in COMPUTE_KINDS:
            begin, stop = _on_device(chosen, launch, start, end)
        found.append(NamedSpans(kind, begin, stop, chosen.start, np.array(batch, dtype=np.int64)))
    return found


def _microbatch(match: re.Match[str]) -> int:
    return int(match[1]) if match.re.groups and match[1] else -1


def _on_device(
    chosen: Ranges, launch: IntArray, start: IntArray, end: IntArray
) -> tuple[IntArray, IntArray]:
    """Return from when to when the device did what was launched in each range.

    One that launched nothing keeps the times of the host.
    """
    low = np.searchsorted(launch, chosen.start)
    high = np.searchsorted(launch, chosen.end)
    begin, stop = chosen.start.copy(), chosen.end.copy()
    has_work = low < high
    borders = np.column_stack([low, high])[has_work].reshape(-1)
    if len(borders):
        # A last element lets a border lie behind the last launch.
        begin[has_work] = np.minimum.reduceat(np.append(start, start[-1]), borders)[::2]
        stop[has_work] = np.maximum.reduceat(np.append(end, end[-1]), borders)[::2]
    return begin, stop
