"""Unequal data: microbatches whose sequences need more or less work.

All ranks that hold a part of one replica of the model compute the same
microbatches. What one of them needs beyond its centre, and the others need too
for the same microbatch, comes with the data; what it alone needs is its own.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import SpanKind

from ..effects import Work, leave_one_out_median
from ..intervals import IntArray
from ..program import Program
from ..replay import FloatArray
from ..trace import Trace

MIN_CORRELATION = 0.5
"""Least correlation between a rank and the others of its replica; noise of independent ranks
stays below with as many microbatches as ``MIN_MICROBATCHES``."""
MIN_MICROBATCHES = 12
"""Least number of microbatches over all steps and replicas that tells a correlation."""
_KINDS = {
    SpanKind.FORWARD.value: "forward",
    SpanKind.BACKWARD.value: "backward",
    SpanKind.BACKWARD_INPUT.value: "backward",
    SpanKind.BACKWARD_WEIGHT.value: "backward",
    SpanKind.RECOMPUTE.value: "backward",
}


def sequence_effect(
    trace: Trace, program: Program, work: Work, residual: FloatArray, centre: FloatArray
) -> FloatArray | None:
    """Return the part of the residual, ns per cell, that a replica shares by microbatch.

    For each microbatch the relative residual of a rank is regressed on the median of
    the other ranks of its replica; the fitted part is the data's. A rank that has no
    other in its replica is regressed on its own other direction, with the means of
    the steps taken out, because a slow rank slows both.

    None where microbatches are not on record, where nobody shares them, or where the
    ranks do not agree.

    Args:
        trace: The capture.
        program: The replay graph.
        work: The recorded work by cell.
        residual: What each cell works beyond its centre, ns.
        centre: That centre, ns.
    """
    spans = _microbatch_spans(trace, program)
    if trace.layout is None or spans.empty:
        return None
    replica = {rank: trace.layout.coordinates(rank)["dp"] for rank in program.windows.ranks}
    spans["replica"] = spans["rank"].map(replica)
    if len(set(replica.values())) == len(replica):
        return _alone(program, work, spans)
    return _shared(program, work, spans, residual, centre)


def _shared(
    program: Program, work: Work, spans: pd.DataFrame, residual: FloatArray, centre: FloatArray
) -> FloatArray | None:
    """Return the effect where several ranks hold parts of a replica."""
    span = _span_of_cells(program, work, spans)
    cells = spans.iloc[np.maximum(span, 0)][["replica", "microbatch", "kind"]].reset_index(
        drop=True
    )
    cells = cells.assign(
        rank=work.cells["rank"],
        step=work.cells["step"],
        residual=residual,
        centre=centre,
    )[span >= 0]
    keys = ["replica", "step", "microbatch", "rank"]
    table = cells.groupby([*keys, "kind"], as_index=False)[["residual", "centre"]].sum()
    table = table[table["centre"] > 0].reset_index(drop=True)
    table["own"] = table["residual"] / table["centre"]
    by_rank = table.groupby(keys)["own"].mean().reset_index()
    by_rank["others"] = leave_one_out_median(by_rank, keys[:3], "own")
    table = table.merge(by_rank[[*keys, "others"]], on=keys)
    slope = _slope(table["own"], table["others"], len(table.drop_duplicates(keys[:3])))
    if slope is None:
        return None
    factor = cells.merge(table, on=[*keys, "kind"], how="left")["others"].fillna(0.0)
    effect = np.zeros(len(work.cells))
    effect[span >= 0] = slope * factor.to_numpy() * cells["centre"].to_numpy()
    return effect


def _alone(program: Program, work: Work, spans: pd.DataFrame) -> FloatArray | None:
    """Return the effect where each rank is a replica of its own.

    That data drives the durations is read from the directions of a microbatch, which
    agree against the mean of their step; how much it does then includes that mean.
    """
    centre = spans.groupby(["kind", "microbatch"])["dur_ns"].transform("mean")
    spans["own"] = spans["dur_ns"] / centre - 1.0
    keys = ["rank", "step", "microbatch"]
    total = spans.groupby(keys)["own"].transform("sum")
    others = ((total - spans["own"]) / (spans.groupby(keys)["own"].transform("size") - 1)).where(
        lambda value: np.isfinite(value)
    )
    of_step = [spans["rank"], spans["step"]]
    slope = _slope(
        spans["own"] - spans["own"].groupby([*of_step, spans["kind"]]).transform("mean"),
        others - others.groupby([*of_step, spans["kind"]]).transform("mean"),
        len(spans.drop_duplicates(keys)),
    )
    if slope is None:
        return None
    excess = (slope * others * centre).fillna(0.0).to_numpy()
    middle = spans["start_ns"].to_numpy() + spans["dur_ns"].to_numpy() / 2
    cell = work.cell[_edge_at(program, spans["rank"].to_numpy(np.int64), middle)]
    return np.bincount(cell, weights=excess, minlength=len(work.cells)).astype(np.float64)


def _microbatch_spans(trace: Trace, program: Program) -> pd.DataFrame:
    """Return the forward and backward spans of the analysed steps, in order of time."""
    spans = program.windows.select(trace.frame("span"))
    kind = spans["kind"].astype(str).map(_KINDS)
    known = (kind.notna() & (spans["microbatch"] >= 0)).to_numpy(bool)
    start = program.windows.shifted(spans["step"], spans["start_ns"])
    columns = {
        name: spans[name].to_numpy(np.int64) for name in ("rank", "step", "microbatch", "dur_ns")
    }
    rows = pd.DataFrame({**columns, "kind": kind.to_numpy(), "start_ns": start})[known]
    return rows.sort_values(["rank", "start_ns"], ignore_index=True)


def _span_of_cells(program: Program, work: Work, spans: pd.DataFrame) -> IntArray:
    """Return the span that each cell mostly worked on, -1 without one.

    A work edge belongs to the span around its middle, a cell to its longest edge.
    """
    marks, edge = program.marks, program.work_edges
    middle = marks["start_ns"].to_numpy(np.float64)[edge] - work.edge_span_ns / 2
    rank = marks["rank"].to_numpy(np.int64)[edge]
    place = _last_before(
        spans["rank"].to_numpy(), spans["start_ns"].to_numpy(np.float64), rank, middle
    )
    end = (spans["start_ns"] + spans["dur_ns"]).to_numpy()
    inside = (place >= 0) & (spans["rank"].to_numpy()[place] == rank) & (middle < end[place])
    longest = np.lexsort((work.edge_work_ns, work.cell))
    is_last = np.append(work.cell[longest][1:] != work.cell[longest][:-1], True)
    return np.asarray(np.where(inside, place, -1)[longest[is_last]])


def _edge_at(program: Program, rank: IntArray, time: FloatArray) -> IntArray:
    """Return the work edge of each rank that holds, or is the first to end after, a time."""
    marks, edge = program.marks, program.work_edges
    ends = marks["start_ns"].to_numpy(np.float64)[edge]
    before = _last_before(marks["rank"].to_numpy(np.int64)[edge], ends, rank, time)
    return np.minimum(before + 1, len(edge) - 1)


def _last_before(
    row_rank: IntArray, row_time: FloatArray, rank: IntArray, time: FloatArray
) -> IntArray:
    """Return the last row at or before each (rank, time), in rows sorted by both; -1 for none."""
    count = len(row_rank)
    is_query = np.append(np.zeros(count), np.ones(len(rank)))
    order = np.lexsort((is_query, np.append(row_time, time), np.append(row_rank, rank)))
    latest = np.maximum.accumulate(np.where(order < count, order, -1))
    place = np.empty(len(order), np.int64)
    place[order] = latest
    return place[count:]


def _slope(own: pd.Series, others: pd.Series, microbatches: int) -> float | None:
    """Return the share of the others' deviation that a rank shows too, 0..1; None for noise."""
    known = others.notna()
    own, others = own[known], others[known]
    if microbatches < MIN_MICROBATCHES or not len(own) or own.std() == 0 or others.std() == 0:
        return None
    if np.corrcoef(own, others)[0, 1] < MIN_CORRELATION:
        return None
    covariance = ((own - own.mean()) * (others - others.mean())).mean()
    return float(np.clip(covariance / others.var(ddof=0), 0.0, 1.0))
