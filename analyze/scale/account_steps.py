"""Which steps of a large run the full account is made of: those that matter, as many as have room.

Full records of all steps of many ranks do not fit in memory. Summaries say where to look: at the steps in
which the dearest slow rank is slow, from their begin on; without a slow rank at the longest steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshscope.probe.reader.part_sizes import unpacked_bytes
from meshscope.probe.reader.rank_parts import segment_bytes
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.manifest import part_directories

from ..load.ingested import is_ingested
from ..read.deep_traces.files import expected_events
from ..tables.arrays import FloatArray, IntArray
from ..tables.part import StepRange
from ..tables.table_folder import FOLDER, stored_rows
from ..wording.message import message
from .blocks import Blocks
from .slow_ranks import FirstAnswer
from .worker_memory import looking_bytes

ACCOUNT_BYTES = 250_000_000
"""What an account holds beside records."""
ACCOUNT_ROW_BYTES = 1000
"""What a record takes in an account, at most."""
PROFILED_ROW_BYTES, READ_ROW_BYTES = 400, 70
"""What a kernel, an operator or a call takes in an account that looks at it, and while the steps are picked out."""


NOTHING_PROFILED: Mapping[int, int] = {}


class AccountSteps(NamedTuple):
    """Steps that follow each other, and why these."""

    steps: StepRange
    rank: int | None
    """The slow rank that they were chosen for; None where none is slow."""
    rows: int
    """Records that they have, of all ranks."""
    size_bytes: float
    """What an account of them takes beside what it always takes."""


def account_steps(
    blocks: Blocks,
    answer: FirstAnswer | None,
    most_rows: int,
    within: StepRange | None = None,
    profiled: Mapping[int, int] = NOTHING_PROFILED,
) -> AccountSteps | None:
    """Return the steps to account for; None where the records of all have room.

    Args:
        blocks: The steps of the run.
        answer: What its summaries say of slow ranks; None if nothing.
        most_rows: Records that have room.
        within: The steps to choose from; all if not given.
        profiled: The ``profiled_rows`` of the run.
    """
    table = blocks.steps
    steps = table["step"].to_numpy()
    wanted = np.ones(len(steps), dtype=bool)
    if within is not None:
        wanted = (steps >= within.first) & (steps <= within.last)
    records = table["records"].to_numpy()[wanted].astype(np.float64)
    steps = steps[wanted]
    seen = np.array([profiled.get(step, 0) for step in steps.tolist()], dtype=np.float64)
    rows = records + seen * PROFILED_ROW_BYTES / ACCOUNT_ROW_BYTES
    if rows.sum() <= most_rows:
        return None
    begin, end, rank = _of_slow_rank(answer, steps, rows, most_rows) or (
        *_longest(table["step_s"].to_numpy()[wanted], rows, most_rows),
        None,
    )
    return AccountSteps(
        steps=StepRange(int(steps[begin]), int(steps[end - 1])),
        rank=rank,
        rows=int(records[begin:end].sum()),
        size_bytes=float(rows[begin:end].sum()) * ACCOUNT_ROW_BYTES,
    )


def rows_in(limit_bytes: float) -> int:
    """Return how many records an account may hold in what a limit leaves."""
    return max(int((limit_bytes - ACCOUNT_BYTES) / ACCOUNT_ROW_BYTES), 0)


def profiled_rows(run: Path) -> Mapping[int, int]:
    """Return how many kernels, operators and calls each step has, -1 for none, of the rank with the most there.

    An account holds those of one rank at a time. Before the deep traces of a run were read, their sizes tell.

    Raises:
        RunDirectoryError: A table cannot be read.
    """
    return stored_rows(run / FOLDER) or expected_events(run)


def beside_account(run: Path, profiled: Mapping[int, int] = NOTHING_PROFILED) -> float:
    """Return what reading the records of a run takes beside them, bytes.

    Those of an ingested run are read by their steps, but for what a profiler saw. A recorded rank is looked through for its
    own: the largest on disk counts, for ranks are read one after the other.

    Args:
        run: A run directory.
        profiled: Its ``profiled_rows``.
    """
    of_profiler = float(sum(profiled.values()) * READ_ROW_BYTES)
    if is_ingested(run):
        return of_profiler
    parts = [[*own.values()] for own in part_directories(run).values()]
    largest = max(parts, key=lambda own: sum(map(segment_bytes, own)), default=[])
    return of_profiler + looking_bytes(sum(map(unpacked_bytes, largest)))


def require_room(chosen: AccountSteps | None, limit_bytes: float, beside_bytes: float) -> None:
    """Refuse steps that were chosen for some memory, one at least, and do not fit it.

    Args:
        chosen: The steps; None for all.
        limit_bytes: The memory.
        beside_bytes: What of it reading takes.

    Raises:
        ConfigError: Even one step needs more.
    """
    needed = ACCOUNT_BYTES + beside_bytes + (0.0 if chosen is None else chosen.size_bytes)
    if chosen is not None and needed > limit_bytes:
        raise ConfigError(
            message("refused.step_needs_memory", rows=chosen.rows),
            where="--memory-limit",
            remedy=message("advice.memory_limit", least=math.ceil(needed / 1e8) * 100),
        )


def _of_slow_rank(
    answer: FirstAnswer | None, steps: IntArray, rows: FloatArray, most_rows: int
) -> tuple[int, int, int] | None:
    """Return begin, end and rank of the steps in which the dearest slow rank is slow; None without."""
    if answer is None or not answer.slow:
        return None
    verdict = answer.slow[0].verdict
    first, last = max(verdict.slow_steps, key=lambda run: run[1] - run[0])
    begin = int(np.searchsorted(steps, first))
    if begin == len(steps) or steps[begin] > last:
        return None
    end = min(_end(rows, begin, most_rows), int(np.searchsorted(steps, last, side="right")))
    return begin, end, verdict.rank


def _end(rows: FloatArray, begin: int, most_rows: int) -> int:
    """Return the end of the steps from one on that have room together; one has, whatever its size."""
    fits = np.searchsorted(np.cumsum(rows[begin:]), most_rows, side="right")
    return begin + max(int(fits), 1)


def _longest(wall: FloatArray, rows: FloatArray, most_rows: int) -> tuple[int, int]:
    """Return begin and end of the window of the longest mean step among those with room."""
    total = np.append(0.0, np.cumsum(wall))
    held = np.append(0.0, np.cumsum(rows))
    ends: IntArray = np.searchsorted(held, held[:-1] + most_rows, side="right") - 1
    begins = np.arange(len(wall))
    ends = np.maximum(ends, begins + 1)
    # The last windows are short because the run ends: only one step would win by chance.
    is_full = ends < len(wall)
    is_full[int(np.argmax(~is_full)) if not is_full.all() else -1] = True
    mean = np.where(is_full, (total[ends] - total[:-1]) / (ends - begins), -np.inf)
    best = int(mean.argmax())
    return best, int(ends[best])
