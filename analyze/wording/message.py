"""Messages: a code with typed values. The sentence stands in the catalogue and is made when it is shown.

Results carry messages, never finished prose: a program reads code and values, a person the sentence, and nobody
edits a sentence afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from meshscope.probe.schema import message as errors
from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.sentences import Sentences, text_of, text_of_errors

from .quantities import QuantityFormatter

CATALOGUE = ("catalogue.toml", "limits.toml")
"""Files of sentences beside those of errors; no part is in two of them."""
_FORMATTER = QuantityFormatter()


@dataclass(frozen=True, slots=True)
class Message(errors.Message):
    """A sentence of the analyses, whose values have more forms: units, places, plurals."""

    def __str__(self) -> str:
        return _FORMATTER.vformat(template(self.code), (), self.values)


Text: TypeAlias = Message | str
"""A sentence: as data, or a text that comes from outside (a name, a line of another tool)."""


def message(code: str, **values: Any) -> Message:
    """Return a message; the test of the catalogue holds its code and the names of its values."""
    return Message(code, values)


def template(code: str) -> str:
    """Return the sentence of a code, with the names and units of its values in braces.

    Raises:
        KeyError: The catalogue has no such code.
    """
    return catalogue()[code]


@cache
def catalogue() -> Mapping[str, str]:
    """Return every sentence by its code."""
    return Sentences(text_of_errors(), *(text_of(__package__, file) for file in CATALOGUE))


def message_to_json(text: errors.Message | str) -> dict[str, Any] | None:
    """Return code and values; None of what is a text from outside."""
    return None if isinstance(text, str) else errors.message_to_json(text)


NO_ERROR: Mapping[str, Any] = {"error": None, "error_messages": None}
"""What ``error_to_json`` gives where nothing went wrong."""


def error_to_json(error: MeshscopeError) -> dict[str, Any]:
    """Return the text of an error with code and values of what is wrong and of the advice; None without a code."""
    return {
        "error": str(error),
        "error_messages": {name: _plain_text(said) for name, said in error.said.items()},
    }


def _plain_text(said: object) -> dict[str, Any] | None:
    return message_to_json(said) if isinstance(said, errors.Message) else None


def message_from_json(said: Mapping[str, Any]) -> Message:
    """Return the message of a code and values that ``message_to_json`` gave; tuples are lists now.

    Raises:
        KeyError, TypeError: They are none.
    """
    return Message(str(said["code"]), _value(said["values"]))


def message_of_cell(cell: object) -> Text:
    """Return the message that a column of a table holds; "" of nothing, and what an older version wrote as it is."""
    if not isinstance(cell, str):
        return ""
    said = errors.cell_to_json(cell)
    if said is None or said["code"] not in catalogue():
        return cell
    return message_from_json(said)


def cells_to_json(row: Mapping[Any, Any], *names: str) -> dict[str, Any]:
    """Return the sentences of cells of a row by their columns, None of nothing, and the messages beside them."""
    found = {name: message_of_cell(row[name]) for name in names}
    texts = {name: str(said) or None for name, said in found.items()}
    return {**texts, "messages": {name: message_to_json(said) for name, said in found.items()}}


def _value(kept: Any) -> Any:
    """Return a value with the messages in it."""
    if isinstance(kept, dict):
        if kept.keys() == {"code", "values"}:
            return message_from_json(kept)
        return {name: _value(one) for name, one in kept.items()}
    return [_value(one) for one in kept] if isinstance(kept, list) else kept
