"""Text from files, made safe to show: names may hold control characters."""

from __future__ import annotations


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
