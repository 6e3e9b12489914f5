"""What the last all-to-alls of a group carried between each pair of members, on one rank.

The sizes of the pairs of an all-to-all do not fit into a record. They matter only where a job stands in one, so
each group has a small file with the last of them, which outlives the process. All numbers are little-endian, 64 bits::

    magic   group   members   entries   then for each entry, at the place number % entries:
    number + 1   bytes to each member   bytes from each member   number + 1

An entry whose two numbers differ was being written; zero is none. A capture without the file does not know the sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ENTRIES = 8
"""All-to-alls of a group that may be under way at once."""
MOST_MEMBERS = 1024
MAGIC = 0x31_53_52_49_41_50_53_4D
HEAD_NUMBERS = 4
_NAME = re.compile(r"pairs-(\d{1,6})")
_BYTES = 8


class PairSizes(NamedTuple):
    """One all-to-all as a member called it."""

    group: int
    """Index in the manifest of the rank."""
    seq: int
    sent: tuple[int, ...]
    """Bytes to each member, in the order of the group."""
    expected: tuple[int, ...]


def pair_file_name(group: int) -> str:
    """Return the name of the file of a group in the directory of a rank."""
    return f"pairs-{group}"


def entry_numbers(members: int) -> int:
    """Return how many numbers an entry has."""
    return 2 * members + 2


def file_bytes(members: int) -> int:
    """Return how long the file of a group is."""
    return _BYTES * (HEAD_NUMBERS + ENTRIES * entry_numbers(members))


def read_pair_sizes(directory: Path) -> Iterator[PairSizes]:
    """Yield what a rank noted; of files that are damaged or cannot be read nothing."""
    import numpy as np

    for path in sorted(directory.iterdir()):
        if _NAME.fullmatch(path.name) is None or path.is_symlink():
            continue
        try:
            if path.stat().st_size > file_bytes(MOST_MEMBERS):
                continue
            raw = path.read_bytes()
        except OSError:
            continue
        numbers = np.frombuffer(raw[: len(raw) // _BYTES * _BYTES], dtype="<i8").tolist()
        yield from _entries(numbers)


def _entries(numbers: list[int]) -> Iterator[PairSizes]:
    if len(numbers) < HEAD_NUMBERS or numbers[0] != MAGIC:
        return
    group, members, entries = numbers[1:HEAD_NUMBERS]
    if not (0 < members <= MOST_MEMBERS and 0 < entries <= ENTRIES):
        return
    size = entry_numbers(members)
    for start in range(HEAD_NUMBERS, HEAD_NUMBERS + entries * size, size):
        own = numbers[start : start + size]
        if len(own) < size or own[0] != own[-1] or own[0] < 1 or min(own[1:-1]) < 0:
            continue
        sent, expected = own[1 : members + 1], own[members + 1 : -1]
        yield PairSizes(group, own[0] - 1, tuple(sent), tuple(expected))
