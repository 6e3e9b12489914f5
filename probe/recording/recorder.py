"""The recorder: what hooks call to store an event. This is the hot path.

Every call packs one record and stores it in the ring (``probe.ring``) in well
under a microsecond; a background thread moves records to disk. Calls may come
from any thread at once, from signal handlers and from garbage collection
callbacks: a record owns its slot from an atomic counter, so no lock is taken.
Nothing is ever raised: what cannot be recorded is counted in the manifest.

In a forked child (a DataLoader worker) a recorder records nothing, so that
the parent's ring stays the parent's. Recorders are for the process that made
them; a child that trains makes its own.
"""

from __future__ import annotations

import atexit
import errno
import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from ..clock import now_ns
from ..safety.threads import start_deaf
from ..schema.records import (
    COLLECTIVE_CODES,
    COLLECTIVE_RECORD,
    COMPLETION_RECORD,
    DEVICE_TIME_RECORD,
    DIRECTION_CODES,
    MEMORY_PHASE_CODES,
    MEMORY_RECORD,
    MEMORY_VALUES,
    MICROBATCH_RECORD,
    NO_WORD,
    P2P_RECORD,
    SPAN_CODES,
    SPAN_RECORD,
    STEP_RECORD,
    UNKNOWN,
    RecordType,
)
from ..schema.ring import slot_format
from ..schema.terms import Axis
from ..settings.config import MOST_CLOSE_S, MOST_FLUSH_S
from .pair_notes import PairNotes
from .parts import new_part
from .rank_manifest import RankManifest
from .record_heads import NOT_CARRIED, STEP_HEADS, memory_head
from .ring import RingWriter
from .ring_copy import slow_file_system_of
from .writer import SegmentWriter, StorageSettings

__all__ = [
    "COLLECTIVE_CODES",
    "DIRECTION_CODES",
    "MEMORY_PHASE_CODES",
    "SPAN_CODES",
    "Recorder",
    "StorageSettings",
]

# Out of range or not an integer; or the ring was detached in the middle.
_UNRECORDABLE = (struct.error, TypeError, ValueError, IndexError)


_ATTEMPTS = 100
"""Each is lost to another process that began at the same moment."""


def _claimed_part(
    run_path: Path, rank: int, settings: StorageSettings
) -> tuple[Path, RingWriter, int]:
    """Return the directory of a new part, its ring, and how many parts made room for it.

    A process that began at the same moment may have made the ring of this one: then it is the turn of the next.

    Raises:
        OSError: They cannot be created.
    """
    deleted = 0
    for _ in range(_ATTEMPTS):
        directory, dropped = new_part(run_path, rank, settings.max_bytes)
        deleted += dropped
        is_mapped = slow_file_system_of(directory) is None
        with suppress(FileExistsError):
            ring = RingWriter(
                directory, rank=rank, slot_count=settings.slot_count, is_mapped=is_mapped
            )
            return directory, ring, deleted
    raise FileExistsError(
        errno.EEXIST, "other processes keep taking this rank's place", str(run_path)
    )


def _storer(record: RecordType) -> Any:
    return struct.Struct(slot_format(record)).pack_into


_store_step = _storer(STEP_RECORD)
_store_span = _storer(SPAN_RECORD)
_store_collective = _storer(COLLECTIVE_RECORD)
_store_p2p = _storer(P2P_RECORD)
_store_completion = _storer(COMPLETION_RECORD)
_store_memory = _storer(MEMORY_RECORD)
_store_device_time = _storer(DEVICE_TIME_RECORD)
_store_microbatch = _storer(MICROBATCH_RECORD)
_COMPLETION = COMPLETION_RECORD.pack_head()
_DEVICE_TIME = DEVICE_TIME_RECORD.pack_head()
_MICROBATCH = MICROBATCH_RECORD.pack_head()


