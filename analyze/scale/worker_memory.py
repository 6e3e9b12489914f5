"""What a process needs to summarise ranks, and how many ranks have room in it together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from meshscope.probe.schema.errors import ConfigError

from ..wording.message import Message, message

MOST_ROWS_AT_ONCE = 2_000_000
"""Records that a worker holds, where they are known by rank: 1 GB."""
WORKER_BYTES = 230_000_000
"""What a process holds beside records and rows, programs included."""
ROW_BYTES = 900
"""What a record takes while it is summarised, at most; many together take less."""
UNPACKED_FACTOR = 11.0
"""What the records of a rank that the probe recorded take while they are read and summarised, at most, over
their unpacked size; those of many ranks take less."""
SUMMARY_ROW_BYTES = 600
"""What a row of the summaries takes until its file is written: thrice, as it is put together and packed."""

_LOOKING_BYTES = 16_000_000
"""What a rank that is read some steps at a time takes beside these: a segment and the ring, which are looked through."""
_INDEX_SHARE = 0.05
"""What is noted of its records when they are first read, over their unpacked size."""


def looking_bytes(unpacked: int) -> float:
    """Return what it takes to look through a recorded rank that is read some steps at a time.

    Args:
        unpacked: What its records take once they are unpacked, bytes.
    """
    return _LOOKING_BYTES + unpacked * _INDEX_SHARE


def in_room(
    ranks: Sequence[int], rows: Mapping[int, int], steps: int, limit_bytes: float | None
) -> Iterator[tuple[int, ...]]:
    """Yield the ranks that are read together: as many as have room.

    Args:
        ranks: The ranks of a file of summaries.
        rows: Records of each rank of the run, so that the first file is refused if any is; none where they are unknown.
        steps: Rows that the file gets.
        limit_bytes: Memory of a worker, if it is limited.

    Raises:
        ConfigError: One rank has more records than have room.
    """
    most = float(MOST_ROWS_AT_ONCE)
    if limit_bytes is not None:
        largest = max(rows.values(), default=0)
        words = message("refused.rank_needs_memory", rows=largest)
        room = room_for_records(limit_bytes, steps)
        require_room(largest * ROW_BYTES, room, limit_bytes, words)
        most = min(most, room // ROW_BYTES)
    yield from _together(ranks, rows, most)


def room_for_records(limit_bytes: float, steps: int) -> float:
    """Return how many bytes of a limit are left for records, below 0 where not even the rest has room.

    Args:
        limit_bytes: Memory of a worker.
        steps: Rows that the file gets.
    """
    return limit_bytes - WORKER_BYTES - steps * SUMMARY_ROW_BYTES


def recorded_in_room(
    ranks: Sequence[int], unpacked: Mapping[int, int], room_bytes: float
) -> Iterator[tuple[int, ...]]:
    """Yield the ranks of a run that the probe recorded which are read together: as many as have room, or one.

    Args:
        ranks: The ranks of a file of summaries.
        unpacked: What the records of each take once they are unpacked, bytes.
        room_bytes: Memory that there is for records.
    """
    yield from _together(ranks, unpacked, room_bytes / UNPACKED_FACTOR)


def require_room(
    needed_bytes: float, room_bytes: float, limit_bytes: float, words: Message
) -> None:
    """Refuse a limit that has no room for what is read at once.

    Args:
        needed_bytes: What that takes.
        room_bytes: Memory that there is for it.
        limit_bytes: Memory of the worker.
        words: What has no room.

    Raises:
        ConfigError: It has none; the least that has is in it.
    """
    if room_bytes < needed_bytes:
        least = math.ceil((limit_bytes - room_bytes + needed_bytes) / 1e7) * 10
        raise ConfigError(
            words, where="--memory-limit", remedy=message("advice.memory_limit", least=least)
        )


def _together(
    ranks: Sequence[int], sizes: Mapping[int, int], most: float
) -> Iterator[tuple[int, ...]]:
    """Yield neighbours that have at most so much together, one rank at least."""
    together: tuple[int, ...] = ()
    held = 0
    for rank in ranks:
        if together and held + sizes.get(rank, 0) > most:
            yield together
            together, held = (), 0
        together = (*together, rank)
        held += sizes.get(rank, 0)
    yield together
