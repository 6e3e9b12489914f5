"""Small grammar for limits and findings."""

from __future__ import annotations

import re
from collections.abc import Sequence


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 rank``, ``2 ranks``, ``2 microbatches``."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}{'es' if noun.endswith(('ch', 'sh', 's', 'x')) else 's'}"


def joined(items: Sequence[str], word: str = "and") -> str:
    """Return items as a list in a sentence: ``a``, ``a and b``, ``a, b and c``."""
    *first, last = items
    return f"{', '.join(first)} {word} {last}" if first else last


_FILE = re.compile(r"[^\s:]*[/\w-][./\\][\w-]")
"""A word with a dot or a slash inside."""


def capitalised(clause: str) -> str:
    """Return a clause with its first letter large; the name of a file at its beginning stays as it is.

    >>> capitalised("two hosts"), capitalised("job.toml states two hosts")
    ('Two hosts', 'job.toml states two hosts')
    """
    if _FILE.match(clause):
        return clause
    return f"{clause[:1].upper()}{clause[1:]}"


def sentence(clause: str) -> str:
    """Return a clause as a sentence: first letter large, a full stop at the end."""
    return capitalised(clause) + ("" if clause.endswith((".", "?", "!")) else ".")


def is_missing(value: object) -> bool:
    """Return whether a value is None, NaN or pandas' NA."""
    return value is None or str(value) in ("nan", "<NA>")
