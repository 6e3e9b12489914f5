"""The ring of a rank in its own process: where every record goes first, and is taken from in order.

Sequence number and slot come together from iterators written in C, whose step is
atomic under the interpreter lock (``probe.compat.interpreter``), so each record owns its slot
and no lock of ours is needed: a record made by a garbage collection callback or a signal
in the middle of another one takes the next slot, where a lock would deadlock.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..schema.manifest import create_file
from ..schema.ring import (
    FIRST_SEQ,
    HEADER_BYTES,
    RING_NAME,
    SIGN_OF_LIFE,
    SIGN_OF_LIFE_OFFSET,
    SLOT_BYTES,
    committed,
    new_header,
    slot_dtype,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_MAP_FIXED = 0x10
_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_mmap.restype = ctypes.c_void_p


class RingWriter:
    """A mapping that records are stored into: of its file, or private with a file beside it.

    Whoever records takes the next of ``places`` and packs the record there, its number
    at both ends (``schema.slots``). That is written out where it happens: a function for
    it would cost a quarter more.

    Attributes:
        image: What belongs into the file.
        is_mapped: Whether a store goes there by itself.
        slots: The mapped slots, for readers in this process.
        slot_count: Slots, a power of two.
        places: Gives the sequence number of the next record and where its slot starts.
    """

    def __init__(
        self, directory: Path, *, rank: int, slot_count: int, is_mapped: bool = True
    ) -> None:
        """Create the ring file in a rank directory and map it.

        Its blocks are reserved on disk: storing into a mapped hole of a full
        file system would kill the process with SIGBUS.

        Args:
            directory: Where the file goes.
            rank: Global rank.
            slot_count: Slots, a power of two.
            is_mapped: Store into the file itself; else into memory that a ``RingCopy``
                brings to the file.

        Raises:
            OSError: It exists, or there is no room for it.
        """
        size_bytes = HEADER_BYTES + slot_count * SLOT_BYTES
        descriptor = create_file(directory / RING_NAME, writable=os.O_RDWR)
        header = new_header(rank, os.getpid(), slot_count).pack()
        try:
            if is_mapped:
                os.posix_fallocate(descriptor, 0, size_bytes)
            else:
                os.ftruncate(descriptor, size_bytes)
                os.pwrite(descriptor, header, 0)
            mapping = mmap.mmap(-1, size_bytes)
            if is_mapped:
                map_file_over(mapping, descriptor)
        except OSError:
            (directory / RING_NAME).unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        mapping[: len(header)] = header
        self.slot_count = slot_count
        self.is_mapped = is_mapped
        self.image = memoryview(mapping)
        self.slots = memoryview(mapping)[HEADER_BYTES:]
        self._header = memoryview(mapping)[:HEADER_BYTES]
        self.places = zip(itertools.count(FIRST_SEQ), _starts(slot_count), strict=False)

    def give_sign_of_life(self, time_ns: int) -> None:
        """Note in the header that the process runs, readable after it was killed."""
        SIGN_OF_LIFE.pack_into(self._header, SIGN_OF_LIFE_OFFSET, time_ns)

    def detach(self) -> None:
        """Store all further records into a private scratch slot; let go of the file.

        Hooks may keep calling through references that they took before, so the
        ring must stay usable after it was closed and in forked children. The
        mapping goes with the last view of it.
        """
        # In this order: a record that another thread is storing meanwhile fails
        # to fit the scratch slot, but never lands in a wrong slot of the file.
        self.slots = memoryview(bytearray(SLOT_BYTES))
        self.places = zip(itertools.count(FIRST_SEQ), itertools.repeat(0), strict=False)
        self._header = memoryview(bytearray(HEADER_BYTES))
        self.image = memoryview(b"")


def map_file_over(mapping: mmap.mmap, descriptor: int) -> None:
    """Put a file in the place of anonymous memory.

    ``mmap`` would keep a descriptor of its own, which nothing tells from one of the program's
    after that has closed whatever was open.

    Raises:
        OSError: The system refuses.
    """
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    flags = mmap.MAP_SHARED | _MAP_FIXED
    if _mmap(address, len(mapping), protection, flags, descriptor, 0) != address:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _starts(slot_count: int) -> Iterator[int]:
    """Return where the slots of the records start, lap after lap, that of number 1 first."""
    first_lap = range(FIRST_SEQ * SLOT_BYTES, slot_count * SLOT_BYTES, SLOT_BYTES)
    lap = range(0, slot_count * SLOT_BYTES, SLOT_BYTES)
    # One chain, not two in each other, because every record goes through it. Of iterators, because
    # to make one may collect garbage, and a callback of that may record in the midst of this.
    laps = itertools.chain(iter((first_lap,)), itertools.repeat(lap))
    return itertools.chain.from_iterable(laps)


_BATCH_SLOTS = 2048
"""Slots copied at once: 256 KB."""


class RingDrain:
    """Follows the sequence numbers of a ring while other threads write it.

    A slot is taken if it shows the expected commit word before it was copied, and
    the expected front after. Any other slot is one of three: not written yet (stop there),
    overwritten because the drain is a whole lap behind (count, skip ahead), or
    never finished because an exception hit its writer (count, step over it once
    it was found unfinished twice with finished ones behind it).
    """

    def __init__(self, ring: RingWriter) -> None:
        """Start before the first record."""
        self._slots_source = ring.slots
        self._slot_count = ring.slot_count
        self._slots: NDArray[np.void] | None = None
        self._next = FIRST_SEQ
        self._unfinished = -1
        self._losses: Counter[str] = Counter()

    def has(self, count: int) -> bool:
        """Tell whether at least this many records wait."""
        seq = self._next + count - 1
        return bool(self._view()["commit"][seq % self._slot_count] >= seq)

    def collect(self, *, final: bool) -> NDArray[np.void] | None:
        """Return a copy of the next committed slots, or None if there are none.

        Args:
            final: Step over unfinished records at once.
        """
        import numpy as np

        slots = self._view()
        while True:
            expected = np.arange(self._next, self._next + min(_BATCH_SLOTS, self._slot_count))
            places = expected % self._slot_count
            whole = slots["commit"][places] == expected
            copied = slots[places]
            # Who overwrites a slot changes its front first.
            taken = whole & (slots["slot_seq"][places] == expected)
            run = len(taken) if taken.all() else int(np.argmin(taken))
            self._next += run
            if run:
                return copied[:run]
            later = bool(taken.any())
            if not self._skip(later=later, final=final):
                return None

    def held(self) -> Iterator[NDArray[np.void]]:
        """Yield copies of all committed slots that the ring holds, drained or not."""
        slots = self._view()
        for first in range(0, self._slot_count, _BATCH_SLOTS):
            window = slots[first : first + _BATCH_SLOTS]
            commit = window["commit"].copy()
            copied = window.copy()
            untouched = (commit == copied["commit"]) & (commit == window["slot_seq"])
            yield copied[committed(copied) & untouched]

    def take_losses(self) -> dict[str, int]:
        """Return the records lost since the last call, by counter name."""
        losses, self._losses = dict(self._losses), Counter()
        return losses

    def release(self) -> None:
        """Let go of the ring; nothing can be collected any more."""
        self._slots = None
        self._slots_source = memoryview(b"")

    def _skip(self, *, later: bool, final: bool) -> bool:
        """Step over what cannot be taken; return False where the drain must wait."""
        slots = self._view()
        place = self._next % self._slot_count
        seen = max(int(slots["commit"][place]), int(slots["slot_seq"][place]))
        if seen > self._next:
            newest = int(slots["commit"].max())
            # Leave the writers room to go on while the rest is copied.
            ahead = newest - self._slot_count + self._slot_count // 8
            ahead = max(ahead, self._next + 1)
            self._losses["ring_overwritten_dropped"] += ahead - self._next
            self._next = ahead
            return True
        if not later:
            return False
        if final or self._unfinished == self._next:
            self._losses["unfinished_dropped"] += 1
            self._next += 1
            return True
        self._unfinished = self._next
        return False

    def _view(self) -> NDArray[np.void]:
        if self._slots is None:
            import numpy as np

            self._slots = np.frombuffer(self._slots_source, dtype=slot_dtype())
        return self._slots
