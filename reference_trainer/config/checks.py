"""How settings are checked: one line that names the field and the remedy."""

from __future__ import annotations

from math import isnan
from sys import float_info

from meshscope.probe.schema.errors import ConfigError

FINITE = float_info.max
"""Where a range ends that has no end, but infinity."""


def require(holds: bool, what: str, *, where: str, remedy: str = "") -> None:  # noqa: FBT001
    """Raise ConfigError with the field and the remedy unless the condition holds."""
    if not holds:
        raise ConfigError(what, where=where, remedy=remedy)


def in_range(value: float, least: float, most: float = FINITE, *, where: str) -> None:
    """Refuse a number below the least or above the most, and one that is no number."""
    if least <= value <= most:
        return
    if value < least or isnan(value):
        wanted = f"at least {least:g}"
    else:
        wanted = "a finite number" if most == FINITE else f"at most {most:g}"
    raise ConfigError(f"{value} is out of range", where=where, remedy=f"Set it to {wanted}")
