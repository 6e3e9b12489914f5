"""The slots of a ring: one record each, in a form that one call can store.

::

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

import struct
import sys
from functools import cache
from typing import TYPE_CHECKING

from .records import HEAD_BYTES, MADE_BY_THE_WRITER, RECORD_TYPES, RecordType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
