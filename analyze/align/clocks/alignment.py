"""Offsets between the clocks of a capture: estimated from its communication, and corrected.

Two clocks are compared where collectives ended on both (``evidence``), and by sends in both directions
where these leave less doubt. Sets of clocks that few or no collectives cross are compared by sends. Drift is
corrected with the offset where it is beyond doubt. Clocks that the capture tells apart
are always mapped. Ranks of which it is not known whether they share one keep their times if
the offset is within its error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.host_tables import SAMPLED
from meshscope.probe.schema.tables import CLOCK_SYNC, TABLES

from ...tables.arrays import IntArray
from ...tables.stored_tables import StoredTable
from ...tables.trace import FLIGHT_RECORDER, Trace
from ...wording.words import counted
from .evidence import causal_bounds, collective_ends, common_ends
from .fit import SAME_CLOCK, SOUND, ClockMap, fit_bounds, fit_common_ends, moved
from .graph import ClockForest, Comparison, to_middles
from .host_samples import moved_samples

LEAST_CORRECTION_NS = 12_000.0
"""Members that share a clock are seen to leave collectives that far apart, always in one order."""
ROUGH_NS = 20_000.0
"""Doubt of what collectives tell from which on sends and receives are asked, too: hosts that wake up
late see common ends that far apart, devices do not."""
SHARPER = 0.5
"""What these tell is taken where its doubt is less than that of the other's."""
VAGUE_NS = 5_000_000.0
"""From this on an offset within its own error is not told from none, and to move times by it can be
worse than to leave them; a smaller one does no harm."""
_NAMED = 8
"""Clocks that a sentence lists by name."""


_NOTHING_COMPARES = "nothing in the capture compares the clocks of"


def has_clocks_apart(trace: Trace) -> bool:
    """Tell whether a capture that was aligned has clocks that nothing compares."""
    return trace.per_step_clock or any(one.startswith(_NOTHING_COMPARES) for one in trace.limits)


def align(trace: Trace) -> Trace:
    """Return the trace with every time on the clock that most ranks agree with.

    Every time column of a rank moves with the rank's clock, and integers stay
    integers. The corrections made are in its ``clock_sync`` table, and its limits state
    them. The same trace is returned where there is nothing to correct or to state, where
    each step has a time origin of its own, which need not be that of a clock, and for dumps
    of a flight recorder, which are read by positions and not by times.
    """
    clocks = _clocks(trace)
    if trace.per_step_clock or trace.origin == FLIGHT_RECORDER or len(clocks) < 2:
        return trace
    estimates = estimate_offsets(trace)
    limits = _unconnected(clocks, estimates)
    needed = _needed(trace, estimates)
    applied = {clock: _to_reference(clock, needed) for clock in clocks}
    maps = {clock: one for clock, (_, one) in applied.items() if one is not SAME_CLOCK}
    if not maps:
        return replace(trace, limits=(*trace.limits, *limits)) if limits else trace
    rows = [_row(clock, applied[clock][0], one) for clock, one in maps.items()]
    by_rank = {rank: maps.get(trace.clock_of(rank), SAME_CLOCK) for rank in trace.ranks}
    changes = {name: _change(trace, name, by_rank) for name in trace.tables}
    changes |= moved_samples(
        {name: trace.tables[name] for name in SAMPLED if trace.row_count(name)}, maps
    )
    return replace(
        trace.with_tables({**changes, CLOCK_SYNC.name: _table(rows)}),
        limits=(*trace.limits, *limits, *_corrections(maps, len(clocks))),
    )


