"""Large tables that stay on disk, one Parquet file a rank or segment, and are read rank by rank.

A capture of many ranks has more kernels and operators than fit in memory, so no
analysis may hold those of all ranks. Changes to such a table, such as the
correction of a clock, are kept beside it and applied to each rank as it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from meshscope.probe.schema.columns import TableSpec
from meshscope.probe.schema.errors import RunDirectoryError
from meshscope.probe.schema.tables import TABLES

from ..wording.message import message
from .one_piece import NUMBERS_AND_NAMES, UnreadableFileError, read_in_one_piece
from .parquet_file import to_read, to_write

STORED = ("kernel", "op", "runtime_call", "annotation", "python_call")
"""Tables with one row for every event of a profiler."""

RankChange = Callable[[int, pa.Table], pa.Table]
"""From a rank and its rows to the rows that count instead, as many and in the same order."""


@dataclass(frozen=True, slots=True)
class StoredTable:
    """One table in files, of each rank that has rows."""

    name: str
    files: Mapping[int, Path]
    """Where the rows of each rank are."""
    rows: Mapping[int, int]
    """Number of rows of each rank."""
    changes: tuple[RankChange, ...] = ()
    """Applied in this order to each rank as it is read."""
    owner: object = None
    """Removes the files when nothing refers to it any more; None where they stay."""
    shared: Collection[int] = ()
    """Ranks whose file has rows of others, too."""

    @property
    def num_rows(self) -> int:
        """Return the number of rows of all ranks."""
        return sum(self.rows.values())

    def read(self, rank: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of one rank; none where it has no file.

        Args:
            rank: The rank.
            columns: Columns that are wanted, all if not given.

        Raises:
            RunDirectoryError: The file is missing or damaged.
        """
        spec = TABLES[self.name]
        wanted = spec if columns is None else _some(spec, columns)
        if rank not in self.files:
            return wanted.empty()
        # A change may need columns that the caller does not.
        selection = Selection(ranks={rank} if rank in self.shared else None)
        table = _read(self.files[rank], spec if self.changes else wanted, selection)
        for change in self.changes:
            table = change(rank, table)
        return table if columns is None else table.select(list(columns))

    def whole(self) -> pa.Table:
        """Return the rows of all ranks: for small captures, and where there is no other way."""
        parts = [self.read(rank) for rank in sorted(self.files)]
        if not parts:
            return TABLES[self.name].empty()
        return pa.concat_tables(parts).unify_dictionaries().combine_chunks()

    def changed(self, change: RankChange) -> StoredTable:
        """Return the table with one more change to be applied to each rank."""
        return replace(self, changes=(*self.changes, change))


class Tables(Mapping[str, pa.Table]):
    """Tables by name, of which some are read from disk each time they are asked for as a whole.

    Args:
        held: Tables in memory.
        stored: Tables on disk.
        again: How a table in memory is read again, of those that may be let go.
    """

    def __init__(
        self,
        held: Mapping[str, pa.Table],
        stored: Mapping[str, StoredTable] | None = None,
        again: Mapping[str, Callable[[], pa.Table]] | None = None,
    ) -> None:
        self._held: dict[str, pa.Table | None] = dict(held)
        self._stored = dict(stored or {})
        self._again = dict(again or {})
        self._rows = {name: held[name].num_rows for name in self._again}

    def __getitem__(self, name: str) -> pa.Table:
        if name in self._stored:
            return self._stored[name].whole()
        held = self._held[name]
        if held is None:
            held = self._held[name] = self._again[name]()
        return held

    def __iter__(self) -> Iterator[str]:
        names = self._held.keys() | self._stored.keys()
        yield from (name for name in TABLES if name in names)
        yield from (name for name in self._held if name not in TABLES)

    def __len__(self) -> int:
        return len(self._held.keys() | self._stored.keys())

    def stored(self, name: str) -> StoredTable | None:
        """Return a table that is on disk; None where it is in memory or absent."""
        return self._stored.get(name)

    def row_count(self, name: str) -> int:
        """Return how many rows a table has, 0 where it is absent; nothing is read for it."""
        if name in self._stored:
            return self._stored[name].num_rows
        if name in self._rows:
            return int(self._rows[name])
        held = self._held.get(name)
        return 0 if held is None else int(held.num_rows)

    def let_go(self, name: str) -> None:
        """Hold a table no longer that can be read again; it is when it is asked for the next time."""
        if name in self._again:
            self._held[name] = None

    def with_changes(self, changes: Mapping[str, pa.Table | StoredTable]) -> Tables:
        """Return the tables with some of them replaced; the others are not read."""
        held = {name: t for name, t in changes.items() if not isinstance(t, StoredTable)}
        stored = {name: t for name, t in changes.items() if isinstance(t, StoredTable)}
        found = Tables(
            {name: t for name, t in self._held.items() if name not in stored} | held,
            {name: t for name, t in self._stored.items() if name not in held} | stored,
        )
        found._again = {name: read for name, read in self._again.items() if name not in changes}
        found._rows = {name: self._rows[name] for name in found._again}
        return found


