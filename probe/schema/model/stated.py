"""Values of a model's source, checked where they come in: files of strangers hold anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ConfigError

MOST = 1 << 40
"""No size of a model is larger; one that is, is a slip of the pen."""
MOST_LAYERS = 1 << 14
"""No model has more layers."""


def check_counts(
    values: Mapping[str, Any], names: Iterable[str], where: str, *, least: int = 0, most: int = MOST
) -> None:
    """Refuse what is to be a whole number and is none; null states nothing, false a zero.

    Args:
        values: By name.
        names: Those to check.
        where: How errors name the source.
        least: The least that is allowed.
        most: The most.

    Raises:
        ConfigError: One is no whole number, or out of range.
    """
    for name in names:
        value = values.get(name)
        if value is None or (value is False and least < 1):
            continue
        if type(value) is not int or value < least:
            raise ConfigError(
                f"{value!r:.60} is no count",
                where=f"{where}: {name}",
                remedy=f"Write a whole number, {least} or more",
            )
        if value > most:
            raise ConfigError(
                f"{value!r:.60} is too large",
                where=f"{where}: {name}",
                remedy=f"Write {most} or less",
            )


def check_switches(values: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    """Refuse what is to be true or false and is neither.

    Raises:
        ConfigError: One is of another type.
    """
    for name in names:
        value = values.get(name)
        if value is not None and not isinstance(value, bool):
            raise ConfigError(
                f"{value!r:.60} is neither true nor false",
                where=f"{where}: {name}",
                remedy="Write true or false",
            )


def check_lists(values: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    """Refuse what is to be a list of whole numbers, words or switches, and holds anything else.

    Raises:
        ConfigError: One is no list, or a part of it is null, a list or a map.
    """
    for name in names:
        value = values.get(name)
        is_list = isinstance(value, list | tuple)
        if value is not None and not (
            is_list and all(isinstance(one, int | str | bool) for one in value)
        ):
            raise ConfigError(
                f"{value!r:.60} is no list",
                where=f"{where}: {name}",
                remedy="Write a list, or leave it out",
            )
