"""What the fields of a request may hold: small numbers, words, yes or no.

There is no field for a path, for code or for nested values, so none of these
can be sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..schema.message import Message, message


class FieldError(ValueError):
    """A value does not fit its field.

    Attributes:
        said: What does not fit, as one clause.
        name: The field; empty where the field itself speaks.
    """

    def __init__(self, said: Message, name: str = "") -> None:
        """Keep both; the sentence is made when it is sent."""
        super().__init__(said)
        self.said, self.name = said, name

    def __str__(self) -> str:
        return f"{self.name} {self.said}".strip()


class Field(Protocol):
    """One field of a verb."""

    @property
    def default(self) -> Any:
        """Return the value of a request that leaves the field out; None if it must not."""

    def checked(self, value: object) -> Any:
        """Return the value.

        Raises:
            FieldError: It does not fit.
        """


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number within bounds."""

    least: int
    most: int
    default: int | None = None

    def checked(self, value: object) -> int:
        """Return the number; a bool is none."""
        if not isinstance(value, int) or isinstance(value, bool):
            raise FieldError(message("reply.not_whole"))
        if not self.least <= value <= self.most:
            raise FieldError(message("reply.out_of_range", least=self.least, most=self.most))
        return value


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    default: bool | None = None

    def checked(self, value: object) -> bool:
        """Return the flag; a number is none."""
        if not isinstance(value, bool):
            raise FieldError(message("reply.no_flag"))
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    options: tuple[str, ...]
    default: str | None = None

    def checked(self, value: object) -> str:
        """Return the word."""
        if not isinstance(value, str) or value not in self.options:
            raise FieldError(message("reply.no_choice", options=self.options))
        return value


_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Word:
    """A name of up to 64 letters, digits, underscores and hyphens; so never a path."""

    default: str | None = None

    def checked(self, value: object) -> str:
        """Return the name."""
        if not isinstance(value, str) or not _WORD.fullmatch(value):
            raise FieldError(message("reply.no_word"))
        return value


def checked_fields(fields: Mapping[str, Field], given: Mapping[str, object]) -> dict[str, Any]:
    """Return the value of every field.

    Raises:
        FieldError: A field is unknown, missing, or holds what does not fit.
    """
    for name in given:
        if name not in fields:
            raise FieldError(message("reply.unknown_field"), name[:80])
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in given:
            try:
                values[name] = field.checked(given[name])
            except FieldError as error:
                raise FieldError(error.said, name) from None
        elif field.default is None:
            raise FieldError(message("reply.missing_field"), name)
        else:
            values[name] = field.default
    return values
