"""What a process needs to summarise ranks, and how many ranks have room in it together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from meshscope.probe.schema.errors import ConfigError

from ..wording.message import message

MOST_ROWS_AT_ONCE = 2_000_000
"""Records that a worker holds, where they are known by rank: 1 GB."""
WORKER_BYTES = 230_000_000
"""What a process holds beside records and rows, programs included."""
ROW_BYTES = 900
"""What a record takes while it is summarised, at most; many together take less."""
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
    most = MOST_ROWS_AT_ONCE
    if limit_bytes is not None:
        most = min(most, _rows_in(limit_bytes, max(rows.values(), default=0), steps))
    together: tuple[int, ...] = ()
    held = 0
    for rank in ranks:
        if together and held + rows.get(rank, 0) > most:
            yield together
            together, held = (), 0
        together = (*together, rank)
        held += rows.get(rank, 0)
    yield together


def _rows_in(limit_bytes: float, largest: int, steps: int) -> int:
    """Return how many records have room.

    Raises:
        ConfigError: The largest rank has more.
    """
    beside = WORKER_BYTES + steps * SUMMARY_ROW_BYTES
    most = int((limit_bytes - beside) // ROW_BYTES)
    if most < largest:
        least = math.ceil((beside + largest * ROW_BYTES) / 1e7) * 10
        raise ConfigError(
            message("refused.rank_needs_memory", rows=largest),
            where="--memory-limit",
            remedy=message("advice.memory_limit", least=least),
        )
    return most
