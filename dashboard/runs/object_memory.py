"""How much memory Python objects hold: whatever they refer to, each buffer once."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any, cast

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa

_SAMPLE = 512
"""So many elements of a long list stand for all of them."""
_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Parameters of ``mallopt`` in glibc."""
_SHARED = (type, ModuleType, FunctionType, int, float, bool, type(None))
"""What takes no memory of its own worth counting, or belongs to the program."""


def held_bytes(*objects: Any) -> int:
    """Return about how many bytes objects hold together.

    Buffers of arrays and tables are counted exactly, and once however many views there are. Of long lists,
    and of columns of Python objects, a sample stands for all.
    """
    return sum(held_each(objects))


def held_each(objects: Iterable[Any]) -> list[int]:
    """Return the same of each object, without what one before it holds."""
    return list(map(round, map(_Walk().size, objects)))


def waste_little() -> None:
    """Have the C library of this process give large arrays back at once, and not keep some for each thread.

    A server of many threads would else hold twice what its runs take. Elsewhere than on Linux nothing happens.
    Tables come from the C library too: the pool that Arrow has by default keeps as much again as is in use.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_ARENA_MAX, 2)
        library.mallopt(_MMAP_THRESHOLD, 4 << 20)


class _Walk:
    """One look at all that some objects refer to."""

    def __init__(self) -> None:
        # By id, with the object itself: of what is made on the way another one could else get the id.
        self._seen: dict[int, Any] = {}
        self._buffers: set[int] = set()

    def size(self, value: Any) -> float:
        """Return the bytes of a value that were not counted yet."""
        if isinstance(value, _SHARED) or not self._is_new(value):
            return 0.0
        if isinstance(value, (str, bytes)):
            return sys.getsizeof(value)
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, (pd.DataFrame, pd.Series, pd.Index)):
            return self._frame(value)
        if isinstance(value, (pa.Table, pa.ChunkedArray, pa.Array, pa.RecordBatch)):
            return self._arrow(value)
        if isinstance(value, Mapping):
            own = sys.getsizeof(value)
            # A copy: another thread may add to it.
            return own + self._elements(list(value)) + self._elements(list(value.values()))
        if isinstance(value, (list, tuple, set, frozenset)):
            return sys.getsizeof(value) + self._elements(list(value))
        return self._members(value)

    def _is_new(self, value: Any) -> bool:
        is_new = id(value) not in self._seen
        self._seen[id(value)] = value
        return is_new

    def _elements(self, values: Collection[Any]) -> float:
        every = max(1, len(values) // _SAMPLE)
        return every * sum(map(self.size, islice(values, 0, None, every)))

    def _members(self, value: Any) -> float:
        if isinstance(value, msgspec.Struct):
            return 64 + sum(self.size(getattr(value, name)) for name in value.__struct_fields__)
        if is_dataclass(value):
            return 64 + sum(self.size(getattr(value, one.name, None)) for one in fields(value))
        return 64 + self.size(getattr(value, "__dict__", None))

    def _array(self, array: np.ndarray[Any, Any]) -> float:
        base: Any = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        if base is not array and not self._is_new(base):
            return 0.0
        if base.dtype.kind != "O":
            # Of memory that is not NumPy's the owner is counted, where it is held at all.
            return float(base.nbytes)
        flat = base.reshape(-1)
        return float(base.nbytes) + self._elements(flat)

    def _frame(self, value: Any) -> float:
        if isinstance(value, pd.DataFrame):
            parts = [value.index, *(value[name] for name in value.columns)]
        elif isinstance(value, pd.Series):
            parts = [value.index, cast(Any, value.array)]
        elif isinstance(value, pd.RangeIndex):
            return 0.0
        else:
            parts = [value.array]
        return sum(map(self._part, parts))

    def _part(self, part: Any) -> float:
        if isinstance(part, (pd.Series, pd.Index)):
            return self._frame(part)
        if isinstance(part, pd.Categorical):
            return self.size(part.codes) + self._frame(part.categories)
        arrays = [getattr(part, name, None) for name in ("_ndarray", "_data", "_mask", "_pa_array")]
        return sum(map(self.size, arrays))

    def _arrow(self, value: Any) -> float:
        if isinstance(value, (pa.Table, pa.RecordBatch)):
            return sum(map(self._arrow, value.columns))
        if isinstance(value, pa.ChunkedArray):
            return sum(map(self._arrow, value.chunks))
        found = 0.0
        own = [*value.buffers(), *(value.dictionary.buffers() if _has_dictionary(value) else ())]
        for buffer in filter(None, own):
            if buffer.address not in self._buffers:
                self._buffers.add(buffer.address)
                found += buffer.size
        return found


def _has_dictionary(array: pa.Array) -> bool:
    return bool(pa.types.is_dictionary(array.type))
