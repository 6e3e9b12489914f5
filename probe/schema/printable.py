"""Texts in sentences: those from files made safe to show, lists cut to their first items."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice


def printable(text: str) -> str:
    r"""Return text on one line, with each character that does not print as its escape.

    Terminals obey control characters, line ends tear sentences apart, marks of writing
    direction reorder them, and half surrogates (file names that are not UTF-8) cannot be
    encoded.

    >>> printable("rank1\x1b[31m.json")
    'rank1\\x1b[31m.json'
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


MOST_LISTED = 8


def listed(items: Iterable[object], *, count: int | None = None, most: int = MOST_LISTED) -> str:
    """Return items as text.

    Args:
        items: What to list, in this order.
        count: How many there are, where ``items`` cannot be gone through to the end.
        most: How many to name.

    >>> listed([3, 5, 6], most=2)
    '3, 5 and 1 more'
    """
    rest = iter(items)
    shown = ", ".join(map(str, islice(rest, most)))
    more = sum(1 for _ in rest) if count is None else count - most
    return f"{shown} and {more} more" if more > 0 else shown
