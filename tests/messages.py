"""Messages in tests: by their code, so that a better sentence breaks no test."""

from collections.abc import Iterable, Mapping
from typing import Any

from meshscope.analyze.wording.message import Message, Text


def of_code(texts: Iterable[Text], code: str) -> list[Mapping[str, Any]]:
    """Return the values of the messages of a code."""
    return [text.values for text in texts if isinstance(text, Message) and text.code == code]


def values_of(texts: Iterable[Text], code: str) -> Mapping[str, Any]:
    """Return the values of the only message of a code."""
    (values,) = of_code(texts, code)
    return values
