"""Reads one rank's directory: manifest, segments and ring, as far as they are good."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from .errors import FormatVersionError, RunDirectoryError, SegmentError
from .manifest import MANIFEST_NAME, check_format_version, read_json
from .records import RECORD_TYPES, RecordType
from .ring import RING_NAME, RingContents, read_ring
from .segment import decode_records, read_segment, records_to_batch, segment_paths

_REPORTED_COUNTERS = ("_dropped", "_errors", "_unseen")
_LISTED = 8
"""Damaged slots that a limit names one by one."""


@dataclass(slots=True)
class RankRecords:
    """What one rank recorded."""

    rank: int
    manifest: dict[str, Any] | None = None
    """None if it is missing or damaged."""
    tables: dict[str, pa.Table] = field(default_factory=dict)
    """Records by record name, each once, in the order in which they were made."""
    limits: list[str] = field(default_factory=list)

    def note(self, limit: str) -> None:
        """Add a limit of this rank."""
        self.limits.append(f"rank {self.rank}: {limit}")

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing at all could be read."""
        return self.manifest is None and not self.tables


def read_rank(directory: Path, rank: int) -> RankRecords:
    """Read the directory of a rank, also of one that is still recording.

    Raises:
        FormatVersionError: A file in it was written by another format version.
    """
    found = RankRecords(rank)
    # In this order: what a live writer moves from the ring to a segment meanwhile
    # is then seen twice, not never, and the manifest knows every name in use.
    pieces: dict[str, list[pa.Table]] = {}
    _read_ring(directory, pieces, found)
    listed = _segments(directory, found)
    for number, path in listed.items():
        _read_segment(path, pieces, found, last=number == max(listed))
    found.manifest = _read_manifest(directory, found)
    for record in RECORD_TYPES.values():
        if record.name in pieces:
            found.tables[record.name] = _each_once(pieces[record.name], record)
    _note_gaps(found)
    return found


def _segments(directory: Path, found: RankRecords) -> dict[int, Path]:
    try:
        return segment_paths(directory)
    except OSError as error:
        found.note(f"the directory cannot be listed: {error.strerror}")
        return {}


def _read_segment(
    path: Path, pieces: dict[str, list[pa.Table]], found: RankRecords, *, last: bool
) -> None:
    try:
        contents = read_segment(path)
    except FileNotFoundError:
        # A live writer dropped its oldest segment; the gap in the sequence is noted.
        return
    except OSError as error:
        found.note(f"{path.name} cannot be read: {error.strerror}")
        return
    for problem in contents.problems:
        found.note(f"{path.name}: {problem}")
    if not contents.closed and not contents.problems and not last:
        found.note(f"{path.name}: the end mark is missing, blocks may be lost")
    for payload in contents.payloads:
        try:
            for record, table in decode_records(payload):
                pieces.setdefault(record.name, []).append(table)
        except (ValueError, OSError, pa.ArrowException) as error:
            found.note(f"{path.name}: the rest of a block is skipped: {error}")


def _read_ring(directory: Path, pieces: dict[str, list[pa.Table]], found: RankRecords) -> None:
    path = directory / RING_NAME
    try:
        ring = read_ring(path)
    except FormatVersionError:
        raise
    except SegmentError as error:
        found.note(f"{RING_NAME} {error.what}")
        return
    except OSError as error:
        found.note(f"{RING_NAME} cannot be read: {error.strerror}")
        return
    _note_ring(ring, found)
    for record in RECORD_TYPES.values():
        if record.name in ring.records:
            batch = records_to_batch(record, ring.records[record.name])
            pieces.setdefault(record.name, []).append(pa.Table.from_batches([batch]))


def _note_ring(ring: RingContents, found: RankRecords) -> None:
    if ring.header.rank != found.rank:
        found.note(f"{RING_NAME} is of rank {ring.header.rank}")
    if ring.damaged:
        slots = ", ".join(str(slot) for slot in ring.damaged[:_LISTED])
        more = "" if len(ring.damaged) <= _LISTED else f" and {len(ring.damaged) - _LISTED} more"
        found.note(f"{RING_NAME}: records damaged (checksum) in slot {slots}{more}")
    if ring.uncommitted:
        found.note(f"{RING_NAME}: {ring.uncommitted} records were never finished")
    if ring.missing_slots:
        found.note(f"{RING_NAME} is cut short: {ring.missing_slots} slots are missing")


def _read_manifest(directory: Path, found: RankRecords) -> dict[str, Any] | None:
    path = directory / MANIFEST_NAME
    try:
        manifest = read_json(path)
    except RunDirectoryError as error:
        found.note(f"{MANIFEST_NAME} {error.what}; group and dtype names are unknown")
        return None
    check_format_version(manifest.get("format_version"), str(path))
    if manifest.get("closed_unix_ns") is None:
        found.note("no close mark: the process was killed or is still running")
    counters = manifest.get("counters")
    for name, amount in sorted(counters.items() if isinstance(counters, dict) else ()):
        if name.endswith(_REPORTED_COUNTERS) and amount:
            found.note(f"the probe counted {name} = {amount}")
    return manifest


def _each_once(pieces: list[pa.Table], record: RecordType) -> pa.Table:
    """Return records in slot order, without those seen in both ring and segment."""
    table = pa.concat_tables(pieces).combine_chunks()
    _, rows = np.unique(table.column("slot_seq").to_numpy(), return_index=True)
    return table.take(pa.array(rows)).replace_schema_metadata(record.arrow_schema().metadata)


def _note_gaps(found: RankRecords) -> None:
    """State how many records are gone: sequence numbers are given without gaps."""
    if not found.tables:
        return
    newest = max(int(t.column("slot_seq")[-1].as_py()) for t in found.tables.values())
    missing = newest + 1 - sum(table.num_rows for table in found.tables.values())
    if missing > 0:
        found.note(f"{missing} of {newest + 1} records are missing")
