"""Messages: a code with typed values. The sentence stands in a catalogue and is made when somebody is shown it.

Errors are raised with messages, so that a program reads code and values, and a person the sentence. A process that
catches an error and goes on never reads the catalogue.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_CELL = re.compile(r"(?P<code>[a-z][a-z0-9_]*\.[a-z0-9_]+)(?: (?P<values>\{.*\}))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Message:
    """One sentence as data; ``str()`` gives its text."""

    code: str
    """Where its sentence stands in the catalogue: ``refused.no_level``."""
    values: Mapping[str, Any]
    """What the sentence names: numbers in SI units or ns, ranks, names, other messages."""

    def __str__(self) -> str:
        # Only now: a training process that shows no error pays neither for the file nor for its parser.
        from .sentences import error_sentence

        return error_sentence(self.code, self.values)


def message(code: str, **values: Any) -> Message:
    """Return a message of ``errors.toml``; the test of the catalogue holds its code and the names of its values."""
    return Message(code, values)


def message_to_json(said: Message) -> dict[str, Any]:
    """Return code and values as JSON has them."""
    return {
        "code": said.code,
        "values": {name: _plain(value) for name, value in said.values.items()},
    }


def message_to_cell(said: Message) -> str:
    """Return what a column of messages holds: the code and, if it has values, a space and these as JSON.

    >>> message_to_cell(message("evidence.device_stated")), message_to_cell(message("level.sampled", one_in=2))
    ('evidence.device_stated', 'level.sampled {"one_in": 2}')
    """
    values = message_to_json(said)["values"]
    return f"{said.code} {json.dumps(values)}" if values else said.code


def cell_to_json(cell: str) -> dict[str, Any] | None:
    """Return code and values of a cell as ``message_to_json`` does; None of a text that older versions wrote."""
    found = _CELL.fullmatch(cell)
    if found is None:
        return None
    try:
        values = json.loads(found["values"] or "{}")
    except (ValueError, RecursionError):
        return None
    return {"code": found["code"], "values": values}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, Message):
        return message_to_json(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    # NumPy's numbers are no numbers of JSON; an enumeration of ours is a text already.
    value = value.item() if hasattr(value, "item") else value
    return value if value is None or isinstance(value, str | int | float) else str(value)
