"""Which files an input stands for, and whether their content was seen before.

Content is what counts: its hash is the key of a run. Hashing terabytes takes as long
as reading them, so an index in the runs folder maps what the file system says of the
files (path, size, inode, times of modification and change) to that key. If any of it
differs, or a file is so young that it could change within the grain of its clock, the
content is hashed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from meshscope.probe.schema.columns import TableSpec
from meshscope.probe.schema.errors import RunDirectoryError, TraceFormatError
from meshscope.probe.schema.manifest import read_json, write_json
from meshscope.probe.schema.tables import TABLES

from ..tables.source_code import DERIVING, RECORDED, code_version
from .input_paths import find_files

INDEX_FOLDER = ".sources"
_BLOCK_BYTES = 1 << 20
_SETTLED_NS = 2_000_000_000
"""Coarsest time stamps of a file system in use (FAT)."""


def source_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files behind paths: themselves, those below a folder, those of a glob.

    Raises:
        TraceFormatError: There is none.
    """
    return list(dict.fromkeys(file.path for path in paths for file in find_files(path)))


@cache
def tables_version() -> str:
    """Return what is part of every key of kept tables: they are stale once readers or declarations are others."""
    return f"{code_version((*DERIVING, *RECORDED))}-{declared_columns(TABLES):08x}"


def declared_columns(tables: Mapping[str, TableSpec]) -> int:
    """Return a number for the columns of some tables: their names and types, not what is said of them."""
    columns = [
        (name, *((column.name, column.dtype, column.nullable) for column in table.columns))
        for name, table in sorted(tables.items())
    ]
    return zlib.crc32(repr(columns).encode())


def content_key(files: Iterable[Path], cycle: int | None = None) -> tuple[str, int]:
    """Return the hash of the names and contents of files, and their size in bytes.

    Args:
        files: The files.
        cycle: Which cycle of a profiler is read of them, where one was chosen.

    Raises:
        OSError: A file cannot be read.
    """
    whole, size = hashlib.sha256(f"tables {tables_version()}\0".encode()), 0
    if cycle is not None:
        whole.update(b"cycle %d\0" % cycle)
    for file in sorted(files):
        whole.update(os.fsencode(file.name) + b"\0")
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                whole.update(block)
                size += len(block)
    return whole.hexdigest(), size


def total_size(files: Iterable[Path]) -> int:
    """Return the size of files in bytes."""
    return sum(file.stat().st_size for file in files)


def size_of(*paths: Path) -> int:
    """Return the size in bytes of what is behind paths; 0 where there is nothing."""
    try:
        return total_size(source_files(paths))
    except (TraceFormatError, OSError):
        return 0


def jobs_of(paths: Sequence[Path]) -> list[list[Path]]:
    """Return the paths of each job: files given together are one, anything else is one each.

    A shell expands ``rank*.json`` to files, which are the ranks of one job.
    """
    files = [path for path in paths if path.is_file()]
    others = [[path] for path in paths if not path.is_file()]
    return [files, *others] if files else others


class SourceIndex:
    """Keys of contents by what the file system says of the files.

    Args:
        runs_dir: The folder of all runs.
    """

    def __init__(self, runs_dir: Path) -> None:
        self._folder = runs_dir / INDEX_FOLDER

    def find(self, files: Sequence[Path], cycle: int | None = None) -> str | None:
        """Return the key of these files, if they are the very ones that were read before."""
        try:
            entry = self._entry(files, cycle)
            key = read_json(entry).get("content_key")
            youngest_ns = max(_changed_ns(file.stat()) for file in files)
            is_settled = youngest_ns + _SETTLED_NS < entry.stat().st_mtime_ns
        except (OSError, RunDirectoryError):
            return None
        return key if is_settled and isinstance(key, str) else None

    def remember(
        self, files: Sequence[Path], key: str, *, seen: str, cycle: int | None = None
    ) -> None:
        """Note the key of files that did not change since they were stated.

        Args:
            files: The files.
            key: Hash of their content.
            seen: What ``state`` said before they were hashed.
            cycle: As for ``content_key``.

        Raises:
            OSError: The index cannot be written.
        """
        if self.state(files, cycle) != seen:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(self._entry(files, cycle), {"content_key": key})

    def state(self, files: Sequence[Path], cycle: int | None = None) -> str:
        """Return a hash of what the file system says of files, and of the cycle that is read.

        Raises:
            OSError: One cannot be looked at.
        """
        rows = []
        for file in sorted(file.resolve() for file in files):
            stat = file.stat()
            rows.append(
                (os.fsdecode(file), stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
            )
        chosen = [] if cycle is None else [cycle]
        text = json.dumps([tables_version(), rows, *chosen])
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()

    def _entry(self, files: Sequence[Path], cycle: int | None) -> Path:
        return self._folder / f"{self.state(files, cycle)}.json"


def _changed_ns(stat: os.stat_result) -> int:
    return max(stat.st_mtime_ns, stat.st_ctime_ns)