def estimate_offsets(trace: Trace) -> pa.Table:
    """Return how clocks compare, at two levels.

    A clock that many collectives connect with others is compared with the middle one of
    these. The middle clock of such a set, or a clock alone, is compared with the middle one
    of the sets that sends and receives, or few collectives, connect. No row: it is the reference,
    or nothing connects it.

    Returns:
        A ``clock_sync`` table: ``host`` and ``reference_host`` are clock ids
        (``Trace.clock_of``), ``time_ns`` is a time of ``host``; no drift is null.
    """
    names = _clocks(trace)
    position = {name: at for at, name in enumerate(names)}
    clock_of = {rank: position[trace.clock_of(rank)] for rank in trace.ranks}
    ranks = np.bincount(np.array([*clock_of.values()], dtype=np.int64), minlength=len(names))
    ends = collective_ends(trace, clock_of)
    sound = ClockForest(len(names))
    sound.connect(_sharpened(trace, clock_of, [*_by_collectives(ends, least=SOUND)]))
    maps, middle = to_middles(sound, ranks.astype(float))
    times, read_on = (ends[name].to_numpy(np.int64) for name in ("time_ns", "clock"))
    in_sets = ends.assign(time_ns=moved(times, read_on, maps), clock=middle[read_on])
    sets = ClockForest(len(names))
    sets.connect(
        [
            *_by_collectives(in_sets, least=1),
            *_by_sends(causal_bounds(trace, clock_of, maps, middle)),
        ]
    )
    weights = np.bincount(middle, ranks, minlength=len(names)).astype(float)
    set_maps, reference = to_middles(sets, weights)
    rows = []
    for clock, name in enumerate(names):
        if clock != middle[clock]:
            rows.append(_row(name, names[middle[clock]], maps[clock]))
        elif clock != reference[clock]:
            rows.append(_row(name, names[reference[clock]], set_maps[clock]))
    return _table(rows)


def _clocks(trace: Trace) -> list[str]:
    """Return the ids of the clocks in the order of their first ranks."""
    return list(dict.fromkeys(trace.clock_of(rank) for rank in sorted(trace.ranks)))


def _by_collectives(ends: pd.DataFrame, *, least: int) -> Iterator[Comparison]:
    """Yield the comparisons of clocks that saw at least so many ends together."""
    for _, rows in common_ends(ends).groupby(["first", "clock"]):
        if len(rows) >= least:
            time_ns, ahead_ns = (rows[name].to_numpy() for name in ("time_ns", "ahead_ns"))
            one = fit_common_ends(time_ns, ahead_ns, host=bool(rows["host"].any()))
            yield Comparison(int(rows["first"].iloc[0]), int(rows["clock"].iloc[0]), one)


def _sharpened(
    trace: Trace, clock_of: dict[int, int], compared: list[Comparison]
) -> list[Comparison]:
    """Return the comparisons by collectives, those by sends and receives where these are far less in doubt.

    Nothing is received before it is sent: messages both ways bound an offset by as much as the fastest of
    them take, which on hosts can be less than how far apart they see a collective end.
    """
    if all(one.to_first.error_ns < ROUGH_NS for one in compared):
        return compared
    count = max(clock_of.values()) + 1
    bounds = causal_bounds(trace, clock_of, [SAME_CLOCK] * count, np.arange(count))
    by_sends = {(one.first, one.clock): one for one in _by_sends(bounds)}
    sharp = []
    for one in compared:
        other = by_sends.get((one.first, one.clock), one)
        is_sharper = other.to_first.error_ns < SHARPER * one.to_first.error_ns
        sharp.append(other if is_sharper else one)
    return sharp


def _by_sends(bounds: pd.DataFrame) -> Iterator[Comparison]:
    """Yield the comparisons of clocks with bounds from both sides."""
    for _, rows in bounds.groupby(["first", "clock"]):
        one = _from_bounds(rows)
        if one is not None:
            yield Comparison(int(rows["first"].iloc[0]), int(rows["clock"].iloc[0]), one)


def _from_bounds(rows: pd.DataFrame) -> ClockMap | None:
    found = fit_bounds(
        rows["time_ns"].to_numpy(np.int64),
        rows["least_ns"].to_numpy(float),
        rows["most_ns"].to_numpy(float),
        firm=int(rows["firm"].iloc[0]),
        wire_ns=float(rows["wire_ns"].iloc[0]),
    )
    if found is None:
        return None
    return found._replace(
        offset_ns=found.offset_ns + int(rows["base_ns"].iloc[0]),
        error_ns=found.error_ns + float(rows["error_ns"].max()),
    )


def _row(clock: str, reference: str, one: ClockMap) -> dict[str, object]:
    return {
        "host": clock,
        "reference_host": reference,
        "time_ns": one.time_ns,
        "offset_ns": one.offset_ns,
        "drift_ppm": one.drift * 1e6 if one.drift else None,
        "error_ns": one.error_ns,
    }


def _table(rows: list[dict[str, object]]) -> pa.Table:
    return CLOCK_SYNC.conform(pa.Table.from_pylist(rows)) if rows else CLOCK_SYNC.empty()


