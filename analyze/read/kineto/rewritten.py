"""Traces that are rewritten to temporary files, an event at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from .events import KinetoHeader

_OPENING, _COMMA = b'{"traceEvents":[', b",\n"


class EventWriter:
    """Writes a trace whose header is known last; a file is open only while it is written to.

    So one writer for each of thousands of ranks is no trouble.

    Args:
        path: The file, which is made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._separator = _OPENING

    def write(self, events: Iterable[bytes]) -> None:
        """Append events, each a JSON object.

        Raises:
            OSError: The disk is full.
        """
        text = _COMMA.join(events)
        if text:
            with self.path.open("ab") as stream:
                stream.write(self._separator + text)
            self._separator = _COMMA

    def finish(self, header: KinetoHeader) -> None:
        """Append the header.

        Raises:
            OSError: The disk is full.
        """
        values = msgspec.to_builtins(header)
        values.pop("traceEvents", None)
        known = {name: value for name, value in values.items() if value is not None}
        with self.path.open("ab") as stream:
            if self._separator is _OPENING:
                stream.write(_OPENING)
            stream.write(b"]" + (b"," if known else b"") + msgspec.json.encode(known)[1:])