def let_go(tables: Mapping[str, pa.Table], name: str) -> None:
    """Hold a table no longer, where its file stays: what is wanted of it was taken out."""
    if isinstance(tables, Tables):
        tables.let_go(name)


def write_table(file: Path, name: str, parts: Iterable[pa.Table]) -> None:
    """Write one table as Parquet; of its parts one is in memory at a time.

    Integers are stored as differences: times grow by little from row to row.

    Raises:
        OSError: It cannot be written.
    """
    schema = TABLES[name].arrow_schema()
    kinds = {field.name: field.type for field in schema}
    texts = [name for name, kind in kinds.items() if not pa.types.is_primitive(kind)]
    integers = [name for name, kind in kinds.items() if pa.types.is_integer(kind)]
    with (
        to_write(file) as sink,
        pq.ParquetWriter(
            sink,
            schema,
            compression="zstd",
            use_dictionary=texts,
            column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        ) as writer,
    ):
        for part in parts:
            writer.write_table(part)


def open_stored(
    name: str,
    files: Mapping[int, Path],
    *,
    owner: object = None,
    shared_rows: Mapping[int, int] | None = None,
) -> StoredTable:
    """Return a table in files; of each file only the footer is read.

    Args:
        name: The table.
        files: The file of each rank.
        owner: Removes the files when nothing refers to the table any more.
        shared_rows: Rows of the ranks whose file has rows of others, too.

    Raises:
        RunDirectoryError: A file is missing or damaged.
    """
    shared = shared_rows or {}
    held = {file: _row_count(file) for file in set(files.values())}
    rows = {rank: shared[rank] if rank in shared else held[file] for rank, file in files.items()}
    return StoredTable(name, dict(files), rows, owner=owner, shared=frozenset(shared))


class Selection(NamedTuple):
    """Which rows of a table are read."""

    ranks: Set[int] | None = None
    """Of which ranks; None for all. Row groups of others alone are not read."""
    steps: tuple[int, int] | None = None
    """First and last step; None for all, and for what is of no step too."""


ALL_ROWS = Selection()


def read_tables(spec: TableSpec, files: Sequence[Path], wanted: Selection = ALL_ROWS) -> pa.Table:
    """Return the rows of several files of one table.

    Args:
        spec: The table.
        files: Where it lies.
        wanted: Which rows are read.

    Raises:
        RunDirectoryError: A file is missing or damaged.
    """
    if not files:
        return spec.empty()
    dtypes = {column.name: column.dtype for column in spec.columns}
    if len(files) == 1 or wanted != ALL_ROWS or not NUMBERS_AND_NAMES.issuperset(dtypes.values()):
        return pa.concat_tables([_read(file, spec, wanted) for file in files]).unify_dictionaries()
    try:
        return spec.conform(read_in_one_piece(files, dtypes))
    except UnreadableFileError as error:
        raise _damaged(error.file, error.reason) from error


