"""The verbs that a server knows, and how one is added.

A verb is a name, its fields and a function. The function runs on the control
thread of the process, so it

* returns within half a second, since one thread serves all requests: most take less than
  a millisecond, what waits for the main thread a quarter of a second at most, ``flush`` of a
  full ring 0.3 to 0.4 s (measured, on a local disk),
* calls nothing of CUDA, NCCL or c10d: what must happen in the training thread is
  left to it (``RankControl.listeners``, ``main_thread.MainThreadJob``),
* raises ``Refusal`` with a message for what it cannot do. Any other exception is
  counted and answered as an error of the probe; it never reaches training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..schema.errors import ConfigError
from ..schema.message import Message, message
from .fields import Field, FieldError, checked_fields
from .messages import Request

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
