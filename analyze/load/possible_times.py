"""Times that no clock can have shown are left out, whichever format they came from.

A damaged clock or a forged file says that an activity lasts a negative time, or began
centuries ago. Sums over such rows are wrong, or do not fit 64 bits and are wrong silently.
Tables of a profiler's events are not looked at: their reader does this as it goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..tables.trace import Trace
from ..wording.limits import Limit
from ..wording.message import message

_FARTHEST_NS = 1 << 61
"""73 years. A start and a length below it add up within 64 bits."""
_TABLES = ("step", "span", "collective", "p2p", "memory")
_AT_ONCE = 1 << 16
_STARTS = ("start_ns", "issue_ns", "time_ns")
_ENDS = ("end_ns", "wait_start_ns", "wait_end_ns")


def with_possible_times(trace: Trace) -> Trace:
    """Return the trace without rows of negative or absurd length, and with absurd ends unknown.

    An end is absurd before the start of its row, or where it is too far away; then the
    waiting inside the row is unknown too. ``limits`` count what was left out.
    """
    limits: list[Limit] = []
    changed = {}
    for name in _TABLES:
        table = trace.tables.get(name)
        if table is None or not table.num_rows:
            continue
        kept = _without_impossible_ends(name, _without_impossible_rows(name, table, limits), limits)
        if kept is not table:
            changed[name] = kept
    if not changed:
        return trace
    return replace(trace.with_tables(changed), limits=(*trace.limits, *limits))


def _without_impossible_rows(name: str, table: pa.Table, limits: list[Limit]) -> pa.Table:
    starts = all(_are_possible(table, name, -_FARTHEST_NS + 1) for name in _STARTS)
    if starts and _are_possible(table, "dur_ns", 0):
        return table
    possible = np.ones(table.num_rows, dtype=bool)
    for values in _known(table, _STARTS):
        possible &= (values > -_FARTHEST_NS) & (values < _FARTHEST_NS)
    for values in _known(table, ("dur_ns",)):
        possible &= (values >= 0) & (values < _FARTHEST_NS)
    lost = int((~possible).sum())
    if not lost:
        return table
    limits.append(message("missing.impossible_rows", lost=lost, table=name))
    return table.filter(pa.array(possible))


def _are_possible(table: pa.Table, name: str, least: int) -> bool:
    """Tell whether the values of a column are in bounds, as far as it has any."""
    if name not in table.column_names or table[name].null_count == table.num_rows:
        return True
    bounds = pc.min_max(table[name])
    return bool(least <= bounds["min"].as_py() and bounds["max"].as_py() < _FARTHEST_NS)


def _without_impossible_ends(name: str, table: pa.Table, limits: list[Limit]) -> pa.Table:
    if not table.num_rows or "end_ns" not in table.column_names:
        return table
    # Part by part, so that what is looked at stays in the cache.
    parts = table.select(["start_ns", *_ENDS]).to_batches(max_chunksize=_AT_ONCE)
    impossible = np.concatenate([_impossible(pa.Table.from_batches([part])) for part in parts])
    if not impossible.any():
        return table
    ends = int(impossible.sum())
    limits.append(message("missing.impossible_ends", ends=ends, table=name))
    for column in _ENDS:
        place = table.column_names.index(column)
        values = pa.array(
            table[column].fill_null(0).to_numpy(),
            mask=impossible | table[column].is_null().to_numpy(),
        )
        table = table.set_column(place, table.schema.field(place), values)
    return table


def _impossible(part: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which ends are absurd."""
    start, end, wait_start, wait_end = _known(part, ("start_ns", *_ENDS))
    impossible = (end != 0) & (end < start)
    impossible |= (wait_start != 0) & (wait_end != 0) & (wait_end < wait_start)
    for values in (end, wait_start, wait_end):
        impossible |= (values <= -_FARTHEST_NS) | (values >= _FARTHEST_NS)
    return np.asarray(impossible)


def _known(table: pa.Table, columns: tuple[str, ...]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield those of the columns that the table has, with 0 for what is unknown."""
    for column in columns:
        if column in table.column_names:
            yield table[column].fill_null(0).to_numpy()
