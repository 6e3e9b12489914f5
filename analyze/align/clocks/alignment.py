"""Offsets between the clocks of a capture: estimated from its communication, and corrected.

Two clocks are compared where collectives ended on both (``evidence``), and by causality
where it leaves less doubt, or says otherwise. Sets of clocks that few or no collectives cross are compared by sends. Drift is
corrected with the offset where it is beyond doubt. Clocks that the capture tells apart
are always mapped. Ranks of which it is not known whether they share one keep their times if
the offset is within its error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.host_tables import SAMPLED
from meshscope.probe.schema.tables import CLOCK_SYNC, TABLES

from ...tables.arrays import BoolArray, FloatArray, IntArray
from ...tables.stored_tables import StoredTable
from ...tables.trace import Trace
from ...wording.limits import Limit, has_code
from ...wording.message import message
from .evidence import brief, causal_bounds, collective_ends, common_ends
from .fit import (
    SAME_CLOCK,
    SOUND,
    ClockForest,
    ClockMap,
    Comparison,
    contradict,
    fit_bounds,
    fit_common_ends,
    moved,
    to_middles,
)
from .host_samples import moved_samples

LEAST_CORRECTION_NS = 12_000.0
"""Members that share a clock are seen to leave collectives that far apart, always in one order."""
ROUGH_NS = 20_000.0
"""Doubt of what collectives tell from which on sends and receives are asked, too: hosts that wake up
late see common ends that far apart, devices do not."""
SHARPER = 0.5
"""What these tell is taken where its doubt is less than that of the other's."""
VAGUE_NS = 5_000_000.0
"""From this on an offset within its own error is not distinguished from none, and to move times by it can be
worse than to leave them; a smaller one does no harm."""
_NOT_COMPARED = "doubt.clocks_not_compared"


def has_clocks_apart(trace: Trace) -> bool:
    """Tell whether a capture that was aligned has clocks that nothing compares."""
    return trace.per_step_clock or any(has_code(one, _NOT_COMPARED) for one in trace.limits)


def align(trace: Trace) -> Trace:
    """Return the trace with every time on the clock that most ranks agree with.

    Every time column of a rank moves with the rank's clock, and integers stay
    integers. The corrections made are in its ``clock_sync`` table, and its limits state
    them. The same trace is returned where there is nothing to correct or to state, where
    each step has a time origin of its own, which need not be that of a clock, and for dumps
    of a flight recorder, which are read by positions and not by times.
    """
    clocks = _clocks(trace)
    if trace.per_step_clock or not trace.capabilities.has_comparable_times or len(clocks) < 2:
        return trace
    estimates = estimate_offsets(trace)
    limits = (*_unconnected(clocks, estimates), *_left_in_doubt(trace, estimates))
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
    separated = np.array([name in set(trace.clocks.values()) for name in names])
    sound = ClockForest(len(names))
    sound.connect(_sharpened(trace, clock_of, separated, _by_collectives(ends, least=SOUND)))
    maps, middle = to_middles(sound, ranks.astype(float))
    times, read_on = (ends[name].to_numpy(np.int64) for name in ("time_ns", "clock"))
    in_sets = ends.assign(time_ns=moved(times, read_on, maps), clock=middle[read_on])
    sets = ClockForest(len(names))
    bounds = _by_causality(trace, clock_of, maps, middle)
    found = _by_collectives(in_sets, least=1)
    sets.connect([*_consistent(found, bounds, separated), *bounds.values()])
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


