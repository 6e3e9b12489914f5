"""The verbs that a server knows, what their fields may hold, and how one is added.

A verb is a name, its fields and a function. The function runs on the control
thread of the process, so it

* returns within half a second, since one thread serves all requests: most take less than
  a millisecond, what waits for the main thread a quarter of a second at most, ``flush`` of a
  full ring 0.3 to 0.4 s (measured, on a local disk),
* calls nothing of CUDA, NCCL or c10d: what must happen in the training thread is
  left to it (``RankControl.listeners``, ``main_thread.MainThreadJob``),
* raises ``Refusal`` with a message for what it cannot do. Any other exception is
  counted and answered as an error of the probe; it never reaches training.

Fields are small numbers, words, yes or no. There is no field for a path, for code or for nested values, so none of these
can be sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..schema.errors import ConfigError
from ..schema.message import Message, message
from .messages import Request


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
    for name, of_verb in fields.items():
        if name in given:
            try:
                values[name] = of_verb.checked(given[name])
            except FieldError as error:
                raise FieldError(error.said, name) from None
        elif of_verb.default is None:
            raise FieldError(message("reply.missing_field"), name)
        else:
            values[name] = of_verb.default
    return values


Act = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Takes the checked value of every field, returns the result of the reply (JSON)."""


class Refusal(Exception):  # noqa: N818 - an answer, not an error of the program
    """A request cannot be granted.

    Attributes:
        said: Why, as one clause that the user reads.
    """

    def __init__(self, said: Message) -> None:
        """Keep why; the sentence is made when it is sent."""
        super().__init__(said)
        self.said = said


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing that a process can be asked to do."""

    name: str
    meaning: str
    """One sentence."""
    act: Act
    fields: Mapping[str, Field] = field(default_factory=dict)
    """By name; a field without a default must be in the request."""


class VerbRegistry:
    """The verbs of one server, by name. Verbs may come and go while it serves."""

    def __init__(self) -> None:
        self._verbs: dict[str, Verb] = {}

    def add(self, *verbs: Verb) -> None:
        """Add verbs.

        Raises:
            ConfigError: There is one of this name already.
        """
        for verb in verbs:
            if verb.name in self._verbs:
                raise ConfigError(message("refused.verb_exists"), where=verb.name)
            self._verbs[verb.name] = verb

    def remove(self, name: str) -> None:
        """Remove a verb if it is there."""
        self._verbs.pop(name, None)

    def names(self) -> tuple[str, ...]:
        """Return the names of all verbs, sorted."""
        return tuple(sorted(self._verbs))

    def call(self, request: Request) -> Mapping[str, Any]:
        """Do what a request asks for; return the result of its reply.

        Raises:
            Refusal: The verb is unknown, a field does not fit, or the verb refuses.
        """
        verb = self._verbs.get(request.verb)
        if verb is None:
            raise Refusal(message("reply.unknown_verb", verb=request.verb[:80], known=self.names()))
        try:
            values = checked_fields(verb.fields, request.fields)
        except FieldError as error:
            raise Refusal(
                message("reply.field", verb=verb.name, name=error.name, error=error.said)
            ) from None
        return verb.act(values)