class Recorder:
    """Stores the events of one rank under a run directory.

    Kinds, phases and directions are positions in their enums (``SPAN_CODES``
    and its siblings). The hot methods take positional arguments, more than the
    house style allows: keywords make a call a tenth dearer.

    Attributes:
        rank: Global rank.
        step: Current optimizer step, set by the hooks; -1 before the first.
        directory: That of this part of the capture; None where nothing is recorded.
        pairs: Notes what all-to-alls carry between pairs of ranks.
    """

    rank: int
    step: int
    directory: Path | None
    pairs: PairNotes

    def __init__(
        self,
        run_path: Path,
        rank: int,
        *,
        device_uuid: str | None = None,
        settings: StorageSettings | None = None,
        place: Mapping[str, int | None] | None = None,
    ) -> None:
        """Create the directory of a new part, its ring and manifest; start the writer.

        Raises:
            OSError: They cannot be created.
            RuntimeError: The system has no thread to give.
        """
        settings = settings or StorageSettings()
        directory, self._ring, deleted = _claimed_part(run_path, rank, settings)
        slow = slow_file_system_of(directory)
        self.rank = rank
        self.step = -1
        self.directory = directory
        self.pairs = PairNotes(None if slow else directory)
        self._slots = self._ring.slots
        self._places = self._ring.places
        self._manifest = RankManifest(
            directory, rank, device_uuid, slow_file_system=slow, place=place
        )
        self._writer = SegmentWriter(directory, self._ring, self._manifest, settings)
        if deleted:
            self._manifest.count("parts_dropped", deleted)
        start_deaf(self._writer)
        self._open = True
        _OPEN.add(self)
        atexit.register(self.close)

    def register_group(
        self, group_id: str, ranks: Sequence[int], description: str, axis: Axis | None = None
    ) -> int:
        """Return the index of a process group for issue calls; the same for the same id.

        The group is on disk when this returns; call it once per group, not per event.
        """
        return self._manifest.add_group(group_id, ranks, description, axis) if self._open else -1

    def register_dtype(self, name: str) -> int:
        """Return the index of an element type for issue calls; the same for the same name."""
        return self._manifest.add_dtype(name) if self._open else -1

    def record_step(
        self, step: int, start_ns: int, dur_ns: int, tokens: int = UNKNOWN, level: int = NO_WORD
    ) -> None:
        """Store an optimizer step: from the end of the previous one to its own end.

        Args:
            step: Its number.
            start_ns: Monotonic time of the end of the previous step.
            dur_ns: How long it took.
            tokens: Tokens that this replica trained on, -1 if unknown.
            level: Position in CaptureLevel of what was recorded in it.
        """
        seq, place = next(self._places)
        try:
            head = STEP_HEADS[level]
            _store_step(self._slots, place, seq, head, step, start_ns, dur_ns, tokens, seq)
        except _UNRECORDABLE:
            self.count("record_errors")

    def record_span(
        self, head: bytes, start_ns: int, dur_ns: int, cpu_ns: int, microbatch: int = -1
    ) -> int:
        """Store a compute or host interval; return its event id, -1 if not stored.

        Args:
            head: What it is, and where (``heads.span_head``).
            start_ns: Monotonic time of its begin.
            dur_ns: How long it took.
            cpu_ns: CPU time of its thread, -1 if unknown.
            microbatch: Which one it computed, -1 if none.
        """
        seq, place = next(self._places)
        try:
            _store_span(
                self._slots, place, seq, head, self.step, start_ns, dur_ns, cpu_ns, microbatch, seq
            )
        except _UNRECORDABLE:
            self.count("record_errors")
            return -1
        return seq

    def record_device_time(self, event_id: int, start_ns: int, dur_ns: int) -> None:
        """Store when the device ran what a span or operation launched; start -1 is unknown."""
        seq, place = next(self._places)
        try:
            _store_device_time(
                self._slots, place, seq, _DEVICE_TIME, event_id, start_ns, dur_ns, seq
            )
        except _UNRECORDABLE:
            self.count("record_errors")

    def record_microbatch(self, microbatch: int, tokens: int, sum_sq: int) -> None:
        """Store the sequences of a microbatch of the current step.

        Args:
            microbatch: Which one.
            tokens: Lengths of its sequences, added up.
            sum_sq: Squares of these lengths, added up.
        """
        seq, place = next(self._places)
        try:
            _store_microbatch(
                self._slots, place, seq, _MICROBATCH, self.step, tokens, sum_sq, microbatch, seq
            )
        except _UNRECORDABLE:
            self.count("record_errors")

    def issue_collective(self, head: bytes, seq: int, size_bytes: int, issue_ns: int) -> int:
        """Store that a collective was asked for; return its event id, -1 if not stored.

        Args:
            head: Group, kind and element type (``heads.collective_head``).
            seq: Position among the collectives of the group.
            size_bytes: Message size: output for all-gather, input otherwise.
            issue_ns: Monotonic time of the call.
        """
        slot_seq, place = next(self._places)
        try:
            _store_collective(
                self._slots, place, slot_seq, head, self.step, seq, size_bytes, issue_ns, slot_seq
            )
        except _UNRECORDABLE:
            self.count("record_errors")
            return -1
        return slot_seq

    def issue_p2p(
        self, head: bytes, seq: int, size_bytes: int, issue_ns: int, carried: int = NOT_CARRIED
    ) -> int:
        """Store that a send or receive was asked for; return its event id, -1 if not stored.

        Args:
            head: Group, direction, peer and element type (``heads.p2p_head``).
            seq: Position among the sends (or receives) with that peer in the group.
            size_bytes: Message size.
            issue_ns: Monotonic time of the call.
            carried: Its microbatch and chunk (``heads.carried``).
        """
        slot_seq, place = next(self._places)
        try:
            _store_p2p(
                self._slots, place, slot_seq, head, self.step, seq, size_bytes, issue_ns,
                carried, slot_seq,
            )  # fmt: skip
        except _UNRECORDABLE:
            self.count("record_errors")
            return -1
        return slot_seq

    def complete(self, event_id: int, end_ns: int, wait_start_ns: int, wait_end_ns: int) -> None:
        """Store the end of an issued operation; times of 0 or -1 are unknown.

        It may be called again for the same event: each known time replaces the
        one that was given before.
        """
        if event_id == -1:
            return
        seq, place = next(self._places)
        try:
            _store_completion(
                self._slots, place, seq, _COMPLETION, event_id, end_ns, wait_start_ns, wait_end_ns,
                seq,
            )  # fmt: skip
        except _UNRECORDABLE:
            self.count("record_errors")

    def record_memory(self, phase: int, stage: int = -1, **values: int | None) -> None:
        """Store the allocator state now, at a phase border (position in MemoryPhase).

        Args:
            phase: Position in MemoryPhase.
            stage: Pipeline stage, -1 if none.
            **values: Byte columns of the ``memory`` table; None or left out is unknown.
        """
        seq, place = next(self._places)
        given = (values.pop(name, None) for name in MEMORY_VALUES)
        columns = [UNKNOWN if value is None else value for value in given]
        if values:
            self.count("record_errors")
        try:
            head = memory_head(phase, stage)
            _store_memory(self._slots, place, seq, head, self.step, now_ns(), *columns, seq)
        except _UNRECORDABLE:
            self.count("record_errors")

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter in the manifest.

        A counter whose name ends in ``_dropped``, ``_errors`` or ``_unseen`` is
        stated as a limit when the capture is read.
        """
        if self._open:
            self._manifest.count(name, amount)

    def annotate(self, key: str, value: Any) -> None:
        """Set a fact about the rank in the manifest; it must have a JSON form."""
        if self._open:
            self._manifest.annotate(key, value)

    def flush(self) -> None:
        """Write what was recorded so far into segments now. Not for the hot path."""
        if self._open:
            self._writer.flush()

    def keep_ring(self) -> None:
        """Write all that the ring holds in full, also of steps kept as sums; see ``flush``."""
        if self._open:
            self._writer.keep_ring(MOST_FLUSH_S)

    def wake(self) -> None:
        """Have the writer look at the ring now, and do what else it does then."""
        if self._open:
            self._writer.wake()

    def give_sign_of_life(self, time_ns: int) -> None:
        """Note that the process runs, readable after it was killed; any thread."""
        self._ring.give_sign_of_life(time_ns)

    def publish(self, *, soon: bool = False) -> None:
        """Have the manifest written, so that what was just annotated survives a kill; soon costs the caller nothing."""
        if self._open:
            self._manifest.publish(soon=soon)

    def close(self) -> None:
        """Write the rest, mark the capture as complete, record nothing from now on."""
        if not self._open:
            return
        self._open = False
        _OPEN.discard(self)
        atexit.unregister(self.close)
        if self._writer.finish(MOST_CLOSE_S):
            self._leave_ring()

    def _disarm(self) -> None:
        """Let go of everything that belongs to the parent of a forked process."""
        self._open = False
        self._leave_ring()

    def _leave_ring(self) -> None:
        """Store what is still recorded into memory that nobody reads (see ``RingWriter.detach``)."""
        self._ring.detach()
        self.pairs.leave()
        self._slots = self._ring.slots
        self._places = self._ring.places


_OPEN: WeakSet[Recorder] = WeakSet()


def _disarm_all() -> None:
    for recorder in list(_OPEN):
        recorder._disarm()
    _OPEN.clear()


os.register_at_fork(after_in_child=_disarm_all)
