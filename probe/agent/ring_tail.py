"""Follows the ring of a rank from outside: reads what is new, writes and maps nothing.

A file that is read cannot kill its reader when it is cut short, a mapped one can; and
what the writer is doing meanwhile is distinguished by the numbers at both ends of a slot.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..schema.errors import SegmentError
from ..schema.message import message
from ..schema.reading import open_file
from ..schema.ring import (
    FIRST_SEQ,
    HEADER_BYTES,
    SLOT_BYTES,
    RingHeader,
    committed,
    slot_dtype,
    split_records,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CHUNK_SLOTS = 512
_MOST_CHUNKS = 16
"""Read at most in one go; a rank that records faster is followed with gaps."""
_BACKLOG_SLOTS = 4096
"""How far back the first look goes."""


class RingTail:
    """The place up to which one ring has been read.

    Attributes:
        skipped: Records that were overwritten or passed over before they could be read.
        last_seq: Newest record that was seen, 0 for none.
    """

    def __init__(self, path: Path) -> None:
        """Open a ring.

        Raises:
            SegmentError: It is no ring, or damaged.
            FormatVersionError: It is of another format version.
            OSError: It cannot be read.
        """
        self._file = open_file(path)
        try:
            self._header = RingHeader.unpack(self._file.read(HEADER_BYTES), str(path))
            count = self._header.slot_count
            if count < 1 or count & (count - 1) or self._header.slot_bytes != SLOT_BYTES:
                raise SegmentError(message("refused.damaged_ring"), where=str(path))
        except BaseException:
            self._file.close()
            raise
        self.skipped = 0
        self.last_seq = FIRST_SEQ - 1
        self._next = max(self._newest() + 1 - _BACKLOG_SLOTS, FIRST_SEQ)
        self._waited_for = -1

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def new_records(self, wanted: frozenset[str]) -> dict[str, list[NDArray[np.void]]]:
        """Return the intact records since the last call, by record name, in their order.

        Args:
            wanted: Names of the records that are returned.

        Raises:
            OSError: The ring cannot be read.
        """
        found: dict[str, list[NDArray[np.void]]] = {}
        for _ in range(_MOST_CHUNKS):
            slots = self._committed()
            if not len(slots):
                return found
            for name, rows in split_records(slots).items():
                if name in wanted:
                    found.setdefault(name, []).append(rows)
            self._next += len(slots)
            self.last_seq = self._next - 1
        newest = self._newest()
        if newest - self._next > _BACKLOG_SLOTS:
            self._skip_to(newest + 1 - _BACKLOG_SLOTS)
        return found

    def _committed(self) -> NDArray[np.void]:
        """Return the slots from the next on that are committed, without a gap."""
        import numpy as np

        while True:
            first = self._next & (self._header.slot_count - 1)
            slots, again = self._slots(first), self._slots(first)
            slots = slots[: len(again)]
            # Twice, as another processor's stores may become visible in any order, for a moment.
            same = slots["slot"] == again["slot"][: len(slots)]
            seqs = np.where(same & committed(slots), slots["commit"], 0)
            good = seqs == np.arange(self._next, self._next + len(slots))
            held = len(slots) if good.all() else int(good.argmin())
            if held or not len(slots):
                return slots[:held]
            if seqs[0] > self._next:
                self._skip_to(max(self._newest() + 1 - _BACKLOG_SLOTS, int(seqs[0])))
            elif good.any() and self._waited_for == self._next:
                # Its writer was given up in the middle of it: others have gone on since.
                self._skip_to(self._next + 1)
            else:
                self._waited_for = self._next
                return slots[:0]

    def _skip_to(self, seq: int) -> None:
        self.skipped += seq - self._next
        self._next = seq

    def _slots(self, first: int) -> NDArray[np.void]:
        import numpy as np

        count = min(_CHUNK_SLOTS, self._header.slot_count - first)
        offset = HEADER_BYTES + first * SLOT_BYTES
        raw = os.pread(self._file.fileno(), count * SLOT_BYTES, offset)
        return np.frombuffer(raw, dtype=slot_dtype(), count=len(raw) // SLOT_BYTES)

    def _newest(self) -> int:
        """Return the newest committed record, 0 if there is none; reads the whole ring."""
        import numpy as np

        raw = os.pread(self._file.fileno(), self._header.slot_count * SLOT_BYTES, HEADER_BYTES)
        slots = np.frombuffer(raw, dtype=slot_dtype(), count=len(raw) // SLOT_BYTES)
        seqs = slots["commit"]
        placed = seqs % self._header.slot_count == np.arange(len(slots))
        return int(seqs[placed & committed(slots)].max(initial=FIRST_SEQ - 1))
