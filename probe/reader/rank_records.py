"""Reads one rank's directory: manifest, segments and ring, as far as they are good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..schema.clock_steps import clock_steps
from ..schema.errors import FormatVersionError, RunDirectoryError, SegmentError
from ..schema.manifest import ENDED_NAME, MANIFEST_NAME, check_format_version, read_json
from ..schema.note import Note
from ..schema.printable import printable
from ..schema.record_payloads import decode_records, records_to_batch
from ..schema.records import (
    COMMUNICATION_SUM_RECORD,
    DRAINED_RECORD,
    RECORD_TYPES,
    RecordType,
)
from ..schema.ring import RING_COPIED, RING_NAME, RingContents, read_ring
from ..schema.segment import read_segment, segment_paths
from .fatal_stack import add_fatal_stack
from .numbers_present import NumbersPresent, SortedNumbers, numbers_present
from .sources import reason_of, source_of
from .step_detail import add_detail

ATTEMPT = "attempt"
"""Value of a note of a rank: the attempt of the job, where there are several."""
_OPERATIONS = ("collective", "p2p")


class LastSeen(NamedTuple):
    """Until when the process of a rank is known to have been there, on its own clock."""

    alive_ns: int | None = None
    """When it last gave a sign of life; None if it never did."""
    ended_ns: int | None = None
    """When it ended; None where nobody saw it."""
    wait_status: int | None = None
    """How it ended, as ``wait`` tells the parent of a process; None where nobody saw it."""


@dataclass(frozen=True, slots=True)
class Made:
    """What the probe of a rank made and counted, whatever is read of it."""

    counters: Mapping[str, int] = field(default_factory=dict)
    """The counters that are not zero."""
    records: int = 0
    operations: int = 0
    """Of communication, those in sums with the others."""

    def __add__(self, other: Made) -> Made:
        """Return what two parts made together."""
        counters = Counter(self.counters)
        counters.update(other.counters)
        return Made(
            dict(counters), self.records + other.records, self.operations + other.operations
        )


@dataclass(slots=True)
class RankRecords:
    """What one rank recorded."""

    rank: int
    manifest: dict[str, Any] | None = None
    """None if it is missing or damaged."""
    tables: dict[str, pa.Table] = field(default_factory=dict)
    """Records by record name, each once, in the order in which they were made."""
    limits: list[Note] = field(default_factory=list)
    """Without ``who``, which is the same for all that say the same."""
    last_seen: LastSeen = field(default_factory=LastSeen)
    """Until when its process is known to have been there."""
    made: Made = field(default_factory=Made)

    def note(self, code: str, **values: Any) -> None:
        """Add a limit of this rank; its sentence names ``who`` beside the values."""
        self.limits.append(Note(code, values))

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing at all could be read."""
        return self.manifest is None and not self.tables


class Block(NamedTuple):
    """A block of records: the file that it is in, and its place there."""

    file: str
    place: int


class Sieve(Protocol):
    """Decides as the blocks of a part are read which of their records are kept."""

    def wants(self, block: Block) -> bool:
        """Return whether a block is unpacked."""

    def sifted(
        self, block: Block, tables: Sequence[tuple[RecordType, pa.Table]]
    ) -> Iterator[tuple[RecordType, pa.Table]]:
        """Yield what is kept of a block."""

    def complete(self, found: RankRecords) -> None:
        """Add what is held of each step, which needs more than the records that were kept."""


def read_rank(directory: Path, rank: int, sieve: Sieve | None = None) -> RankRecords:
    """Read the directory of a rank, also of one that is still recording.

    Args:
        directory: That of the part.
        rank: Its rank.
        sieve: What is kept of each block; all if not given. Lost records are then not counted.

    Raises:
        FormatVersionError: A file in it was written by another format version.
    """
    found = RankRecords(rank)
    # In this order: what a live writer moves from the ring to a segment meanwhile
    # is then seen twice, not never, and the manifest knows every name in use.
    pieces: dict[str, list[pa.Table]] = {}
    ring = Block(RING_NAME, 0)
    in_ring = _read_ring(directory, found) if sieve is None or sieve.wants(ring) else []
    listed = _segments(directory, found)
    for number, path in listed.items():
        _read_segment(path, pieces, found, last=number == max(listed), sieve=sieve)
    # Last, so that of a record in both the one under a checksum is taken.
    _add(pieces, ring, in_ring, sieve)
    found.manifest = _read_manifest(directory, found)
    ended_ns, wait_status = _read_end(directory, found)
    found.last_seen = found.last_seen._replace(ended_ns=ended_ns, wait_status=wait_status)
    add_fatal_stack(directory, found.manifest, ended_ns or found.last_seen.alive_ns, wait_status)
    for record in RECORD_TYPES.values():
        if record.name in pieces:
            found.tables[record.name] = _each_once(pieces[record.name], record)
    if sieve is not None:
        sieve.complete(found)
        return found
    present = SortedNumbers(numbers_present(found.tables))
    found.made = made_of(found.manifest, operations_in(found.tables.items()), present)
    note_gaps(found, present, found.tables.get(DRAINED_RECORD.name))
    add_detail(found.tables, found.manifest, present)
    return found


