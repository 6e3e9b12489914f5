"""Ranks that can be looked at together as if each were alone in the capture.

What a rank shows by itself must not depend on who is read beside it: which steps are analysed, where
each ends, which instants kernels tell. Ranks that agree in all of that are taken together, in one
sweep; every other is taken alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ..tables.stored_tables import StoredTable, Tables
from ..tables.trace import Trace

ROWS_AT_ONCE = 500_000
"""Records of ranks that are taken together, so that memory does not grow with the run."""
_COUNTED = ("span", "collective", "p2p")
_FAR_BITS = 52
"""Times further apart than that many bits would not both be exact in a float."""


def taken_together(trace: Trace, ranks: Sequence[int]) -> Iterator[Trace]:
    """Yield captures of some of the ranks each, which show of each rank what it shows alone.

    Ranks without a recorded step are in none of them.

    Args:
        trace: A capture that holds the ranks.
        ranks: Those wanted.
    """
    rows = sum((_rows_by_rank(trace, name) for name in _COUNTED), Counter[int]())
    alike: dict[Hashable, list[int]] = {}
    for rank, sign in _signs(trace, ranks):
        alike.setdefault(sign, []).append(rank)
    for group in alike.values():
        size = np.array([rows[rank] for rank in group])
        part = (np.cumsum(size) - size) // ROWS_AT_ONCE
        for number in np.unique(part).tolist():
            yield _only(trace, [group[at] for at in np.flatnonzero(part == number).tolist()])


def _signs(trace: Trace, ranks: Collection[int]) -> Iterator[tuple[int, Hashable]]:
    """Yield each rank with what its windows and kernels follow from; equal ones go together."""
    steps = trace.frame("step")
    steps = steps[steps["rank"].isin(ranks)].sort_values(["rank", "step", "start_ns"])
    end = steps["start_ns"] + steps["dur_ns"]
    busy = _steps_of_communication(trace)
    kernels = _rows_by_rank(trace, "kernel")
    for rank, own in steps.assign(end_ns=end).groupby("rank"):
        number = int(cast("int", rank))
        if not _is_plain(own):
            yield number, number
            continue
        yield (
            number,
            (
                own["step"].to_numpy(np.int64).tobytes(),
                tuple(own["detail"].astype(object).where(own["detail"].notna(), None)),
                busy.get(number, b""),
                None if trace.kernel_steps is None else trace.kernel_steps.get(number, ()),
                kernels[number] > 0,
                int(own["start_ns"].iloc[0]) >> _FAR_BITS,
            ),
        )


def _is_plain(steps: pd.DataFrame) -> bool:
    """Return whether windows of a rank, by number, follow each other in time and none is there twice."""
    number, start, end = (steps[name].to_numpy(np.int64) for name in ("step", "start_ns", "end_ns"))
    rises = (np.diff(number) > 0) & (np.diff(start) >= 0) & (np.diff(end) >= 0)
    return bool(rises.all() and (end >= start).all())


def _steps_of_communication(trace: Trace) -> dict[int, bytes]:
    """Return the steps in which each rank communicated, as bytes to compare."""
    frames = [trace.frame(name)[["rank", "step"]] for name in ("collective", "p2p")]
    found = pd.concat(frames).drop_duplicates().sort_values(["rank", "step"])
    by_rank = found.groupby("rank")["step"]
    return {int(cast("int", rank)): own.to_numpy(np.int64).tobytes() for rank, own in by_rank}


def _rows_by_rank(trace: Trace, name: str) -> Counter[int]:
    stored = trace.stored(name)
    if stored is not None:
        return Counter(stored.rows)
    if not trace.row_count(name):
        return Counter()
    rank, count = np.unique(trace.tables[name]["rank"].to_numpy(), return_counts=True)
    return Counter(dict(zip(rank.tolist(), count.tolist(), strict=True)))


def _only(trace: Trace, ranks: Sequence[int]) -> Trace:
    """Return a capture of some ranks that knows nothing of a clock or a mesh that they share."""
    wanted = pa.array(sorted(ranks), pa.int32())
    held, stored = {}, {}
    for name in trace.tables:
        if (table := trace.stored(name)) is not None:
            stored[name] = _some_files(table, ranks)
            continue
        rows = trace.tables[name]
        if "rank" in rows.column_names:
            rows = rows.filter(pc.is_in(rows["rank"], value_set=wanted))
        held[name] = rows
    return replace(
        trace,
        ranks=tuple(sorted(ranks)),
        tables=Tables(held, stored),
        layout=None,
        clocks={},
        machines=(),
        _frames={},
    )


def _some_files(table: StoredTable, ranks: Collection[int]) -> StoredTable:
    files = {rank: file for rank, file in table.files.items() if rank in ranks}
    return replace(table, files=files, rows={rank: table.rows[rank] for rank in files})
