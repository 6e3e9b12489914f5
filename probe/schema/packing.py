"""Records rearranged so that a general compressor finds little in them.

Two steps, both exact and undone by ``unpacked``. Times and numbers that count up
become the difference to the row before, zigzag (0, -1, 1, -2 … as 0, 1, 2, 3 …), so
that small differences of either sign have empty high bytes. Then the bytes of each
column are sorted by their place in the number, so that the empty ones lie together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LENGTHS = frozenset({"dur_ns", "cpu_ns", "wait_ns", "tokens", "sum_sq"})
"""Columns that do not count up: a difference would only add the noise of two rows."""
_SHORTENED = ("min_", "max_")


def packed(rows: NDArray[np.void]) -> NDArray[np.void]:
    """Return records with rearranged columns; the input stays as it is."""
    import numpy as np

    found = rows.copy()
    for name in _columns(rows):
        values = np.ascontiguousarray(rows[name])
        if _counts_up(name, values):
            step = np.diff(values, prepend=values.dtype.type(0))
            values = (step << 1) ^ (step >> 63)
        planes = values.view(np.uint8).reshape(len(values), -1).T
        found[name] = np.frombuffer(planes.tobytes(), dtype=values.dtype)
    return found


def unpacked(rows: NDArray[np.void]) -> NDArray[np.void]:
    """Return the records that ``packed`` was given; the input stays as it is."""
    import numpy as np

    found = rows.copy()
    for name in _columns(rows):
        values = np.ascontiguousarray(rows[name])
        planes = values.view(np.uint8).reshape(values.dtype.itemsize, -1).T
        values = np.frombuffer(planes.tobytes(), dtype=values.dtype)
        if _counts_up(name, values):
            unsigned = values.view(np.uint64)
            step = (unsigned >> np.uint64(1)).view(np.int64) ^ -(values & 1)
            values = np.cumsum(step, dtype=np.int64)
        found[name] = values
    return found


def _columns(rows: NDArray[np.void]) -> list[str]:
    """Return the columns of more than one byte."""
    names = rows.dtype.names or ()
    return [name for name in names if rows.dtype[name].itemsize > 1]


def _counts_up(name: str, values: NDArray[np.int64]) -> bool:
    is_length = name in _LENGTHS or name.startswith(_SHORTENED)
    return values.dtype.itemsize == 8 and not is_length
