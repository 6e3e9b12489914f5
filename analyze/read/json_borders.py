"""Where the brackets of a JSON text are, strings left out; exact, and vectorised.

A bracket counts only outside strings, and a quote ends a string only if it is not
escaped. Text after an unterminated string counts as part of that string.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

_OPENING = re.compile(rb"\s*:\s*\[")
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_IS_MARK = bytes(code in b'"\\{}[]' for code in range(256))
_STEP = np.zeros(256, dtype=np.int8)
_STEP[list(b"{[")], _STEP[list(b"}]")] = 1, -1


class Elements(msgspec.Struct, frozen=True):
    """The elements of an array whose opening bracket is not part of the text."""

    ends: list[int]
    """Positions behind the objects and arrays that are whole."""
    array_end: int | None
    """Position of the bracket that closes the array, None where it is not in the text."""


def elements(text: bytes) -> Elements:
    """Return the borders of the elements at the start of ``text``.

    >>> elements(b'{"a": "}"}, {"b": [1]}], "c"')
    Elements(ends=[10, 22], array_end=22)
    """
    position, depth = _brackets(text)
    closing = np.flatnonzero(depth < 0)
    inside = slice(0, closing[0]) if len(closing) else slice(None)
    ends = position[inside][depth[inside] == 0] + 1
    return Elements(ends.tolist(), int(position[closing[0]]) if len(closing) else None)


def find_array(text: bytes, key: str) -> int | None:
    """Return the position behind the opening bracket of a top-level key's array, if it is there."""
    found = list(_openings(text, b'"%b"' % key.encode()))
    if not found:
        return None
    position, depth = _brackets(text[: found[-1]])
    at_top = set((position[depth == 2] + 1).tolist())
    return next((end for end in found if end in at_top), None)


def closed_values(text: bytes) -> bytes | None:
    """Return an object that is cut off with its whole values that are objects; None if it is not.

    >>> closed_values(b'{"1": {"a": 2}, "2": {"a": 3}, "3": {"a"')
    b'{"1": {"a": 2}, "2": {"a": 3}}'
    """
    position, depth = _brackets(text)
    if not len(depth) or (depth <= 0).any():
        return None
    closed = position[1:][(depth[1:] == 1) & (depth[:-1] == 2)]
    return text[: int(closed[-1]) + 1] + b"}" if len(closed) else None


def _openings(text: bytes, quoted: bytes) -> Iterator[int]:
    """Yield where an array begins behind a key, in strings too but for escaped quotes."""
    place = text.find(quoted)
    while place >= 0:
        behind = place + len(quoted)
        match = _OPENING.match(text, behind)
        if match and text[place - 1 : place] != b"\\":
            yield match.end()
        place = text.find(quoted, behind)


def _brackets(text: bytes) -> tuple[IntArray, IntArray]:
    """Return the position of each bracket outside strings, and the depth behind it."""
    marks = np.flatnonzero(np.frombuffer(text.translate(_IS_MARK), dtype=np.bool_))
    kinds = np.frombuffer(text, dtype=np.uint8)[marks]
    is_quote = kinds == _QUOTE
    backslashes = marks[kinds == _BACKSLASH]
    if len(backslashes):
        is_quote &= ~np.isin(marks, _escaped(backslashes), assume_unique=True)
    is_outside = ~np.logical_xor.accumulate(is_quote)
    step = _STEP[kinds]
    chosen = is_outside & (step != 0)
    return marks[chosen], np.cumsum(step[chosen], dtype=np.int64)


def _escaped(backslashes: IntArray) -> IntArray:
    """Return the positions that a backslash escapes; in a run, every second one escapes the next."""
    begins = np.diff(backslashes, prepend=-2) != 1
    first = np.maximum.accumulate(np.where(begins, np.arange(len(backslashes)), 0))
    in_run = np.arange(len(backslashes)) - first
    escaping: IntArray = backslashes[in_run % 2 == 0]
    return escaping + 1
