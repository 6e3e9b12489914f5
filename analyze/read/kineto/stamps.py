"""Times of Kineto events, as exact nanoseconds.

Kineto writes stamps as decimal microseconds with up to three digits. A double of
the size of a Unix time in microseconds resolves 0.25 us only, so stamps are kept as
text and turned to integers by decimal arithmetic: one is as exact as what the file says.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.errors import TraceFormatError

from ...wording.message import message

LATEST_NS = 4_600_000_000_000_000_000
"""Year 2115. A stamp and a time base below it add up within 64 bits of nanoseconds."""
EXPORT_AGAIN = message("advice.export_trace_again")
"""Remedy of a file that is not what the profiler writes."""
_COMMA, _DOT = b",."
_DIGITS = 3
"""Decimal digits of a microsecond that are whole nanoseconds."""
_SCALES = 10 ** np.arange(_DIGITS, -1, -1)
"""What makes nanoseconds of the digits of a number, by how many of them are behind the point."""

IntArray = npt.NDArray[np.int64]


def readable_stamps(values: Sequence[msgspec.Raw]) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Return the stamps that are times, in nanoseconds, and which of the values they are.

    A number beyond the years that we know, and anything that is no number, is no time.

    Args:
        values: JSON values, decimal microseconds.
    """
    joined = b",".join(values)
    found = _plain_stamps(joined, len(values))
    if found is not None:
        return found, np.ones(len(values), dtype=bool)
    texts = decimal_texts(values)
    try:
        return microseconds_to_ns(texts, ""), np.ones(len(texts), dtype=bool)
    except TraceFormatError:
        stamps, is_time = np.zeros(len(texts), dtype=np.int64), np.zeros(len(texts), dtype=bool)
    for place, text in enumerate(texts):
        try:
            (stamps[place],) = microseconds_to_ns([text], "")
        except TraceFormatError:
            continue
        is_time[place] = True
    return stamps[is_time], is_time


def decimal_texts(values: Sequence[msgspec.Raw]) -> list[bytes]:
    """Return JSON numbers as text, empty where there is none.

    Some writers put numbers between quotes, or write null.
    """
    texts = [bytes(value).strip(b'"') for value in values]
    return [b"" if text == b"null" else text for text in texts]


def microseconds_to_ns(texts: Sequence[bytes], where: str) -> IntArray:
    """Return decimal microseconds as integer nanoseconds, rounded half to even below 1 ns.

    >>> microseconds_to_ns([b"1712195495505543.251"], "").tolist()
    [1712195495505543251]

    Raises:
        TraceFormatError: One of them is no number.
    """
    if not texts:
        return np.empty(0, dtype=np.int64)
    text = pa.array(texts, pa.binary()).cast(pa.string())
    try:
        thousandths = _thousandths(text)
    except pa.ArrowInvalid as error:
        raise TraceFormatError(
            message("refused.time_stamp", error=str(error)), where=where, remedy=EXPORT_AGAIN
        ) from error
    # The unscaled value of a decimal of scale 3 counts nanoseconds. It is stored as
    # two little-endian words: the lower holds a 64-bit value whole, the upper its sign.
    words = np.frombuffer(thousandths.buffers()[1], dtype="<i8").reshape(-1, 2)
    words = words[thousandths.offset : thousandths.offset + len(thousandths)]
    lower = words[:, 0].copy()
    if (
        (words[:, 1] != lower >> 63).any()
        or (lower >= LATEST_NS).any()
        or (lower <= -LATEST_NS).any()
    ):
        raise TraceFormatError(message("refused.far_time_stamp"), where=where, remedy=EXPORT_AGAIN)
    return lower


def _plain_stamps(joined: bytes, count: int) -> IntArray | None:
    """Return stamps that all have at most three digits behind a point, else None.

    Without their points such numbers are integers, which are read many times faster than
    decimals. Whatever is no JSON number of that form is left to the exact way.

    Args:
        joined: JSON values with commas between them.
        count: How many they are.
    """
    text = np.frombuffer(joined, dtype=np.uint8)
    ends = np.append(np.flatnonzero(text == _COMMA), len(text))
    if len(ends) != count:
        return None
    point = np.flatnonzero(text == _DOT)
    owner = np.searchsorted(ends, point)
    behind = np.zeros(count, dtype=np.int64)
    behind[owner] = ends[owner] - point - 1
    lengths = np.diff(ends, prepend=-1) - 1
    lengths[owner] -= 1
    if behind.max() > _DIGITS or lengths.sum() + len(point) + count - 1 != len(text):
        return None
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    digits = joined.translate(None, b",.")
    whole = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(digits))
    try:
        value = whole.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        return None
    scale = _SCALES[behind]
    limit = LATEST_NS // scale
    if (value >= limit).any() or (value <= -limit).any():
        return None
    stamps: IntArray = value * scale
    return stamps


def _thousandths(text: pa.StringArray) -> pa.Decimal128Array:
    """Return numbers at scale 3; the first way, for those that have no more digits, is faster."""
    try:
        return text.cast(pa.decimal128(22, 3))
    except pa.ArrowInvalid:
        exact = text.cast(pa.decimal128(38, 20))
    return pc.round(exact, 3, round_mode="half_to_even").cast(pa.decimal128(38, 3))
