"""The ring file: the newest records of a rank, readable after SIGKILL.

The file is one header page and a power-of-two number of slots. The record with
slot sequence number *s* lies in slot *s* modulo the number of slots; what a slot
looks like is below. The first 32 bytes of the header have this
meaning in every format version. Byte 64 holds the time, in ns of the monotonic clock,
at which the process last gave a sign of life; 0 for none.

A slot holds one record, in a form that one call can store::

    byte 0     slot sequence number s         byte 24    the other fields, in their order
    byte 8     head: type and constants       byte 120   commit word, s again

A writer stores from the front to the end, the commit word last, so a slot whose writer
was killed shows two different numbers. Numbers start at 1: a slot of zeros is empty.

There is no checksum, as one would take as long as all the rest of recording. A bit
that flips later is noticed in either number, in the type and in a word outside
its vocabulary; in a value it is not. Segments have checksums, and what is in both is
taken from there.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import SegmentError
from .manifest import check_format_version
from .message import message
from .reading import open_file
from .records import HEAD_BYTES, MADE_BY_THE_WRITER, RECORD_TYPES, RecordType
from .tables import FORMAT_VERSION

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Slots = NDArray[np.void]
    Places = NDArray[np.int64]


SLOT_BYTES = 128
FIRST_SEQ = 1
_HEAD_OFFSET = 8
_TAIL_OFFSET = _HEAD_OFFSET + HEAD_BYTES
COMMIT_OFFSET = 120
_IS_LONG_THE_SAME = sys.byteorder == "little" and struct.calcsize("@l") == 8
"""Where a C long is the eight bytes of the format, it is packed from large numbers, such as
times, in a fifth less time than a long long is. All are aligned."""
_CODES = tuple(
    record.code for record in RECORD_TYPES.values() if record.name not in MADE_BY_THE_WRITER
)


def slot_format(record: RecordType) -> str:
    """Return the form of a slot for the struct module.

    It takes the sequence number, the head, the other fields, and the number again. Two
    neighbours of four bytes are packed as one number of eight (``heads.carried``).
    """
    tail = "".join(form for _, form in record.tail_fields)
    pad = COMMIT_OFFSET - _TAIL_OFFSET - struct.calcsize(f"<{tail}")
    form = f"Q{HEAD_BYTES}s{tail.replace('ii', 'q')}{pad}xQ"
    if _IS_LONG_THE_SAME:
        return "@" + form.replace("q", "l").replace("Q", "L")
    return "<" + form


@cache
def slot_dtype() -> np.dtype[np.void]:
    """Return the numpy form of a slot with any record."""
    import numpy as np

    return np.dtype(
        {
            # The last covers all bytes, so that copying a slot copies them.
            "names": ["slot_seq", "code", "commit", "slot"],
            "formats": ["<i8", "u1", "<i8", f"V{SLOT_BYTES}"],
            "offsets": [0, _HEAD_OFFSET, COMMIT_OFFSET, 0],
            "itemsize": SLOT_BYTES,
        }
    )


def committed(slots: NDArray[np.void]) -> NDArray[np.bool_]:
    """Tell which slots hold a record that its writer finished."""
    import numpy as np

    whole: NDArray[np.bool_] = slots["commit"] == slots["slot_seq"]
    whole &= slots["commit"] >= FIRST_SEQ
    whole &= np.isin(slots["code"], _CODES)
    return whole


def split_records(slots: NDArray[np.void]) -> dict[str, NDArray[np.void]]:
    """Return the records of committed slots by record name, in slot order."""
    import numpy as np

    found = {}
    for code in _CODES:
        rows = slots[slots["code"] == code]
        if len(rows):
            record = RECORD_TYPES[code]
            placed = rows.view(_placed_dtype(code))
            packed = np.empty(len(rows), record.numpy_dtype())
            for name in placed.dtype.names or ():
                packed[name] = placed[name]
            found[record.name] = packed
    return found


@cache
def _placed_dtype(code: int) -> np.dtype[np.void]:
    """Return the numpy form of a slot with a record of one type."""
    import numpy as np

    record = RECORD_TYPES[code]
    offsets = {"slot_seq": 0, "code": _HEAD_OFFSET}
    for at, fields in (
        (_HEAD_OFFSET + 1, record.head_fields),
        (_TAIL_OFFSET, record.tail_fields),
    ):
        for name, form in fields:
            offsets[name] = at
            at += struct.calcsize(f"<{form}")
    dtype = record.numpy_dtype()
    names = list(dtype.names or ())
    return np.dtype(
        {
            "names": names,
            "formats": [dtype[name] for name in names],
            "offsets": [offsets[name] for name in names],
            "itemsize": SLOT_BYTES,
        }
    )


RING_NAME = "ring.bin"
RING_COPIED = "ring_copied"
"""Annotation of a rank whose ring is copied to its file from time to time instead of being
mapped from there: the type of the file system that made this necessary."""
HEADER_BYTES = 4096
MAGIC = b"MSHRING\n"

SIGN_OF_LIFE = struct.Struct("<q")
SIGN_OF_LIFE_OFFSET = 64
_HEADER = struct.Struct("<8sIIIIII")
_READ_ATTEMPTS = 3
_WRITERS_AT_ONCE = 8
"""Records that threads of one process may have in the making at the same time."""


@dataclass(frozen=True, slots=True)
class RingHeader:
    """What the header page of a ring says."""

    version: int
    slot_bytes: int
    slot_count: int
    rank: int
    pid: int

    def pack(self) -> bytes:
        """Return the header page's used bytes, closed by their checksum."""
        fields = (self.version, self.slot_bytes, self.slot_count, self.rank, self.pid)
        unchecked = _HEADER.pack(MAGIC, *fields, 0)[:-4]
        return unchecked + zlib.crc32(unchecked).to_bytes(4, "little")

    @classmethod
    def unpack(cls, page: bytes, where: str) -> RingHeader:
        """Read a header page.

        Raises:
            SegmentError: It is no ring, or its header is damaged.
            FormatVersionError: It was written by another format version.
        """
        if page[: len(MAGIC)] != MAGIC or len(page) < _HEADER.size:
            raise SegmentError(message("refused.no_ring"), where=where)
        _, version, slot_bytes, slot_count, rank, pid, crc = _HEADER.unpack_from(page)
        if zlib.crc32(page[: _HEADER.size - 4]) != crc:
            raise SegmentError(message("refused.damaged_ring"), where=where)
        check_format_version(version, where)
        return cls(version, slot_bytes, slot_count, rank, pid)


