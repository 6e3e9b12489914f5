"""Numbers and texts that a launcher puts into the environment of a rank."""

from __future__ import annotations

from collections.abc import Mapping

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.message import Message, message


def text_of(environment: Mapping[str, str], *names: str, remedy: Message) -> str:
    """Return the first of some variables that is set.

    Raises:
        ConfigError: None of them is.
    """
    for name in names:
        if environment.get(name):
            return environment[name]
    raise ConfigError(message("refused.not_set"), where=names[0], remedy=remedy)


def number_of(environment: Mapping[str, str], *names: str, remedy: Message) -> int:
    """Return the first of some variables that is set, which counts something.

    Raises:
        ConfigError: None of them is, or it is no number.
    """
    text = text_of(environment, *names, remedy=remedy)
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(
            message("refused.value_no_number", value=text), where=names[0], remedy=remedy
        )
    return int(text)
