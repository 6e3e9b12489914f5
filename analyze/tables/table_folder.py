"""The tables of a capture in a folder of Parquet files, the form in which they are kept.

``<table>/rank=00000.parquet`` holds the rows of one rank; a table without ranks is one
file, ``<table>/all.parquet``. Tables of more than 256 ranks are in segments of so many
(``segment_files``). A folder is made under a hidden name and gets its own
when it is whole, so nobody ever sees half of it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.reader.wanted import COUNTED
from meshscope.probe.schema.columns import TableSpec
from meshscope.probe.schema.errors import RunDirectoryError
from meshscope.probe.schema.manifest import DIRECTORY_MODE, FILE_MODE
from meshscope.probe.schema.tables import RUN, TABLES

from ..wording.message import message
from .segment_files import SegmentFile, SegmentList, read_list, write_held_segments, write_list
from .stored_tables import (
    STORED,
    Selection,
    StoredTable,
    Tables,
    open_stored,
    read_tables,
    rows_of_steps,
    write_table,
)
from .trace import Trace

FOLDER = "tables"
"""The folder in a run directory."""
DRAFT = ".draft-"
"""With what the name of a hidden folder begins in which something is made."""
_ALL = "all.parquet"
MOST_RANK_FILES = 256
"""With more ranks a table is in segments: opening files costs more than reading them."""
_RANK_FILE = re.compile(r"rank=(\d{5,9})\.parquet")


@contextmanager
def drafted(parent: Path, name: str = "") -> Iterator[Path]:
    """Give a hidden folder in another folder, and remove what is left of it afterwards.

    Drafts of programs that were killed are removed too: nobody holds their lock.

    Args:
        parent: The other folder.
        name: What is drafted. Drafts of other names are left alone: several may be made side by side.

    Raises:
        OSError: The folder cannot be written.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for old in parent.glob(f"{DRAFT}{name}*"):
        with suppress(OSError), _lock(old):
            shutil.rmtree(old, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix=f"{DRAFT}{name}", dir=parent))
    try:
        with _lock(draft):
            yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder.

    Raises:
        OSError: Another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def close_to_others(folder: Path) -> None:
    """Give a folder and all in it the modes of a run directory: for its user alone.

    Raises:
        OSError: One cannot be changed.
    """
    folder.chmod(DIRECTORY_MODE)
    for path in folder.rglob("*"):
        path.chmod(DIRECTORY_MODE if path.is_dir() else FILE_MODE)


def write_folder(trace: Trace, folder: Path) -> None:
    """Write the tables of a trace that have rows; large ones that are there already are moved.

    Raises:
        OSError: One cannot be written.
    """
    segments: dict[str, tuple[SegmentFile, ...]] = {}
    for name in dict.fromkeys([RUN.name, *trace.tables]):
        if name != RUN.name and not trace.row_count(name):
            shutil.rmtree(folder / name, ignore_errors=True)
            continue
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        if trace.stored(name) is not None:
            _write_ranks(trace, name, place)
        elif name == RUN.name:
            write_table(place / _ALL, name, [_run_table(trace)])
        elif (files := _write_held(trace.tables[name], name, place)) is not None:
            segments[name] = files
    if segments:
        write_list(folder, SegmentList(tables=segments))


def read_folder(
    folder: Path,
    *,
    only: Collection[int] | None = None,
    without: Collection[int] = (),
    steps: tuple[int, int] | None = None,
) -> Tables:
    """Open the tables in a folder; of the large ones only the footers are read.

    Args:
        folder: Where they are.
        only: Ranks that are read; None for all.
        without: Ranks of which nothing is read.
        steps: First and last step of which passes and communication are read; None for all.

    Raises:
        RunDirectoryError: A table cannot be read.
    """
    listed = read_list(folder).tables
    held, stored, again = {}, {}, {}
    for name, spec in TABLES.items():
        files = [
            file
            for file in _files_of(folder / name, listed.get(name))
            if file.ranks is None or any(_is_kept(rank, only, without) for rank in file.ranks)
        ]
        if name in STORED:
            stored[name] = _stored(name, files, only, without)
            continue
        wanted = Selection(
            ranks=None if only is None else frozenset(only),
            steps=steps if name in COUNTED else None,
        )
        paths = [file.path for file in files]
        held[name] = read_tables(spec, paths, wanted)
        if name in COUNTED and name in listed and not without:
            again[name] = partial(_read_again, spec, paths, wanted)
        if without and "rank" in held[name].column_names:
            is_left_out = pc.is_in(held[name]["rank"], value_set=pa.array(sorted(without)))
            held[name] = held[name].filter(pc.invert(is_left_out))
    return Tables(held, stored, again)


