"""A table of several Parquet files with each column in one piece of memory.

Read file by file a table lies in thousands of pieces. What comes after it cannot use their memory once the
table is gone: it holds arrays of all ranks, each larger than any piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from meshscope.probe.schema.columns import arrow_type

from .parquet_file import to_read

NUMBERS_AND_NAMES = frozenset({"int8", "int16", "int32", "int64", "float64", "category"})
"""Declared types that can be read so."""
_ALIGNED = 64
"""Bytes on whose multiples columns begin."""


class UnreadableFileError(Exception):
    """One of the files cannot be read; which one, and why."""

    def __init__(self, file: Path, reason: Exception) -> None:
        super().__init__(str(reason))
        self.file, self.reason = file, reason


def read_in_one_piece(files: Sequence[Path], dtypes: Mapping[str, str]) -> pa.Table:
    """Return the rows of all files; a column that a file lacks is null there.

    Args:
        files: Where the table lies.
        dtypes: Declared types of its columns by name, of ``NUMBERS_AND_NAMES``.

    Raises:
        UnreadableFileError: A file is missing or damaged.
    """
    with ExitStack() as stack:
        opened = [(file, *_opened(file, stack)) for file in files]
        there = {name for *_, names in opened for name in names}
        rows = sum(parquet.metadata.num_rows for _, parquet, _ in opened)
        columns = _columns({name: kind for name, kind in dtypes.items() if name in there}, rows)
        at = 0
        for file, parquet, names in opened:
            try:
                wanted = [name for name in columns if name in names]
                part = parquet.read(columns=wanted)
                for name, column in columns.items():
                    if name in wanted:
                        column.fill(at, part[name])
                    else:
                        column.leave_out(at, part.num_rows)
            except (OSError, pa.ArrowException) as error:
                raise UnreadableFileError(file, error) from error
            at += part.num_rows
            del part
    return pa.table({name: columns.pop(name).whole() for name in list(columns)})


def _opened(file: Path, stack: ExitStack) -> tuple[pq.ParquetFile, frozenset[str]]:
    """Return a file and the names of its columns."""
    try:
        parquet = stack.enter_context(pq.ParquetFile(stack.enter_context(to_read(file))))
        return parquet, frozenset(parquet.schema_arrow.names)
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFileError(file, error) from error


def _columns(dtypes: Mapping[str, str], rows: int) -> dict[str, _Column]:
    """Return the columns, still empty, which lie in memory one after the other."""
    kinds = {name: arrow_type(dtype) for name, dtype in dtypes.items()}
    begins, end = {}, 0
    for name, kind in kinds.items():
        begins[name], end = end, end + -(-rows * _width(kind) // _ALIGNED) * _ALIGNED
    memory = np.zeros(end, np.uint8)
    return {
        name: _Column(kind, memory[begins[name] :][: rows * _width(kind)])
        for name, kind in kinds.items()
    }


def _width(kind: pa.DataType) -> int:
    """Return the bytes of one value."""
    return int((kind.index_type if pa.types.is_dictionary(kind) else kind).bit_width) // 8


class _Column:
    """One column, which is filled file by file."""

    def __init__(self, kind: pa.DataType, memory: npt.NDArray[np.uint8]) -> None:
        self._words: list[pa.Array] | None = [] if pa.types.is_dictionary(kind) else None
        """Those of each file so far; a row has the place of its word among all of them."""
        self._kind = kind if self._words is None else kind.index_type
        self._values = memory.view(self._kind.to_pandas_dtype())
        self._known: npt.NDArray[np.bool_] | None = None
        """Which values are not null; None where all are."""

    def fill(self, at: int, values: pa.ChunkedArray) -> None:
        """Put the values of a file into their place.

        Raises:
            pa.ArrowException: They are not of the declared type.
        """
        if self._words is not None:
            values = self._numbers(values, self._words)
        for chunk in values.chunks:
            place = slice(at, at + len(chunk))
            at += len(chunk)
            if chunk.null_count == len(chunk):
                self._mask()[place] = False
                continue
            own = chunk.cast(self._kind)
            if own.null_count:
                self._mask()[place] = own.is_valid().to_numpy(zero_copy_only=False)
                own = own.fill_null(0)
            self._values[place] = own.to_numpy()

    def leave_out(self, at: int, rows: int) -> None:
        """Have the values of a file unknown that lacks the column."""
        self._mask()[at : at + rows] = False

    def _mask(self) -> npt.NDArray[np.bool_]:
        if self._known is None:
            self._known = np.ones(len(self._values), dtype=bool)
        return self._known

    def _numbers(self, values: pa.ChunkedArray, words: list[pa.Array]) -> pa.ChunkedArray:
        """Return the place of the word of each row among those of all files."""
        if not pa.types.is_dictionary(values.type):
            values = values.cast(pa.string()).dictionary_encode()
        own = values.unify_dictionaries().chunks
        before = pa.scalar(sum(map(len, words)), self._kind)
        if own:
            words.append(own[0].dictionary.cast(pa.string()))
        return pa.chunked_array([pc.add(one.indices, before) for one in own], self._kind)

    def whole(self) -> pa.Array:
        """Return the column."""
        words = None if self._words is None else self._numbered(self._words)
        buffers = [None, pa.py_buffer(self._values)]
        if self._known is not None:
            buffers[0] = pa.py_buffer(np.packbits(self._known, bitorder="little"))
        found = pa.Array.from_buffers(self._kind, len(self._values), buffers)
        return found if words is None else pa.DictionaryArray.from_arrays(found, words)

    def _numbered(self, of_files: list[pa.Array]) -> pa.Array:
        """Return the different words of all files, and have each row number its own."""
        each = pa.concat_arrays(of_files) if of_files else pa.array([], pa.string())
        words = each.dictionary_encode(null_encoding="encode")
        if len(words):
            np.take(words.indices.to_numpy(), self._values, out=self._values)
        return words.dictionary
