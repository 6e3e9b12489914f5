"""Tells whether a pickle has only operations that make plain values, without doing any.

One regular expression walks over the operations with their arguments, a hundred times as
fast as Python could. It knows fewer than there are: a program it cannot walk to the end is
not thereby bad, only not known to be good.

What each operation is, is known from ``pickletools``.
"""

from __future__ import annotations

import re

_AT_ONCE = 1_000_000
"""Operations in one match: so many more are counted."""


def is_plain(content: bytes, most_operations: int) -> bool:
    """Return whether a pickle surely makes plain values, and in bounded time and memory.

    Args:
        content: The pickle.
        most_operations: A program that may be longer is not.
    """
    if not content.startswith(b"\x80"):
        return False
    position = 2
    while most_operations > 0:
        run = _OPERATIONS.match(content, position)
        if run is not None:
            most_operations -= min(_AT_ONCE, run.end() - position)
            position = run.end()
        elif content.startswith(b"X", position):
            most_operations -= 1
            position += 5 + int.from_bytes(content[position + 1 : position + 5], "little")
        else:
            return content.startswith(b".", position)
    return False


def _sized(code: bytes, sizes: range) -> bytes:
    """Return the pattern of an operation whose argument begins with its size, one byte."""
    # Sixteen at a time, so that the right size is found after few tries.
    blocks = [sizes[first : first + 16] for first in range(0, len(sizes), 16)]
    return re.escape(code) + _either(*(_either(*map(_of_size, block)) for block in blocks))


def _of_size(size: int) -> bytes:
    return re.escape(bytes([size])) + b".{%d}" % size


def _either(*patterns: bytes) -> bytes:
    return b"(?:" + b"|".join(patterns) + b")"


_NUMBER = _either(rb"K.", rb"M..", rb"J.{4}", rb"G.{8}")
_OPERATION = _either(
    rb"[\x94(}\]eusa\x88\x89N)]",
    rb"h.",
    rb"j.{4}",
    # A tuple has numbers only: as keys, tuples of tuples have a hash that takes forever.
    _NUMBER + _either(rb"\x85", _NUMBER + rb"\x86") + rb"?+",
    _sized(b"\x8a", range(10)),
    rb"q.",
    # The table of values to use again gets as long as the highest place.
    rb"r.{2}[\x00-\x0f]\x00",
    rb"\x95.{8}",
    _sized(b"\x8c", range(256)),
)
_OPERATIONS = re.compile(_OPERATION + b"{1,%d}+" % _AT_ONCE, re.DOTALL)
