"""How plain values become settings: converted, checked, refused with the field and the remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from math import isnan
from sys import float_info
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

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


_T = TypeVar("_T")

_WANTED = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
}


def typed(raw: object, target: type[_T], *, where: str = "", strict: bool = True) -> _T:
    """Return plain values as a dataclass.

    Args:
        raw: Tables, lists and values.
        target: The dataclass.
        where: What messages put before the name of the setting.
        strict: Refuse texts that stand for numbers.

    Raises:
        ConfigError: A value has another type than its setting.
    """
    try:
        return msgspec.convert(raw, target, strict=strict)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        field = path.strip("`").removeprefix("$").removeprefix(".")
        raise ConfigError(
            message("refused.reason", reason=what.lower()),
            where=": ".join(filter(None, (where, field))),
            remedy=_remedy(_type_of(target, re.sub(r"\[.*?\]", ".0", field).split("."))),
        ) from error


def _type_of(target: Any, path: Sequence[str]) -> Any:
    """Return the type of a setting; None where there is none.

    Args:
        target: Type of a table or a list around it.
        path: Names from there to the setting; any number stands for an entry of a list.
    """
    if not path or path == [""]:
        return target
    if is_dataclass(target):
        return _type_of(get_type_hints(target).get(path[0]), path[1:])
    return _type_of(get_args(target)[0], path[1:]) if get_origin(target) is tuple else None


def _remedy(target: Any) -> Message | str:
    """Return what to write for a type; empty where it says too little."""
    if get_origin(target) is Literal:
        return message("advice.choose_wanted", wanted=_wanted(target))
    wanted = _wanted(target)
    return message("advice.write_wanted", wanted=wanted) if wanted else ""


def _wanted(target: Any) -> str:
    """Return in words what a type takes."""
    if get_origin(target) is Literal:
        return f"one of {', '.join(str(choice) for choice in get_args(target) if choice != '')}"
    if get_origin(target) is tuple:
        tables = is_dataclass(get_args(target)[0])
        return "one [[table]] for each, in two brackets" if tables else "a list, as [3, 1]"
    if get_origin(target) in (Union, UnionType):
        return ", or ".join(filter(None, map(_wanted, get_args(target))))
    if is_dataclass(target):
        return "a table of settings"
    return _WANTED.get(target, "")
