"""Positions of collectives that agree between ranks, where each rank counted them by itself."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from meshscope.probe.schema.tables import TABLES

from ...tables.trace import Trace
from .realignment import realign


def with_agreed_positions(trace: Trace) -> Trace:
    """Return the trace with the positions of collectives made to agree between ranks.

    Positions that were counted from the start of each rank's capture shift when a
    rank saw one more.
    """
    if not trace.capabilities.counts_positions_by_rank or not trace.row_count("collective"):
        return trace
    if len(trace.ranks) == 1 and _is_counted_once(trace.tables["collective"]):
        return trace
    frame = trace.frame("collective")
    named = {name: frame[name].astype(str) for name in ("group_id", "kind")}
    rows, limits = realign(frame.assign(**named))
    if not limits:
        return trace
    moved = TABLES["collective"].conform(pa.Table.from_pandas(rows, preserve_index=False))
    found = trace.with_tables({"collective": moved})
    return replace(found, limits=(*trace.limits, *limits))


def _is_counted_once(collectives: pa.Table) -> bool:
    """Tell if no two collectives share a position: those of one rank then agree with all others."""
    positions = collectives.select(["group_id", "seq"]).combine_chunks()
    distinct = positions.group_by(["group_id", "seq"]).aggregate([])
    return bool(distinct.num_rows == positions.num_rows)
