"""One SQLite export of Nsight Systems, read as columns of integers and texts.

Tables are created by the exporter only when they have rows, and gain and lose columns
between its versions, so every table and column may be missing. Values of SQLite have
types of their own: what is no integer where one is expected counts as missing.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.printable import printable

from ...wording.message import Text, message
from ..files import DAMAGED_SQLITE, InputFile

IntArray = npt.NDArray[np.int64]
MISSING = -1
"""What stands for a value that is null, of another type, or in a missing column."""

_HEX = re.compile(r"(?:[0-9a-fA-F]{2})+")
_ROWS = 1 << 16
_LATEST_NS = 1 << 62
_LEAST_ROW_BYTES = 4
"""A row of a table takes at least so much of a file: more rows than that are a loop in it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one table that have a start and an end."""

    columns: Mapping[str, IntArray]
    lost: int
    """Rows without a start or an end."""

    def __len__(self) -> int:
        return len(self.columns["start"])


class Database:
    """Reads one export; nothing in it is executed or written.

    Views and virtual tables are not looked at, as reading those runs what the file says.

    Args:
        file: A file on disk that was recognised as an export.

    Raises:
        TraceFormatError: It is packed, or cannot be opened.
    """

    def __init__(self, file: InputFile) -> None:
        self.label = file.label
        if file.is_packed():
            raise TraceFormatError(
                message("refused.packed_sqlite"),
                where=file.label,
                remedy=message("advice.unpack_first"),
            )
        self._most_rows = file.path.stat().st_size // _LEAST_ROW_BYTES
        uri = f"{file.path.resolve().as_uri()}?mode=ro&immutable=1"
        with self._errors():
            self._connection = sqlite3.connect(uri, uri=True)
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._connection.text_factory = _text
            found = self._connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'"
            )
            self._columns = {str(name): self._column_names(name) for (name,) in found.fetchall()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def first_of(self, table: str, *names: str) -> str:
        """Return the first of these columns that the table has, the last one if it has none."""
        return next((name for name in names if name in self._columns.get(table, ())), names[-1])

    def has(self, table: str) -> bool:
        """Return whether there is such a table."""
        return table in self._columns

    def events(self, table: str, names: Sequence[str]) -> Rows:
        """Return the rows of a table that have times as ``start`` and ``end``.

        Args:
            table: Its name; one that is missing has no rows.
            names: Columns of integers beside ``start`` and ``end``.

        Raises:
            TraceFormatError: The file is damaged.
        """
        columns = self.integers(table, ("start", "end", *names))
        timed = is_time(columns["start"]) & is_time(columns["end"])
        lost = int((~timed).sum())
        if lost:
            columns = {name: column[timed] for name, column in columns.items()}
        return Rows(columns, lost)

    def integers(self, table: str, names: Sequence[str]) -> dict[str, IntArray]:
        """Return columns of integers, with ``MISSING`` for what is none.

        Raises:
            TraceFormatError: The file is damaged.
        """
        has = self._columns.get(table, ())
        wanted = [
            f'CASE WHEN typeof("{name}") = \'integer\' THEN "{name}" ELSE {MISSING} END'
            if name in has
            else str(MISSING)
            for name in names
        ]
        parts = [
            np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * len(names))
            for rows in self._select(table, wanted)
        ]
        whole = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        whole = whole.reshape(-1, len(names))
        return {name: np.ascontiguousarray(whole[:, i]) for i, name in enumerate(names)}

    def texts(self, table: str, name: str) -> tuple[IntArray, list[str]]:
        """Return a column of texts as codes, and the distinct texts; null is the empty text.

        Raises:
            TraceFormatError: The file is damaged.
        """
        has = name in self._columns.get(table, ())
        wanted = f"CASE WHEN typeof(\"{name}\") = 'text' THEN \"{name}\" ELSE '' END"
        code_of: dict[str, int] = {}
        parts: list[IntArray] = []
        for rows in self._select(table, [wanted if has else "''"]):
            texts = np.empty(len(rows), dtype=object)
            texts[:] = [text for (text,) in rows]
            codes, distinct = pd.factorize(texts)
            known = [code_of.setdefault(text, len(code_of)) for text in distinct]
            parts.append(np.array(known, dtype=np.int64)[codes])
        return (np.concatenate(parts) if parts else np.empty(0, np.int64)), list(code_of)

    def pairs(self, table: str, key: str, value: str) -> list[tuple[object, object]]:
        """Return two columns as they are; nothing where one of them is missing.

        Raises:
            TraceFormatError: The file is damaged.
        """
        if not {key, value} <= set(self._columns.get(table, ())):
            return []
        wanted = [f'"{key}"', f'"{value}"']
        return [(one, other) for rows in self._select(table, wanted) for one, other in rows]

    def blobs(self, table: str, name: str) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes of a column with their positions in the table; texts are hexadecimal.

        Raises:
            TraceFormatError: The file is damaged.
        """
        if name not in self._columns.get(table, ()):
            return
        row = 0
        for rows in self._select(table, [f'"{name}"']):
            for (value,) in rows:
                if isinstance(value, bytes) and value:
                    yield row, value
                elif isinstance(value, str) and _HEX.fullmatch(value):
                    yield row, bytes.fromhex(value)
                row += 1

    def strings(self, wanted: IntArray) -> dict[int, str]:
        """Return the texts of the interned strings that are wanted, by their ids.

        Raises:
            TraceFormatError: The file is damaged.
        """
        ids = set(np.unique(wanted).tolist())
        found: dict[int, str] = {}
        if not {"id", "value"} <= set(self._columns.get("StringIds", ())):
            return found
        for rows in self._select("StringIds", ["id", "value"]):
            found |= {key: str(text) for key, text in rows if isinstance(key, int) and key in ids}
        return found

    def _select(self, table: str, expressions: Sequence[str]) -> Iterator[list[tuple[object, ...]]]:
        if table not in self._columns:
            return
        query = f'SELECT {", ".join(expressions)} FROM "{table}"'
        seen = 0
        with self._errors():
            cursor = self._connection.execute(query)
            while rows := cursor.fetchmany(_ROWS):
                seen += len(rows)
                if seen > self._most_rows:
                    raise self._damage(message("defect.too_many_rows", table=table))
                yield rows

    def _column_names(self, table: str) -> tuple[str, ...]:
        """Return the columns that are stored; those that SQLite would compute are left out."""
        quoted = table.replace('"', '""')
        return tuple(row[1] for row in self._connection.execute(f'PRAGMA table_info("{quoted}")'))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except DAMAGED_SQLITE as error:
            raise self._damage(printable(str(error))) from error

    def _damage(self, reason: Text) -> TraceFormatError:
        return TraceFormatError(
            message("refused.sqlite_export", reason=reason),
            where=self.label,
            remedy=message("advice.export_sqlite_again"),
        )


def is_time(values: IntArray) -> npt.NDArray[np.bool_]:
    """Return which values can be a time, ns; those of two centuries and more are damage."""
    in_range: npt.NDArray[np.bool_] = (values != MISSING) & (np.abs(values) < _LATEST_NS)
    return in_range


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
