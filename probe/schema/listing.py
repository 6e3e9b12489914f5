"""Lists in sentences: of many items the first ones, and how many more there are."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

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
