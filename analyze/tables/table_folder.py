"""The tables of a capture in a folder of Parquet files, the form in which they are kept.

``<table>/rank=00000.parquet`` holds the rows of one rank; a table without ranks is one
file, ``<table>/all.parquet``. A folder is made under a hidden name and gets its own
when it is whole, so nobody ever sees half of it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.columns import TableSpec
from meshscope.probe.schema.errors import RunDirectoryError
from meshscope.probe.schema.manifest import DIRECTORY_MODE, FILE_MODE
from meshscope.probe.schema.tables import RUN, TABLES

from .stored_tables import STORED, Tables, open_stored, read_tables, write_table
from .trace import Trace

FOLDER = "tables"
"""The folder in a run directory."""
_DRAFT = ".draft-"
_ALL = "all.parquet"
MOST_RANK_FILES = 256
"""With more ranks a table that is read as a whole is one file: opening costs more than reading."""
_RANK_FILE = re.compile(r"rank=(\d{5,9})\.parquet")


@contextmanager
def drafted(parent: Path) -> Iterator[Path]:
    """Give a hidden folder in another folder, and remove what is left of it afterwards.

    Drafts of programs that were killed are removed too: nobody holds their lock.

    Raises:
        OSError: The folder cannot be written.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for old in parent.glob(f"{_DRAFT}*"):
        with suppress(OSError), _lock(old):
            shutil.rmtree(old, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=parent))
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
        else:
            _write_held(trace.tables[name], name, place)


def read_folder(
    folder: Path, *, only: Collection[int] | None = None, without: Collection[int] = ()
) -> Tables:
    """Open the tables in a folder; of the large ones only the footers are read.

    Args:
        folder: Where they are.
        only: Ranks that are read; None for all.
        without: Ranks of which nothing is read.

    Raises:
        RunDirectoryError: A table cannot be read.
    """
    held, stored = {}, {}
    for name, spec in TABLES.items():
        by_rank = _files_of_ranks(folder / name)
        kept = {rank: file for rank, file in by_rank.items() if _is_kept(rank, only, without)}
        if name in STORED:
            stored[name] = open_stored(name, kept)
            continue
        whole = (folder / name / _ALL,) if (folder / name / _ALL).exists() else ()
        held[name] = read_tables(spec, (*whole, *kept.values()), only=only)
        if whole and without and "rank" in held[name].column_names:
            is_left_out = pc.is_in(held[name]["rank"], value_set=pa.array(sorted(without)))
            held[name] = held[name].filter(pc.invert(is_left_out))
    return Tables(held, stored)


def _is_kept(rank: int, only: Collection[int] | None, without: Collection[int]) -> bool:
    return rank not in without and (only is None or rank in only)


def damaged_ranks(folder: Path) -> dict[int, str]:
    """Return the ranks of which a file cannot be read, each with what is wrong with it."""
    found: dict[int, str] = {}
    for name, spec in TABLES.items():
        for rank, file in _files_of_ranks(folder / name).items():
            if (damage := _damage(spec, rank, file)) is not None:
                found.setdefault(rank, damage)
    return found


def _damage(spec: TableSpec, rank: int, file: Path) -> str | None:
    """Return what is wrong with a file of one rank, None for nothing."""
    try:
        if spec.name in STORED:
            open_stored(spec.name, {rank: file})
        else:
            read_tables(spec, [file])
    except RunDirectoryError as error:
        return error.what
    return None


def _files_of_ranks(folder: Path) -> dict[int, Path]:
    files = sorted(folder.glob("*.parquet"))
    return {int(m[1]): file for file in files if (m := _RANK_FILE.match(file.name))}


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


def _write_held(table: pa.Table, name: str, folder: Path) -> None:
    ranks = sorted(pc.unique(table["rank"]).to_pylist()) if "rank" in table.column_names else []
    if not ranks or len(ranks) > MOST_RANK_FILES:
        write_table(folder / _ALL, name, [table])
        return
    for rank in ranks:
        part = table.filter(pc.equal(table["rank"], rank))
        write_table(folder / _file_name(rank), name, [part])


def _file_name(rank: int) -> str:
    return f"rank={rank:05d}.parquet"