def _needed(trace: Trace, estimates: pa.Table) -> dict[str, tuple[str, ClockMap]]:
    """Return reference and map of each clock; no map where it would not better the times."""
    told_apart = set(trace.clocks.values())
    found = {}
    for row in estimates.to_pylist():
        clock, reference, offset_ns = row["host"], row["reference_host"], row["offset_ns"]
        doubt = max(row["error_ns"], LEAST_CORRECTION_NS)
        is_vague = abs(offset_ns) >= VAGUE_NS and row["error_ns"] >= VAGUE_NS
        if {clock, reference} <= told_apart and not is_vague:
            doubt = 0.0
        one = ClockMap(row["time_ns"], offset_ns, (row["drift_ppm"] or 0.0) / 1e6, row["error_ns"])
        found[clock] = (reference, one if abs(offset_ns) > doubt or one.drift else SAME_CLOCK)
    return found


def _to_reference(clock: str, needed: Mapping[str, tuple[str, ClockMap]]) -> tuple[str, ClockMap]:
    """Return the last reference of a clock and the map to it, over both levels."""
    reference, total = needed.get(clock, (clock, SAME_CLOCK))
    if reference in needed:
        reference, outer = needed[reference]
        if outer is not SAME_CLOCK:
            total = outer if total is SAME_CLOCK else total.then(outer)
    return reference, total


def _change(trace: Trace, name: str, by_rank: Mapping[int, ClockMap]) -> pa.Table | StoredTable:
    """Return a table with its times moved, one on disk when its ranks are read."""
    stored = trace.stored(name)
    if stored is None:
        return _corrected(trace.tables[name], name, by_rank)
    return stored.changed(lambda _, rows: _corrected(rows, name, by_rank))


def _corrected(table: pa.Table, name: str, maps: Mapping[int, ClockMap]) -> pa.Table:
    """Return a table with the times of its ranks moved."""
    times = [column.name for column in TABLES[name].columns if column.is_instant]
    if "rank" not in table.column_names or not times or not table.num_rows:
        return table
    ranks, position = np.unique(table["rank"].to_numpy(), return_inverse=True)
    by_rank = [maps.get(int(rank), SAME_CLOCK) for rank in ranks]
    if all(one is SAME_CLOCK for one in by_rank):
        return table
    columns = {column: _moved_column(table[column], position, by_rank) for column in times}
    if "dur_ns" in table.column_names and any(one.drift for one in by_rank):
        start, length = (table[column].to_numpy() for column in ("start_ns", "dur_ns"))
        end = moved(start + length, position, by_rank)
        columns["dur_ns"] = pa.array(end - columns["start_ns"].to_numpy())
    for column, values in columns.items():
        at = table.column_names.index(column)
        table = table.set_column(at, table.schema.field(at), values)
    return table


def _moved_column(column: pa.ChunkedArray, position: IntArray, by_rank: list[ClockMap]) -> pa.Array:
    unknown = column.is_null().to_numpy()
    times = column.fill_null(0).to_numpy()
    return pa.array(moved(times, position, by_rank), mask=unknown)


def _unconnected(clocks: Sequence[str], estimates: pa.Table) -> tuple[str, ...]:
    """Return a sentence on clocks that nothing compares, if there are any."""
    compared = set(estimates["host"].to_pylist())
    sets = [clock for clock in clocks if clock not in compared]
    if len(sets) < 2:
        return ()
    shown = ", ".join(sets[:_NAMED]) + (" …" if len(sets) > _NAMED else "")
    return (
        f"{_NOTHING_COMPARES} {len(sets)} sets of ranks (around {shown}): "
        "whether their times agree is not known",
    )


def _corrections(maps: Mapping[str, ClockMap], clocks: int) -> tuple[str, ...]:
    """Return sentences on what was corrected."""
    worst = max(maps, key=lambda clock: abs(maps[clock].offset_ns))
    most = maps[worst]
    limits = [
        f"{len(maps)} of {counted(clocks, 'clock')} corrected, by up to "
        f"{abs(most.offset_ns) / 1e6:.3f} ms ({worst}; error below {most.error_ns / 1e6:.3f} ms)"
    ]
    drifting = [clock for clock, one in maps.items() if one.drift]
    if drifting:
        fastest = max(drifting, key=lambda clock: abs(maps[clock].drift))
        limits.append(
            f"{counted(len(drifting), 'clock')} drifting, by up to "
            f"{abs(maps[fastest].drift) * 1e6:.1f} ppm ({fastest}): corrected"
        )
    return tuple(limits)
