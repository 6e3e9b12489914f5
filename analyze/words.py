"""Small grammar for limits and findings."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 rank``, ``2 ranks``, ``2 microbatches``."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}{'es' if noun.endswith(('ch', 'sh', 's', 'x')) else 's'}"


def sentence(clause: str) -> str:
    """Return a clause as a sentence: first letter large, a full stop at the end."""
    return f"{clause[:1].upper()}{clause[1:]}" + ("" if clause.endswith((".", "?", "!")) else ".")


def is_missing(value: object) -> bool:
    """Return whether a value is None, NaN or pandas' NA."""
    return value is None or str(value) in ("nan", "<NA>")
