"""Exchanges of experts on a group that does the work of data parallelism besides.

Experts that are spread over all ranks need no group of their own: tokens go to them and back in
all-to-alls on the group that reduces gradients. Before the first backward pass of a step there are
no gradients yet, so these exchanges are no data parallelism, and what speeds up a reduction does not help them.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import Axis, CollectiveKind, SpanKind

from ...tables.trace import Trace

MIN_STEPS = 0.5
"""Share of the steps in which a group exchanges before there are gradients."""


def exchanging_groups(trace: Trace, among: Collection[str]) -> set[str]:
    """Return which of some groups exchange in all-to-alls between the first forward and backward.

    The rank with the lowest number stands for all, because all run the same program.
    """
    if not trace.ranks or not trace.row_count("span") or not among:
        return set()
    rank = trace.ranks[0]
    kinds = trace.rank_table("collective", rank, ["kind"])["kind"]
    if CollectiveKind.ALL_TO_ALL.value not in pc.unique(pc.cast(kinds, pa.string())).to_pylist():
        return set()
    spans = trace.rank_frame("span", rank, ["step", "kind", "start_ns"])
    rows = trace.rank_frame("collective", rank, ["step", "group_id", "kind", "issue_ns"])
    rows = rows[rows["kind"] == CollectiveKind.ALL_TO_ALL.value].dropna(subset=["issue_ns"])
    first = {
        kind: spans.loc[spans["kind"] == kind.value].groupby("step")["start_ns"].min()
        for kind in (SpanKind.FORWARD, SpanKind.BACKWARD)
    }
    steps = first[SpanKind.BACKWARD].index
    if rows.empty or not len(steps):
        return set()
    begun, over = (rows["step"].map(first[kind]) for kind in first)
    early = rows[(rows["issue_ns"] >= begun) & (rows["issue_ns"] < over)]
    share = early.groupby(early["group_id"].astype(str))["step"].nunique() / len(steps)
    return {str(name) for name in share.index[share >= MIN_STEPS]} & set(among)


def as_expert_all_to_alls(table: pa.Table, groups: Collection[str]) -> pa.Table:
    """Return the collectives with the all-to-alls of some groups on the expert axis."""
    if not groups or not table.num_rows:
        return table
    group, kind, axis = (pc.cast(table[name], pa.string()) for name in ("group_id", "kind", "axis"))
    moved = pc.and_(
        pc.is_in(group, pa.array(sorted(groups))), pc.equal(kind, CollectiveKind.ALL_TO_ALL.value)
    )
    at = table.column_names.index("axis")
    labelled = table.set_column(at, "axis", pc.if_else(moved, Axis.EP.value, axis))
    return TABLES["collective"].conform(labelled)
