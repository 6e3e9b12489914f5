"""What the reader of our captures found, as messages of the catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from meshscope.probe.schema.note import Note

from ..wording.message import Message


def worded(notes: Iterable[Note]) -> tuple[Message, ...]:
    """Return notes as messages: their codes are those of the catalogue."""
    return tuple(map(_message, notes))


def _message(note: Note) -> Message:
    return Message(note.code, {name: _value(value) for name, value in note.values.items()})


def _value(value: Any) -> Any:
    """Return a value with the notes in it as messages."""
    if isinstance(value, Note):
        return _message(value)
    if isinstance(value, Mapping):
        return {name: _value(one) for name, one in value.items()}
    return [_value(one) for one in value] if isinstance(value, list) else value