def _add(
    pieces: dict[str, list[pa.Table]],
    block: Block,
    tables: Sequence[tuple[RecordType, pa.Table]],
    sieve: Sieve | None,
) -> None:
    """Add what is kept of a block to what was read."""
    for record, table in tables if sieve is None else sieve.sifted(block, tables):
        pieces.setdefault(record.name, []).append(table)


def _segments(directory: Path, found: RankRecords) -> dict[int, Path]:
    try:
        return segment_paths(directory)
    except OSError as error:
        found.note("missing.folder_unlisted", reason=error.strerror)
        return {}


def _read_segment(
    path: Path,
    pieces: dict[str, list[pa.Table]],
    found: RankRecords,
    *,
    last: bool,
    sieve: Sieve | None,
) -> None:
    try:
        contents = read_segment(path)
    except FileNotFoundError:
        # A live writer dropped its oldest segment; the gap in the sequence is noted.
        return
    except OSError as error:
        found.note("missing.file_unreadable", file=path.name, reason=error.strerror)
        return
    for problem in contents.problems:
        found.note("missing.file_damaged", file=path.name, damage=problem)
    if not contents.closed and not contents.problems and not last:
        found.note("missing.end_mark", file=path.name)
    for place, payload in enumerate(contents.payloads):
        block = Block(path.name, place)
        if sieve is not None and not sieve.wants(block):
            continue
        tables: list[tuple[RecordType, pa.Table]] = []
        try:
            tables.extend(decode_records(payload))
        except (ValueError, OSError, pa.ArrowException) as error:
            found.note("missing.rest_of_block", file=path.name, damage=str(error))
        _add(pieces, block, tables, sieve)


def _read_ring(directory: Path, found: RankRecords) -> list[tuple[RecordType, pa.Table]]:
    path = directory / RING_NAME
    try:
        ring = read_ring(path)
    except FormatVersionError:
        raise
    except SegmentError as error:
        found.note("missing.ring_unusable", damage=error.what)
        return []
    except OSError as error:
        found.note("missing.file_unreadable", file=RING_NAME, reason=error.strerror)
        return []
    _note_ring(ring, found)
    found.last_seen = LastSeen(ring.alive_ns)
    return [
        (record, pa.Table.from_batches([records_to_batch(record, ring.records[record.name])]))
        for record in RECORD_TYPES.values()
        if record.name in ring.records
    ]


def _note_ring(ring: RingContents, found: RankRecords) -> None:
    if ring.header.rank != found.rank:
        found.note("doubt.ring_of_other_rank", other=ring.header.rank)
    if ring.damaged:
        found.note("missing.ring_damaged", damaged=len(ring.damaged))
    if ring.uncommitted:
        found.note("missing.ring_unfinished", unfinished=ring.uncommitted)
    if ring.missing_slots:
        found.note("missing.ring_cut_short", slots=ring.missing_slots)


def _read_manifest(directory: Path, found: RankRecords) -> dict[str, Any] | None:
    path = directory / MANIFEST_NAME
    try:
        manifest = read_json(path)
    except RunDirectoryError as error:
        found.note("unknown.names_of_rank", damage=error.what)
        return None
    check_format_version(manifest.get("format_version"), str(path))
    if manifest.get("closed_unix_ns") is None:
        found.note("missing.close_mark")
        _note_copied_ring(manifest, found)
    for step_ns in clock_steps(manifest.get("clock_pairs")):
        found.note("scope.wall_clock_set", step_ns=step_ns)
    _note_sources(manifest, found)
    return manifest


