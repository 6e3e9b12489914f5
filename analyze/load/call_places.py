"""Where ranks issued collectives of each kind, type and size for the first time, as they noted it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from meshscope.probe.reader.assemble import manifest_names
from meshscope.probe.schema.manifest import CALL_PLACES_KEY
from meshscope.probe.schema.printable import printable
from meshscope.probe.schema.summary_tables import CALL_PLACE
from meshscope.probe.schema.terms import CollectiveKind

_KINDS = [kind.value for kind in CollectiveKind]
_MOST = 4096
_MOST_LENGTH = 300
"""Longer names come from damage."""
_MOST_NUMBER = 1 << 62


def call_places(manifests: Mapping[int, Mapping[str, Any]]) -> pa.Table:
    """Return the ``call_place`` rows of the manifests of ranks; what is malformed is left out."""
    rows = [
        {"rank": rank, **row}
        for rank, manifest in sorted(manifests.items())
        for row in _of_rank(manifest)
    ]
    return CALL_PLACE.conform(pa.Table.from_pylist(rows)) if rows else CALL_PLACE.empty()


def _of_rank(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    annotations = manifest.get("annotations")
    noted = annotations.get(CALL_PLACES_KEY) if isinstance(annotations, dict) else None
    groups, _ = manifest_names(manifest)
    for one in noted[:_MOST] if isinstance(noted, list) else ():
        match one:
            case [
                int(group),
                int(kind),
                str(dtype),
                int(size),
                str(function),
                str(file),
                int(line),
            ] if (
                bool not in map(type, one)
                and group in groups
                and 0 <= kind < len(_KINDS)
                and 0 <= size < _MOST_NUMBER
                and 0 <= line < 1 << 31
            ):
                yield {
                    "group_id": groups[group],
                    "kind": _KINDS[kind],
                    "dtype": printable(dtype)[:_MOST_LENGTH],
                    "size_bytes": size,
                    "function": printable(function)[:_MOST_LENGTH],
                    "file": printable(file)[-_MOST_LENGTH:],
                    "line": line,
                }
