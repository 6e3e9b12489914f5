"""What an all-to-all carries between each pair of members, from the arguments of its call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .operators import Args

_Sizes = tuple[list[int], list[int]]
"""Bytes to each member, and from each."""


def _of_lists(args: Args, _members: int) -> _Sizes:
    return [one.nbytes for one in args[1]], [one.nbytes for one in args[0]]


def _of_tensors(args: Args, members: int) -> _Sizes:
    return _parts(args[1], args[4], members), _parts(args[0], args[3], members)


def _parts(tensor: Any, rows: Any, members: int) -> list[int]:
    """Return the bytes of each part of a tensor that is split along its first dimension."""
    size_bytes = tensor.nbytes
    if not rows:
        return [size_bytes // members] * members
    row_bytes = size_bytes // tensor.shape[0] if size_bytes else 0
    return [count * row_bytes for count in rows]


PAIR_SIZES: dict[str, Callable[[Args, int], _Sizes]] = {
    "alltoall_": _of_lists,
    "alltoall_base_": _of_tensors,
}
"""By operator: takes the arguments of a call and the number of members."""