def _read(file: Path, spec: TableSpec, selection: Selection = ALL_ROWS) -> pa.Table:
    try:
        with to_read(file) as source, pq.ParquetFile(source) as parquet:
            there = parquet.schema_arrow.names
            columns = [column.name for column in spec.columns if column.name in there]
            if selection.ranks is None or "rank" not in there:
                selection = selection._replace(ranks=None)
            if selection.steps is None or "step" not in there:
                selection = selection._replace(steps=None)
            if selection == ALL_ROWS:
                table = parquet.read(columns=columns)
            else:
                table = _read_some(parquet, columns, selection)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(file, error) from error
    return spec.conform(table.unify_dictionaries().combine_chunks())


def _read_some(parquet: pq.ParquetFile, columns: Sequence[str], selection: Selection) -> pa.Table:
    """Return some rows; a row group whose bounds exclude all ranks is passed over."""
    parts = []
    for group in range(parquet.num_row_groups):
        found = _ranks_of(parquet, group, selection.ranks)
        if found is _Ranks.NONE:
            continue
        by_rank = selection.ranks is not None and found is _Ranks.SOME
        keys = [*(["rank"] if by_rank else []), *(["step"] if selection.steps else [])]
        rows = parquet.read_row_group(group, columns=list(dict.fromkeys([*columns, *keys])))
        if by_rank and selection.ranks is not None:
            ranks = pa.array(sorted(selection.ranks), pa.int32())
            rows = rows.filter(pc.is_in(rows["rank"], value_set=ranks))
        if selection.steps is not None:
            step, (first, last) = pc.cast(rows["step"], pa.int64()), selection.steps
            rows = rows.filter(pc.and_(pc.greater_equal(step, first), pc.less_equal(step, last)))
        parts.append(rows.select(list(columns)))
    if not parts:
        return parquet.schema_arrow.empty_table().select(list(columns))
    return pa.concat_tables(parts)


class _Ranks(Enum):
    """How many of the ranks in the bounds of a row group are wanted."""

    NONE = 0
    SOME = 1
    ALL = 2


def _ranks_of(parquet: pq.ParquetFile, group: int, wanted: Set[int] | None) -> _Ranks:
    if wanted is None:
        return _Ranks.ALL
    place = parquet.schema_arrow.names.index("rank")
    bounds = parquet.metadata.row_group(group).column(place).statistics
    if bounds is None or not bounds.has_min_max:
        return _Ranks.SOME
    count = sum(bounds.min <= rank <= bounds.max for rank in wanted)
    if not count:
        return _Ranks.NONE
    return _Ranks.ALL if count == bounds.max - bounds.min + 1 else _Ranks.SOME


def rows_of_ranks(file: Path) -> dict[int, int]:
    """Return how many rows of a file each rank has; nothing but the ranks is read.

    Raises:
        RunDirectoryError: It cannot be read.
    """
    try:
        with to_read(file) as source, pq.ParquetFile(source) as parquet:
            counts = pc.value_counts(parquet.read(columns=["rank"])["rank"])
    except (OSError, pa.ArrowException) as error:
        raise _damaged(file, error) from error
    return {one["values"]: one["counts"] for one in counts.to_pylist()}


def rows_of_steps(file: Path) -> dict[tuple[int, int], int]:
    """Return how many rows of a file each rank has in each step, -1 for none; nothing but these two is read.

    Raises:
        RunDirectoryError: It cannot be read.
    """
    try:
        with to_read(file) as source, pq.ParquetFile(source) as parquet:
            counts = parquet.read(columns=["rank", "step"]).group_by(["rank", "step"])
            found = counts.aggregate([([], "count_all")]).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise _damaged(file, error) from error
    return {
        (one["rank"], -1 if one["step"] is None else one["step"]): one["count_all"] for one in found
    }


def _row_count(file: Path) -> int:
    try:
        return int(pq.read_metadata(to_read(file)).num_rows)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> RunDirectoryError:
    return RunDirectoryError(
        message("refused.damaged_table", table=file.parent.name, reason=str(error).rstrip(".")),
        where=str(file),
        remedy=message("advice.ingest_source_again"),
    )


def _some(spec: TableSpec, columns: Sequence[str]) -> TableSpec:
    by_name = {column.name: column for column in spec.columns}
    return TableSpec(spec.name, spec.row, tuple(by_name[name] for name in columns))