def _by_collectives(ends: pd.DataFrame, *, least: int) -> list[_ByEnds]:
    """Return the comparisons of clocks that saw at least so many ends together."""
    found = []
    for _, rows in common_ends(ends).groupby(["first", "clock"]):
        if len(rows) < least:
            continue
        first, clock = (int(rows[name].iloc[0]) for name in ("first", "clock"))
        time_ns, ahead_ns = (rows[name].to_numpy() for name in ("time_ns", "ahead_ns"))
        if not rows["host"].any():
            one = fit_common_ends(time_ns, ahead_ns, host=False)
            found.append(_ByEnds(Comparison(first, clock, one), is_host=False, is_uneven=False))
            continue
        short = brief(rows["width_ns"].to_numpy(float))
        one = fit_common_ends(time_ns[short], ahead_ns[short], host=True)
        is_uneven = False
        if (~short).sum() >= SOUND:
            others = fit_common_ends(time_ns[~short], ahead_ns[~short], host=True)
            is_uneven = _apart_ns(others, one) > others.error_ns + one.error_ns
        found.append(_ByEnds(Comparison(first, clock, one), is_host=True, is_uneven=is_uneven))
    return found


class _ByEnds(NamedTuple):
    """A comparison by common ends, and what it rests on."""

    compared: Comparison
    is_host: bool
    """Whether hosts saw the ends, which may leave before what they sent has come."""
    is_uneven: bool
    """Whether the clocks are apart by something else at the end of long ones than of short ones."""


def _sharpened(
    trace: Trace, clock_of: dict[int, int], separated: BoolArray, found: list[_ByEnds]
) -> list[Comparison]:
    """Return the comparisons by collectives, those by causality where these are far less in doubt.

    Nothing is received before it is sent: messages both ways bound an offset by as much as the fastest of
    them take, which on hosts can be less than how far apart they see a collective end.
    """
    compared = [one.compared for one in found]
    is_sharp = all(one.to_first.error_ns < ROUGH_NS for one in compared)
    if is_sharp and not any(one.is_host for one in found):
        return compared
    count = len(separated)
    bounds = _by_causality(trace, clock_of, [SAME_CLOCK] * count, np.arange(count))
    consistent = _consistent(found, bounds, separated)
    sharp = []
    for one in consistent:
        other = bounds.get((one.first, one.clock), one)
        is_sharper = other.doubt_ns < SHARPER * one.doubt_ns
        sharp.append(other if is_sharper else one)
    # Clocks that messages tie together need no collective whose ends are in doubt.
    most_ns = SHARPER * max(one.doubt_ns for one in consistent)
    return [*sharp, *(one for one in bounds.values() if one.doubt_ns < most_ns)]


def _consistent(
    found: list[_ByEnds], bounds: Mapping[tuple[int, int], Comparison], separated: BoolArray
) -> list[Comparison]:
    """Return the comparisons by common ends as far as causality allows them.

    Ends that hosts saw need not be common: one whose link is slow leaves when its data are in a buffer, and the
    others when these have come, always by the same time later. So what contradicts causality is no offset, and
    where ends are seen not to be common the error reaches as far as causality allows; also
    of clocks that are known to be two, which are corrected whatever the error is.
    """
    consistent = []
    for compared, is_host, is_uneven in found:
        first, clock, one = compared[:3]
        bound = bounds.get((first, clock))
        if bound is None or not is_host:
            consistent.append(compared)
            continue
        apart_ns = _apart_ns(bound.to_first, one)
        if apart_ns > bound.to_first.error_ns + one.error_ns:
            consistent.append(bound)
            continue
        if is_uneven or (separated[first] and separated[clock]):
            error_ns = max(one.error_ns, apart_ns + bound.to_first.error_ns)
            wide = one._replace(error_ns=error_ns)
            compared = Comparison(first, clock, wide, None if is_uneven else one.error_ns)
        consistent.append(compared)
    return consistent


def _apart_ns(one: ClockMap, other: ClockMap) -> float:
    """Return how far apart two maps of the same clock are where the first holds."""
    there = other.offset_ns + other.drift * (one.time_ns - other.time_ns)
    return abs(there - one.offset_ns)


