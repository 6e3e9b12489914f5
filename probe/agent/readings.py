"""What a reader gives: rows for the tables, what could not be read, and lasting facts.

This is the interface that everything above it sees, so a recording of it replayed is as
good as the machine it was made on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..schema.host_tables import SAMPLED

Value = int | float | str | bool | None
Row = dict[str, Value]

MOST_BYTES = 4 << 20
"""A longer line is no reading."""


class ReplayEnded(Exception):  # noqa: N818 - an end, not an error
    """A recording has no further reading."""


class ReadingError(ValueError):
    """A line is no reading."""


@dataclass(slots=True, kw_only=True)
class Reading:
    """One look of a reader."""

    source: str
    """Name of the reader: ``devices``, ``links`` or ``host``."""
    time_ns: int
    """Monotonic time at which it began."""
    rows: dict[str, list[Row]] = field(default_factory=dict)
    """Rows by table, without the column ``host``; a value that is not known is left out."""
    missing: dict[str, int] = field(default_factory=dict)
    """``field: reason`` of what could not be read, with the number of rows that lack it."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What does not change from look to look; given when it is first known or has changed."""

    def lacks(self, name: str, reason: str, rows: int = 1) -> None:
        """Count a field that could not be read."""
        key = f"{name}: {reason}"
        self.missing[key] = self.missing.get(key, 0) + rows

    def to_json(self) -> str:
        """Return it as one line without its end.

        Raises:
            ValueError: A number is not finite.
        """
        return json.dumps(
            {
                "source": self.source,
                "time_ns": self.time_ns,
                "rows": self.rows,
                "missing": self.missing,
                "facts": self.facts,
            },
            allow_nan=False,
            separators=(",", ":"),
        )


class Reader(Protocol):
    """Something that can be looked at again and again."""

    name: str

    def read(self) -> Reading:
        """Look once. What cannot be read is counted in the reading, not raised.

        Raises:
            ReplayEnded: It is a recording, which has come to its end.
        """

    def close(self) -> None:
        """Let go of what it holds."""


def reading_from_json(line: str | bytes) -> Reading:
    """Return the reading in a line.

    Raises:
        ReadingError: It is none.
    """
    if len(line) > MOST_BYTES:
        raise ReadingError("is too long")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ReadingError(f"is not JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("source"), str):
        raise ReadingError("has no source")
    if type(value.get("time_ns")) is not int:
        raise ReadingError("has no time")
    return Reading(
        source=value["source"],
        time_ns=value["time_ns"],
        rows=_rows(value.get("rows")),
        missing=_counts(value.get("missing")),
        facts=facts if isinstance(facts := value.get("facts"), dict) else {},
    )


def _rows(value: object) -> dict[str, list[Row]]:
    if not isinstance(value, Mapping):
        raise ReadingError("has no rows")
    found: dict[str, list[Row]] = {}
    for table, rows in value.items():
        if table not in SAMPLED or not isinstance(rows, list):
            raise ReadingError(f"has rows of an unknown table {table!r:.40}")
        if not all(isinstance(row, dict) for row in rows):
            raise ReadingError(f"has a row of {table} that is not an object")
        found[table] = rows
    return found


def _counts(value: object) -> dict[str, int]:
    if not isinstance(value, dict) or any(type(count) is not int for count in value.values()):
        raise ReadingError("has no counts of what is missing")
    return value
