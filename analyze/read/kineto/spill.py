"""Columns of the events of one file on disk, a batch at a time.

A large file has millions of operators, and which step or kernel they belong to is known
only when all of it was read. Meanwhile their numbers wait in a nameless temporary
file, which vanishes with the process, however that ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Columns = dict[str, npt.NDArray[Any]]

_IN_MEMORY_BYTES = 4 << 20
"""What smaller files have to spill stays in memory."""
_LEAST_ROWS = 1 << 16
"""Rows that are read back at once, unless there are fewer."""


class ColumnSpill:
    """Rows of numeric columns, appended in batches and read back in their order.

    Args:
        types: Names of the columns and what they hold.
        folder: Where the temporary file is made; the system's folder if not given.
    """

    def __init__(self, types: Mapping[str, np.dtype[Any]], folder: Path | None) -> None:
        self._types = dict(types)
        # Closed with this object: there is no scope that it could be bound to.
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115
            _IN_MEMORY_BYTES, dir=None if folder is None else str(folder)
        )
        self._batches: list[int] = []

    def __len__(self) -> int:
        return sum(self._batches)

    def add(self, rows: Mapping[str, npt.NDArray[Any]]) -> None:
        """Append one batch.

        Raises:
            OSError: The disk is full.
        """
        for name, kind in self._types.items():
            self._file.write(np.asarray(rows[name], dtype=kind).tobytes())
        self._batches.append(len(next(iter(rows.values()))))

    def close(self) -> None:
        """Give the space back."""
        self._file.close()

    def read(self) -> Iterator[Columns]:
        """Yield all rows in pieces of bounded size."""
        self._file.seek(0)
        held: list[Columns] = []
        rows = 0
        for count in self._batches:
            held.append({name: self._column(kind, count) for name, kind in self._types.items()})
            rows += count
            if rows >= _LEAST_ROWS:
                yield self._joined(held)
                held, rows = [], 0
        if held:
            yield self._joined(held)

    def _column(self, kind: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        return np.frombuffer(self._file.read(kind.itemsize * count), kind)

    def _joined(self, parts: list[Columns]) -> Columns:
        return {name: np.concatenate([part[name] for part in parts]) for name in self._types}
