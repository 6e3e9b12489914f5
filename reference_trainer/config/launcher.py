"""Numbers and texts that a launcher puts into the environment of a rank."""

from __future__ import annotations

from collections.abc import Mapping

from meshscope.probe.schema.errors import ConfigError


def text_of(environment: Mapping[str, str], *names: str, remedy: str) -> str:
    """Return the first of some variables that is set.

    Raises:
        ConfigError: None of them is.
    """
    for name in names:
        if environment.get(name):
            return environment[name]
    raise ConfigError("is not set in this process", where=names[0], remedy=remedy)


def number_of(environment: Mapping[str, str], *names: str, remedy: str) -> int:
    """Return the first of some variables that is set, which counts something.

    Raises:
        ConfigError: None of them is, or it is no number.
    """
    text = text_of(environment, *names, remedy=remedy)
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{text!r} is no number", where=names[0], remedy=remedy)
    return int(text)
