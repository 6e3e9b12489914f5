"""The writing half of the ring: where every record goes first.

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
from collections.abc import Iterator
from pathlib import Path

from ..schema.manifest import create_file
from ..schema.ring import HEADER_BYTES, RING_NAME, SIGN_OF_LIFE, SIGN_OF_LIFE_OFFSET, new_header
from ..schema.slots import FIRST_SEQ, SLOT_BYTES

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