def _by_causality(
    trace: Trace, clock_of: dict[int, int], maps: Sequence[ClockMap], middle: IntArray
) -> dict[tuple[int, int], Comparison]:
    """Return the comparisons of clocks with bounds from both sides, by these.

    Collectives bound as messages do, unless what they say cannot all be true: a wait that begins
    late, or members that were matched wrongly.
    """
    found = {}
    for collectives in (False, True):
        bounds = causal_bounds(trace, clock_of, maps, middle, collectives=collectives)
        for _, rows in bounds.groupby(["first", "clock"]):
            one = _from_bounds(rows)
            if one is not None and not (collectives and contradict(*_columns(rows))):
                first, clock = (int(rows[name].iloc[0]) for name in ("first", "clock"))
                found[first, clock] = Comparison(first, clock, one)
    return found


def _columns(bounds: pd.DataFrame) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return time_ns, least_ns and most_ns of bounds."""
    least_ns, most_ns = (bounds[name].to_numpy(float) for name in ("least_ns", "most_ns"))
    return bounds["time_ns"].to_numpy(np.int64), least_ns, most_ns


def _from_bounds(rows: pd.DataFrame) -> ClockMap | None:
    found = fit_bounds(
        *_columns(rows),
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
    separated = set(trace.clocks.values())
    found = {}
    for row in estimates.to_pylist():
        clock, reference, offset_ns = row["host"], row["reference_host"], row["offset_ns"]
        doubt = max(row["error_ns"], LEAST_CORRECTION_NS)
        if {clock, reference} <= separated and not _is_vague(row):
            doubt = 0.0
        one = ClockMap(row["time_ns"], offset_ns, (row["drift_ppm"] or 0.0) / 1e6, row["error_ns"])
        found[clock] = (reference, one if abs(offset_ns) > doubt or one.drift else SAME_CLOCK)
    return found


def _is_vague(row: Mapping[str, Any]) -> bool:
    """Return whether an offset is large, and so is its error."""
    return bool(abs(row["offset_ns"]) >= VAGUE_NS and row["error_ns"] >= VAGUE_NS)


def _left_in_doubt(trace: Trace, estimates: pa.Table) -> Iterator[Limit]:
    """Yield how far clocks that are separated may be off, where that is not corrected for want of certainty."""
    separated = set(trace.clocks.values())
    rows = [
        row
        for row in estimates.to_pylist()
        if {row["host"], row["reference_host"]} <= separated
        and _is_vague(row)
        and not row["drift_ppm"]
        and abs(row["offset_ns"]) <= row["error_ns"]
    ]
    if rows:
        worst = max(rows, key=lambda row: abs(row["offset_ns"]))
        amounts = {"offset_ns": abs(worst["offset_ns"]), "error_ns": worst["error_ns"]}
        yield message("doubt.clocks_vague", clocks=len(rows), worst=worst["host"], **amounts)


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


def _unconnected(clocks: Sequence[str], estimates: pa.Table) -> tuple[Limit, ...]:
    """Return a sentence on clocks that nothing compares, if there are any."""
    compared = set(estimates["host"].to_pylist())
    sets = [clock for clock in clocks if clock not in compared]
    if len(sets) < 2:
        return ()
    return (message("doubt.clocks_not_compared", sets=len(sets), some=sets),)


def _corrections(maps: Mapping[str, ClockMap], clocks: int) -> tuple[Limit, ...]:
    """Return sentences on what was corrected."""
    worst = max(maps, key=lambda clock: abs(maps[clock].offset_ns))
    most = maps[worst]
    limits: list[Limit] = [
        message(
            "assumed.clocks_corrected",
            corrected=len(maps),
            clocks=clocks,
            offset_ns=float(abs(most.offset_ns)),
            worst=worst,
            error_ns=float(most.error_ns),
        )
    ]
    drifting = [clock for clock, one in maps.items() if one.drift]
    if drifting:
        fastest = max(drifting, key=lambda clock: abs(maps[clock].drift))
        drift = float(abs(maps[fastest].drift))
        limits.append(
            message("assumed.clocks_drifting", drifting=len(drifting), drift=drift, fastest=fastest)
        )
    return tuple(limits)
