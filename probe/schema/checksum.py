"""CRC-32 of many equally long rows at once, equal to ``zlib.crc32`` of each."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_POLYNOMIAL = 0xEDB88320
"""The reflected polynomial of CRC-32/ISO-HDLC, which zlib uses."""


def crc32_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the checksum of every row of a matrix of bytes.

    It goes byte column by byte column through the 256-entry table, so its cost
    is that of a few numpy calls per column and not of one call per row.
    """
    import numpy as np

    table = _table()
    crc = np.full(len(rows), 0xFFFFFFFF, dtype=np.uint32)
    for column in rows.T:
        crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
    return crc ^ np.uint32(0xFFFFFFFF)


@cache
def _table() -> NDArray[np.uint32]:
    """Return the remainder of each byte value."""
    import numpy as np

    remainders = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        odd = (remainders & 1).astype(bool)
        remainders = np.where(odd, (remainders >> 1) ^ np.uint32(_POLYNOMIAL), remainders >> 1)
    return remainders
