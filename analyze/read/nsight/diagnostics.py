"""What Nsight Systems itself said went wrong while it recorded."""

from __future__ import annotations

from .database import Database

_TABLE = "DIAGNOSTIC_EVENT"
_WARNING = 2
"""Lowest severity that is reported: 1 is information, 2 a warning, 3 an error."""
_MOST = 6
_MOST_TEXT = 300


def diagnostics(database: Database) -> tuple[str, ...]:
    """Return its warnings and errors, each once, errors first.

    Raises:
        TraceFormatError: The file is damaged.
    """
    rows = database.pairs(_TABLE, "severity", "text")
    messages = [
        (severity, " ".join(str(text).split())[:_MOST_TEXT])
        for severity, text in rows
        if isinstance(severity, int) and severity >= _WARNING and text
    ]
    ordered = dict.fromkeys(text for _, text in sorted(messages, key=lambda one: -one[0]))
    return tuple(ordered)[:_MOST]