def stored_rows(folder: Path) -> Counter[int]:
    """Return how many rows the large tables have in each step, -1 for none, of the rank with the most there.

    Raises:
        RunDirectoryError: A table cannot be read.
    """
    listed, found = read_list(folder).tables, Counter[tuple[int, int]]()
    for name in STORED:
        for file in _files_of(folder / name, listed.get(name)):
            found.update(rows_of_steps(file.path))
    most = Counter[int]()
    for (_, step), rows in found.items():
        most[step] = max(most[step], rows)
    return most


def _read_again(spec: TableSpec, files: Sequence[Path], wanted: Selection) -> pa.Table:
    """Return a table that was read before.

    Raises:
        RunDirectoryError: It cannot be read any more.
    """
    try:
        return read_tables(spec, files, wanted)
    except RunDirectoryError as error:
        if all(file.exists() for file in files):
            raise
        raise RunDirectoryError(
            message("refused.gone_while_read", table=spec.name),
            where=str(files[0].parent),
            remedy=message("advice.read_again"),
        ) from error


def _stored(
    name: str, files: Sequence[_File], only: Collection[int] | None, without: Collection[int]
) -> StoredTable:
    kept = [
        (rank, file) for file in files for rank in file.ranks or () if _is_kept(rank, only, without)
    ]
    rows = {rank: file.ranks[rank] for rank, file in kept if file.ranks and file.is_shared}
    return open_stored(name, {rank: file.path for rank, file in kept}, shared_rows=rows)


def _is_kept(rank: int, only: Collection[int] | None, without: Collection[int]) -> bool:
    return rank not in without and (only is None or rank in only)


def damaged_ranks(folder: Path) -> dict[int, str]:
    """Return the ranks of which a file cannot be read, each with what is wrong with it."""
    found: dict[int, str] = {}
    listed = read_list(folder).tables
    for name, spec in TABLES.items():
        for file in _files_of(folder / name, listed.get(name)):
            if file.ranks and (damage := _damage(spec, file)) is not None:
                for rank in file.ranks:
                    found.setdefault(rank, damage)
    return found


def _damage(spec: TableSpec, file: _File) -> str | None:
    """Return what is wrong with a file of some ranks, None for nothing."""
    try:
        if spec.name in STORED:
            _stored(spec.name, [file], None, ())
        else:
            read_tables(spec, [file.path])
    except RunDirectoryError as error:
        return error.what
    return None


class _File(NamedTuple):
    """One file of a table."""

    path: Path
    ranks: Mapping[int, int] | None
    """Ranks that have rows in it, with their number (-1: not known); None where it may be any."""
    is_shared: bool


def _files_of(folder: Path, segments: Sequence[SegmentFile] | None) -> list[_File]:
    """Return the files of a table by rank; those of its segments alone, if it is in segments."""
    if segments is not None:
        return [_File(folder / one.name, one.rank_rows, is_shared=True) for one in segments]
    whole = folder / _ALL
    files = [_File(whole, None, is_shared=True)] if whole.exists() else []
    return files + [
        _File(file, {int(found[1]): -1}, is_shared=False)
        for file in sorted(folder.glob("*.parquet"))
        if (found := _RANK_FILE.match(file.name))
    ]


def _run_table(trace: Trace) -> pa.Table:
    row = {name: trace.run.get(name) for name in RUN.column_names()}
    return RUN.conform(pa.Table.from_pylist([row]))


def _write_ranks(trace: Trace, name: str, folder: Path) -> None:
    """Write or move the rows of each rank of a table on disk."""
    stored = trace.stored(name)
    if stored is None:
        return
    for rank, file in stored.files.items():
        place = folder / _file_name(rank)
        if not stored.changes and file.parent == folder:
            file.rename(place)
        elif stored.rows[rank]:
            write_table(place, name, [stored.read(rank)])
    # What is left is of ranks that are not part of the trace, or has changed.
    for file in folder.iterdir():
        if not _RANK_FILE.fullmatch(file.name):
            file.unlink()


def _write_held(table: pa.Table, name: str, folder: Path) -> tuple[SegmentFile, ...] | None:
    """Write a table in memory; return its segments, None where it is not in segments."""
    ranks = sorted(pc.unique(table["rank"]).to_pylist()) if "rank" in table.column_names else []
    if not ranks:
        write_table(folder / _ALL, name, [table])
        return None
    if len(ranks) > MOST_RANK_FILES:
        return write_held_segments(folder, name, table)
    for rank in ranks:
        part = table.filter(pc.equal(table["rank"], rank))
        write_table(folder / _file_name(rank), name, [part])
    return None


def _file_name(rank: int) -> str:
    return f"rank={rank:05d}.parquet"
