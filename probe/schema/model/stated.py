"""Values of a model's source, checked where they come in: files of strangers hold anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...schema.message import message
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
                message("refused.no_count", value=value),
                where=f"{where}: {name}",
                remedy=message("advice.whole_number_from", least=least),
            )
        if value > most:
            raise ConfigError(
                message("refused.value_too_large", value=value),
                where=f"{where}: {name}",
                remedy=message("advice.write_at_most", most=most),
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
                message("refused.no_boolean", value=value),
                where=f"{where}: {name}",
                remedy=message("advice.switch"),
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
                message("refused.value_no_list", value=value),
                where=f"{where}: {name}",
                remedy=message("advice.write_list"),
            )
