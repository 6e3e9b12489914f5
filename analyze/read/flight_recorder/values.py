"""Values of a dump as plain numbers and texts, and what its shapes and types amount to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshscope.probe.schema.imported_tables import ELEMENTS
from meshscope.probe.schema.terms import CollectiveKind

from ..kernel_names import item_bytes
from ..kineto.events import to_int as integer

_MOST_TENSORS = 4096
"""Of one call: a damaged dump must not take minutes."""
_MOST_DIMS = 64


def to_number(value: object, *, bits: int = 64) -> int:
    """Return a number, which JSON may hold as text; -1 where it is none.

    The text of a container is not looked at: shared parts may make it endless.
    """
    return integer(value, bits=bits) if isinstance(value, int | str) else -1


def to_text(value: object) -> str:
    """Return a text, empty where it is none."""
    return value if isinstance(value, str) else ""


def to_stamp(value: object) -> int | None:
    """Return a time; None where there is none (JSON writes 0)."""
    time_ns = to_number(value)
    return time_ns if time_ns > 0 else None


def to_list(value: object) -> list[Any]:
    """Return a list, empty where it is none."""
    return list(value) if isinstance(value, list | tuple) else []


def to_dict(value: object) -> dict[Any, Any]:
    """Return a mapping, empty where it is none."""
    return value if isinstance(value, dict) else {}


def size_of(shapes: Sequence[Any], dtypes: Sequence[Any]) -> int:
    """Return the bytes of all tensors of one side; 0 where the dump does not tell."""
    total = 0
    for at, shape in enumerate(shapes[:_MOST_TENSORS]):
        total += _items(shape) * item_bytes(to_text(dtypes[min(at, len(dtypes) - 1)]))
    return min(total, 1 << 62)


def elements_of(shapes: Sequence[Any]) -> int:
    """Return the elements of all tensors of one side."""
    return min(sum(map(_items, shapes[:_MOST_TENSORS])), 1 << 62)


def _items(shape: object) -> int:
    items = 1
    for length in to_list(shape)[:_MOST_DIMS]:
        items = min(items * max(to_number(length, bits=48), 0), 1 << 53)
    return items


def splits_of(kind: CollectiveKind, entry: Mapping[str, Any], side: str) -> str | None:
    """Return the bytes of each tensor of one side; None where one tensor stands for all members, or a type is unknown.

    Dumps that keep no types at all give the elements, also of one tensor.
    """
    shapes = to_list(entry.get(f"{side}_sizes"))
    dtypes = to_list(entry.get(f"{side}_dtypes"))
    if kind is not CollectiveKind.ALL_TO_ALL or not 1 <= len(shapes) <= _MOST_TENSORS:
        return None
    if not dtypes:
        return " ".join([*(str(_items(one)) for one in shapes), ELEMENTS])
    if len(shapes) == 1 or not all(item_bytes(to_text(dtype)) for dtype in dtypes):
        return None  # It would have no bytes, unlike what its peers expect.
    sizes = [size_of([one], [dtypes[min(at, len(dtypes) - 1)]]) for at, one in enumerate(shapes)]
    return " ".join(map(str, sizes))