def _note_sources(manifest: Mapping[str, Any], found: RankRecords) -> None:
    """State which sources of the probe did not work, and why: the last word of an annotation says how."""
    annotations = manifest.get("annotations")
    for key, said in sorted(annotations.items() if isinstance(annotations, dict) else ()):
        name, _, word = str(key).rpartition(".")
        source, reason = source_of(name), reason_of(said)
        if not name:
            continue
        if word == "missing":
            found.note("missing.source", **source, reason=reason)
        elif word == "off":
            found.note("missing.source_off", **source, reason=reason)
        elif word == "partly":
            found.note("missing.source_in_part", **source, reason=reason)
        elif word == "patched_over":
            found.note("counted.hooks_left", name=source["name"], reason=reason)


def _note_copied_ring(manifest: Mapping[str, Any], found: RankRecords) -> None:
    """State that the last records before a kill are not there to be found missing."""
    annotations = manifest.get("annotations")
    kind = annotations.get(RING_COPIED) if isinstance(annotations, dict) else None
    if isinstance(kind, str):
        found.note("missing.after_ring_copy", file_system=printable(kind))


def _read_end(directory: Path, found: RankRecords) -> tuple[int | None, int | None]:
    """Return when the process ended: as its launcher saw it, else as it closed its capture; and how."""
    path = directory / ENDED_NAME
    manifest = found.manifest or {}
    if path.exists():
        try:
            noted = read_json(path)
        except RunDirectoryError as error:
            found.note("unknown.end_of_process", damage=error.what)
            return None, None
        ended_ns, status = noted.get("ended_ns"), noted.get("wait_status")
        if type(ended_ns) is int and ended_ns > 0:
            is_status = type(status) is int and 0 <= status < 1 << 16
            return ended_ns, status if is_status else None
        found.note("unknown.end_of_process", damage="has no time")
    pairs = manifest.get("clock_pairs")
    if manifest.get("closed_unix_ns") is None or not isinstance(pairs, list) or not pairs:
        return None, None
    last = pairs[-1]
    is_pair = isinstance(last, list) and last and type(last[0]) is int
    return last[0] if is_pair else None, None


def _each_once(pieces: list[pa.Table], record: RecordType) -> pa.Table:
    """Return records in slot order, without those seen in both ring and segment."""
    table = pa.concat_tables(pieces).combine_chunks()
    _, rows = np.unique(table.column("slot_seq").to_numpy(), return_index=True)
    return table.take(pa.array(rows)).replace_schema_metadata(record.arrow_schema().metadata)


def note_gaps(found: RankRecords, present: NumbersPresent, drained: pa.Table | None) -> None:
    """State how many records are gone: sequence numbers are given from 1 without gaps.

    Args:
        found: The part.
        present: The numbers of all its records.
        drained: What the writer says that it kept out, if it does.
    """
    newest = present.last
    missing = newest - int(present.up_to(np.array([newest]))[0]) - _kept_out(drained, present)
    if missing > 0:
        found.note("missing.records", lost=missing, records=newest)


def _kept_out(drained: pa.Table | None, present: NumbersPresent) -> int:
    """Return how many of the absent records are in sums instead."""
    if drained is None:
        return 0
    first, end = (drained.column(name).to_numpy() for name in ("slot_seq", "end_seq"))
    absent = (end - first) - (present.up_to(end - 1) - present.up_to(first - 1))
    return int(np.minimum(absent, drained.column("kept_out").to_numpy()).sum())


def operations_in(tables: Iterable[tuple[str, pa.Table]]) -> int:
    """Return how many operations of communication some records are, those in sums included."""
    found = 0
    for name, table in tables:
        if name in _OPERATIONS:
            found += table.num_rows
        elif name == COMMUNICATION_SUM_RECORD.name:
            found += int(pc.sum(table["count"]).as_py() or 0)
    return found


def made_of(manifest: Mapping[str, Any] | None, operations: int, present: NumbersPresent) -> Made:
    """Return what the probe says that it made, before anything is left out for lack of memory.

    Args:
        manifest: That of the part.
        operations: Of communication, in all its records.
        present: The numbers of these.
    """
    counters = (manifest or {}).get("counters")
    counted = counters.items() if isinstance(counters, dict) else ()
    return Made(
        {str(name): amount for name, amount in counted if type(amount) is int and amount > 0},
        present.last,
        operations,
    )
