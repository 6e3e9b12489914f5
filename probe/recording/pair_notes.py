"""Notes what all-to-alls carry between pairs of ranks, where it outlives the process (``schema.pair_sizes``)."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..schema.manifest import create_file
from ..schema.pair_sizes import (
    ENTRIES,
    HEAD_NUMBERS,
    MAGIC,
    MOST_MEMBERS,
    entry_numbers,
    file_bytes,
    pair_file_name,
)
from .ring import map_file_over

_NUMBER_BYTES = 8


class PairNotes:
    """The files of one rank: each made with the first all-to-all of its group."""

    def __init__(self, directory: Path | None) -> None:
        """Prepare; without a directory nothing is noted."""
        self._directory = directory
        self._files: dict[int, _File | None] = {}

    def note(self, group: int, seq: int, sent: Sequence[int], expected: Sequence[int]) -> None:
        """Note the bytes to and from each member of a group, before an all-to-all is called.

        Where the file of the group cannot be made, they are not known later.
        """
        if group not in self._files:
            self._files[group] = self._new(group, len(sent))
        file = self._files[group]
        if file is not None:
            file.store(seq, sent, expected)

    def _new(self, group: int, members: int) -> _File | None:
        if self._directory is None or group < 0 or not 0 < members <= MOST_MEMBERS:
            return None
        try:
            return _File(self._directory / pair_file_name(group), group, members)
        except OSError:
            return None

    def leave(self) -> None:
        """Note nothing from now on."""
        self._directory = None
        self._files = {}


class _File:
    def __init__(self, path: Path, group: int, members: int) -> None:
        size_bytes = file_bytes(members)
        descriptor = create_file(path, writable=os.O_RDWR)
        try:
            # Storing into a mapped hole of a full file system would kill the process.
            os.posix_fallocate(descriptor, 0, size_bytes)
            mapping = mmap.mmap(-1, size_bytes)
            map_file_over(mapping, descriptor)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self._members = members
        self._numbers: Any = memoryview(mapping)
        self._entry_bytes = _NUMBER_BYTES * entry_numbers(members)
        self._pack = struct.Struct(f"<{entry_numbers(members)}q").pack_into
        struct.pack_into(f"<{HEAD_NUMBERS}q", mapping, 0, MAGIC, group, members, ENTRIES)

    def store(self, seq: int, sent: Sequence[int], expected: Sequence[int]) -> None:
        if len(sent) != self._members or len(expected) != self._members:
            return
        place = _NUMBER_BYTES * HEAD_NUMBERS + seq % ENTRIES * self._entry_bytes
        self._pack(self._numbers, place, seq + 1, *sent, *expected, seq + 1)
