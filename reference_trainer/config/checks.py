"""How settings are checked: one line that names the field and the remedy."""

from __future__ import annotations

from math import isnan
from sys import float_info

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.message import Message, message

FINITE = float_info.max
"""Where a range ends that has no end, but infinity."""


def require(holds: bool, what: Message, *, where: str, remedy: Message) -> None:  # noqa: FBT001
    """Raise ConfigError with the field and the remedy unless the condition holds."""
    if not holds:
        raise ConfigError(what, where=where, remedy=remedy)


def in_range(value: float, least: float, most: float = FINITE, *, where: str) -> None:
    """Refuse a number below the least or above the most, and one that is no number."""
    if least <= value <= most:
        return
    if value < least or isnan(value):
        remedy = message("advice.set_from", least=least)
    elif most == FINITE:
        remedy = message("advice.set_finite")
    else:
        remedy = message("advice.set_to_most", most=most)
    raise ConfigError(
        message("refused.out_of_range", value=value),
        where=where,
        remedy=remedy,
    )
