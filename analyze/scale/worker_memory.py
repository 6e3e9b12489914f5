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
        room = _room(limit_bytes, largest * ROW_BYTES, steps, words)
        most = min(most, room // ROW_BYTES)
    yield from _together(ranks, rows, most)


def recorded_in_room(
    ranks: Sequence[int], unpacked: Mapping[int, int], steps: int, limit_bytes: float
) -> Iterator[tuple[int, ...]]:
    """Yield the ranks of a run that the probe recorded which are read together: as many as have room.

    Args:
        ranks: The ranks of a file of summaries.
        unpacked: What the records of each rank of the run take once they are unpacked, bytes.
        steps: Rows that the file gets.
        limit_bytes: Memory of a worker.

    Raises:
        ConfigError: One rank has more records than have room.
    """
    largest = max(unpacked.values(), default=0)
    words = message("refused.rank_needs_memory_unpacked", size_bytes=largest)
    room = _room(limit_bytes, largest * UNPACKED_FACTOR, steps, words)
    yield from _together(ranks, unpacked, room / UNPACKED_FACTOR)


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


def _room(limit_bytes: float, largest_bytes: float, steps: int, words: Message) -> float:
    """Return how many bytes of a limit are left for records.

    Raises:
        ConfigError: The largest rank has more.
    """
    beside = WORKER_BYTES + steps * SUMMARY_ROW_BYTES
    if limit_bytes - beside < largest_bytes:
        least = math.ceil((beside + largest_bytes) / 1e7) * 10
        raise ConfigError(
            words, where="--memory-limit", remedy=message("advice.memory_limit", least=least)
        )
    return limit_bytes - beside
