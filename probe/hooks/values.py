"""What calls are given and return, one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def tensors_of(given: Any) -> Iterator[Any]:
    """Return the tensors of a mapping, a sequence or a single value."""
    values: Iterable[Any] = (given,)
    if isinstance(given, Mapping):
        values = given.values()
    elif isinstance(given, tuple | list):
        values = given
    return (value for value in values if hasattr(value, "requires_grad"))
