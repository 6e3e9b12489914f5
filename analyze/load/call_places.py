"""Where ranks issued collectives and messages of each kind, type and size for the first time, as they noted it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from meshscope.probe.reader.assemble import manifest_names
from meshscope.probe.schema.manifest import CALL_PLACES_KEY, MESSAGE_PLACES_KEY
from meshscope.probe.schema.printable import printable
from meshscope.probe.schema.summary_tables import CALL_PLACE
from meshscope.probe.schema.terms import CollectiveKind, Direction

_KINDS = [kind.value for kind in CollectiveKind]
_DIRECTIONS = [direction.value for direction in Direction]
_MOST = 4096
_MOST_LENGTH = 300
"""Longer names come from damage."""
_MOST_NUMBER = 1 << 62
_MOST_INTEGER = 1 << 31


def call_places(manifests: Mapping[int, Mapping[str, Any]]) -> pa.Table:
    """Return the ``call_place`` rows of the manifests of ranks; what is malformed is left out."""
    rows = [
        {"rank": rank, **row}
        for rank, manifest in sorted(manifests.items())
        for row in _of_rank(manifest)
    ]
    return CALL_PLACE.conform(pa.Table.from_pylist(rows)) if rows else CALL_PLACE.empty()


def _of_rank(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    found = manifest.get("annotations")
    annotations = found if isinstance(found, dict) else {}
    groups, _ = manifest_names(manifest)
    for one in _lists(annotations.get(CALL_PLACES_KEY)):
        match one:
            case [int(group), int(kind), *call] if group in groups and 0 <= kind < len(_KINDS):
                yield from _row(groups[group], _KINDS[kind], -1, call)
    for one in _lists(annotations.get(MESSAGE_PLACES_KEY)):
        match one:
            case [int(group), int(direction), int(peer), *call] if (
                group in groups and 0 <= direction < len(_DIRECTIONS) and -1 <= peer < _MOST_INTEGER
            ):
                yield from _row(groups[group], _DIRECTIONS[direction], peer, call)


def _lists(noted: object) -> Iterator[list[Any]]:
    """Yield the notes that are lists without truth values, which are integers too."""
    for one in noted[:_MOST] if isinstance(noted, list) else ():
        if isinstance(one, list) and bool not in map(type, one):
            yield one


def _row(group_id: str, kind: str, peer: int, call: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield the row of a note, if the rest of it can be one."""
    match call:
        case [str(dtype), int(size), str(function), str(file), int(line)] if (
            0 <= size < _MOST_NUMBER and 0 <= line < _MOST_INTEGER
        ):
            yield {
                "group_id": group_id,
                "kind": kind,
                "peer": peer,
                "dtype": printable(dtype)[:_MOST_LENGTH],
                "size_bytes": size,
                "function": printable(function)[:_MOST_LENGTH],
                "file": printable(file)[-_MOST_LENGTH:],
                "line": line,
            }