@dataclass(frozen=True, slots=True)
class RingContents:
    """The records of a ring, and what could not be read of it."""

    header: RingHeader
    records: dict[str, NDArray[np.void]]
    """Structured arrays by record name."""
    damaged: tuple[int, ...]
    """Slots that show what no writer leaves behind."""
    uncommitted: int
    """Records that were being written when the file was read or its writer died."""
    missing_slots: int
    """Slots that the file is too short to hold."""
    alive_ns: int | None = None
    """When the process last gave a sign of life; None if it never did."""


def new_header(rank: int, pid: int, slot_count: int) -> RingHeader:
    """Return the header of a ring of this format version."""
    return RingHeader(FORMAT_VERSION, SLOT_BYTES, slot_count, rank, pid)


def read_ring(path: Path) -> RingContents:
    """Read every intact record of a ring, also while its owner writes on.

    Raises:
        SegmentError: It is no ring, or its header is damaged.
        FormatVersionError: It was written by another format version.
        OSError: It cannot be read.
    """
    import numpy as np

    with open_file(path) as file:
        page = file.read(HEADER_BYTES)
        header = RingHeader.unpack(page, str(path))
        held = max(os.fstat(file.fileno()).st_size - HEADER_BYTES, 0)
        raw = bytearray(file.read(min(header.slot_count * SLOT_BYTES, held)))
        slots = np.frombuffer(raw, dtype=slot_dtype(), count=len(raw) // SLOT_BYTES)
        good = _intact(slots, header)
        attempts = _READ_ATTEMPTS
        while attempts and _read_again(file.fileno(), slots, _doubtful(slots, good, header)):
            good = _intact(slots, header)
            attempts -= 1
    bad = np.flatnonzero(_used(slots) & ~good)
    torn = _torn(slots[bad], bad, header, newest=_newest(slots, good))
    if not attempts:
        # What the writer has overtaken is whole, and left for the next reading.
        good &= slots["slot_seq"] < _overtaken_from(slots, header)
    return RingContents(
        header,
        split_records(slots[good]),
        damaged=tuple(bad[~torn].tolist()),
        uncommitted=int(torn.sum()),
        missing_slots=header.slot_count - len(slots),
        alive_ns=_sign_of_life(page),
    )


def _sign_of_life(page: bytes) -> int | None:
    """Return the time in a header page; None where there is none, or nonsense."""
    if len(page) < SIGN_OF_LIFE_OFFSET + SIGN_OF_LIFE.size:
        return None
    (found,) = SIGN_OF_LIFE.unpack_from(page, SIGN_OF_LIFE_OFFSET)
    return int(found) if found > 0 else None


def _used(slots: Slots) -> NDArray[np.bool_]:
    used: NDArray[np.bool_] = (slots["commit"] != 0) | (slots["code"] != 0)
    return used


def _newest(slots: Slots, good: NDArray[np.bool_]) -> int:
    return int(slots["slot_seq"][good].max(initial=-1))


def _intact(slots: Slots, header: RingHeader) -> NDArray[np.bool_]:
    """Tell which slots hold a committed record of their own place."""
    import numpy as np

    sound = committed(slots)
    sound &= slots["slot_seq"] % header.slot_count == np.arange(len(slots))
    return sound


def _doubtful(slots: Slots, good: NDArray[np.bool_], header: RingHeader) -> Places:
    """Return the slots that a live writer may have changed since they were read.

    These are the ones that are not intact, those that hold an older record than the
    newest one elsewhere says they should, or none yet, and the newest: on some processors
    the stores of another one become visible in any order, for a moment.
    """
    import numpy as np

    places = np.arange(len(slots))
    newest = _newest(slots, good)
    due = newest - (newest - places) % header.slot_count
    held = np.where(good, slots["slot_seq"], -1)
    doubtful = (_used(slots) & ~good) | (held < due) | (held > newest - _WRITERS_AT_ONCE)
    return np.flatnonzero(doubtful & (_used(slots) | (due >= FIRST_SEQ)))


def _read_again(descriptor: int, slots: Slots, places: Places) -> bool:
    """Read some slots again, all at the same time; tell whether any has changed."""
    import numpy as np

    if not len(places):
        return False
    first = int(places[0])
    wanted = (int(places[-1]) + 1 - first) * SLOT_BYTES
    again = os.pread(descriptor, wanted, HEADER_BYTES + first * SLOT_BYTES)
    fresh = np.frombuffer(again, dtype=slots.dtype, count=len(again) // SLOT_BYTES)
    places = places[places < first + len(fresh)]
    before = slots[places].tobytes()
    slots[places] = fresh[places - first]
    return slots[places].tobytes() != before


def _overtaken_from(slots: Slots, header: RingHeader) -> int:
    """Return the sequence number from which a snapshot of a racing writer has gaps.

    A place that still showed record *s* when it was read was not yet given
    *s* + the number of slots; what is newer than that was seen by chance.
    """
    import numpy as np

    places = np.arange(len(slots))
    # The places before that of the first record wait for the second lap.
    unused = np.where(places < FIRST_SEQ, places, places - header.slot_count)
    held = np.where(_used(slots), slots["commit"], unused)
    plausible = held % header.slot_count == places
    return int(held[plausible].min(initial=np.iinfo(np.int64).max - header.slot_count)) + (
        header.slot_count
    )


def _torn(slots: Slots, places: Places, header: RingHeader, *, newest: int) -> NDArray[np.bool_]:
    """Tell slots that were being written from those that were damaged later.

    The former still show the commit word of a whole lap before, or none.
    """
    claimed = slots["commit"]
    last_lap = newest - header.slot_count + _WRITERS_AT_ONCE
    torn: NDArray[np.bool_] = claimed % header.slot_count == places
    torn &= (claimed <= last_lap) & (claimed > last_lap - header.slot_count)
    torn |= claimed == 0
    return torn
