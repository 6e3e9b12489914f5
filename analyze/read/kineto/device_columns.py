"""Columns that only the activities of a device have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from meshscope.probe.schema.terms import KernelCategory

from ..kernel_names import CATEGORY_OF_EVENT
from .events import EventArgs, to_floats, to_integers

_WAITS = ("wait_stream", "wait_correlation")
_BYTES_PER_GB = 1e9
_MOST_BLOCKS = 1 << 62


def transfer_columns(role: str, args: Sequence[EventArgs]) -> dict[str, Any]:
    """Return what only copies, memory sets and synchronisation rows have."""
    count = len(args)
    columns: dict[str, Any] = {name: np.full(count, -1) for name in _WAITS}
    columns |= {"size_bytes": np.full(count, -1), "rate_bytes_per_s": np.full(count, np.nan)}
    category = CATEGORY_OF_EVENT.get(role, KernelCategory.UNKNOWN)
    if category in (KernelCategory.MEMCPY, KernelCategory.MEMSET):
        columns["size_bytes"] = to_integers([a.size_bytes for a in args])
        columns["rate_bytes_per_s"] = to_floats([a.rate_gb_per_s for a in args]) * _BYTES_PER_GB
    if category == KernelCategory.SYNC:
        columns |= {name: to_integers([getattr(a, name) for a in args]) for name in _WAITS}
    return columns


class Blocks(dict[bytes, int]):
    """The number of thread blocks of each grid, by its text; -1 where it is no list of numbers."""

    def __missing__(self, text: bytes) -> int:
        sizes = [int(size) for size in re.findall(rb"\d{1,10}", text)]
        self[text] = min(prod(sizes), _MOST_BLOCKS) if sizes else -1
        return self[text]
