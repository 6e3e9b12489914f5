"""What NCCL attaches to its NVTX ranges: communicator, message size, rank.

Older exports hold it as JSON text. Newer ones hold the bytes as they were in memory, with
tables that say which field is where; a header of 32 bytes names the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from .database import Database

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
