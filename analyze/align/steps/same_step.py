"""Steps of ranks that are the same step: those in which they issue the same collectives.

A rank counts its steps from its own start. Where ranks join a job that runs already, they count
from 0 while the others go on; where groups of ranks train apart, equal numbers mean nothing::

    ranks 0, 1    steps 0 .. 14 alone      15 .. 29 together with 2, 3
    ranks 2, 3                              0 .. 14               shifted by 15: 15 .. 29
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.reader.shifts import joined_shifts

from ...tables.arrays import IntArray
from ...tables.trace import Trace
from ...wording.limits import Limit
from ...wording.message import message
from ..topology.group_traffic import connected

LEAST_OPERATIONS = 3
LEAST_AGREEING = 0.9
"""Share of the operations of two ranks that must tell the same offset."""
_MOVED = (
    *("step", "span", "collective", "p2p", "memory", "recording", "communication_sum"),
    "microbatch",
    *("kernel", "op", "runtime_call", "annotation", "python_call"),
)
"""Tables with steps that count on each rank."""


def with_matched_steps(trace: Trace) -> Trace:
    """Return a capture of ours with equal numbers for the steps in which ranks issued the same.

    Nothing is looked at where the windows of equal steps overlap in time on all ranks.
    """
    if not trace.capabilities.counts_steps_by_rank or not len(
        steps_apart(trace, trace.frame("step"))
    ):
        return trace
    shift = joined_by_ties(_offsets(trace))
    if not any(shift.values()):
        return trace
    least = min(shift.get(rank, 0) for rank in trace.ranks)
    return with_shifts(trace, {rank: shift.get(rank, 0) - least for rank in trace.ranks})


def with_shifts(trace: Trace, shift: Mapping[int, int]) -> Trace:
    """Return the trace with the steps of some ranks renumbered, and a limit that says so.

    Args:
        trace: A capture.
        shift: What is added to the steps of each of its ranks.
    """
    by_shift: dict[int, list[int]] = defaultdict(list)
    for rank, by in shift.items():
        by_shift[by].append(rank)
    moves = [
        message("assumed.renumbered_by", ranks=ranks, by=by)
        for by, ranks in sorted(by_shift.items())
        if by
    ]
    limit = message("assumed.renumbered", moves=moves)
    kernel_steps = trace.kernel_steps and {
        rank: tuple(step + shift.get(rank, 0) for step in steps)
        for rank, steps in trace.kernel_steps.items()
    }
    found = renumbered(
        trace, lambda rank, step: np.where(step >= 0, step + shift.get(rank, 0), step)
    )
    return replace(found, kernel_steps=kernel_steps, limits=(*trace.limits, limit))


def renumbered(trace: Trace, number: Callable[[int, IntArray], IntArray]) -> Trace:
    """Return the trace with other numbers for the steps of each rank.

    Args:
        trace: A capture.
        number: Returns the new numbers of some steps of a rank.
    """
    found = trace
    for name in _MOVED:
        if trace.row_count(name):
            found = found.with_changed_ranks(name, partial(_renumbered, number))
    return found


def _renumbered(
    number: Callable[[int, IntArray], IntArray], rank: int, table: pa.Table
) -> pa.Table:
    step = table["step"].to_numpy()
    moved = number(rank, step.astype(np.int64))
    if (moved == step).all():
        return table
    at = table.column_names.index("step")
    field = table.schema.field(at)
    return table.set_column(at, field, pc.cast(pa.array(moved, pa.int64()), field.type))


def without_unmatched(
    trace: Trace, frame: pd.DataFrame, common: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], list[Limit]]:
    """Return the steps of which the ranks were at work at one time, or that communication ties.

    Args:
        trace: A capture.
        frame: Rows of its ``step`` table.
        common: Steps that every rank in it has.
    """
    if not trace.capabilities.counts_steps_by_rank or trace.per_step_clock:
        return common, []
    apart = steps_apart(trace, frame[frame["step"].isin(common)])
    apart = apart[~_is_tied(trace, set(frame["rank"].tolist()), apart)]
    if not len(apart):
        return common, []
    lost, steps = len(apart), len(common)
    if not trace.row_count("collective") and not trace.row_count("p2p"):
        return common, [message("doubt.steps_apart", apart=lost, steps=steps)]
    kept = common[~np.isin(common, apart)]
    return kept, [message("missing.untied_steps", apart=lost, steps=steps)]


def steps_apart(trace: Trace, steps: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return steps of which two ranks with one clock have windows that do not overlap."""
    clock = steps["rank"].map({rank: trace.clock_of(rank) for rank in trace.ranks})
    windows = pd.DataFrame(
        {
            "step": steps["step"],
            "clock": clock,
            "start": steps["start_ns"],
            "end": steps["start_ns"] + steps["dur_ns"],
        }
    )
    bounds = windows.groupby(["step", "clock"]).agg(start=("start", "max"), end=("end", "min"))
    late = bounds.index[bounds["start"] > bounds["end"]]
    return np.unique(late.get_level_values("step").to_numpy(np.int64))


def _offsets(trace: Trace) -> pd.DataFrame:
    """Return by how much the steps of ranks differ in what they issued together.

    Returns:
        base (the lowest rank of the operations), rank and diff (the step of the base less its own);
        one row a pair of ranks that agrees on it.
    """
    return agreeing_offsets(issued_in_steps(trace))


def agreeing_offsets(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the same for rows that ``issued_in_steps`` gave."""
    pairs = rows[rows["rank"] != rows["base"]].assign(
        diff=lambda row: row["base_step"] - row["step"]
    )
    counts = pairs.groupby(["base", "rank", "diff"]).size().rename("count").reset_index()
    total = counts.groupby(["base", "rank"])["count"].transform("sum")
    agrees = (counts["count"] >= LEAST_OPERATIONS) & (counts["count"] >= LEAST_AGREEING * total)
    return counts.loc[agrees, ["base", "rank", "diff"]]


def issued_in_steps(trace: Trace) -> pd.DataFrame:
    """Return rank and step of each collective in a step, beside those of its lowest rank."""
    rows = trace.frame("collective")[["group_id", "seq", "rank", "step"]]
    rows = rows[(rows["step"] >= 0) & (rows["seq"] >= 0)].astype({"group_id": str})
    rows = rows.drop_duplicates(["group_id", "seq", "rank"], keep="last").sort_values("rank")
    first = rows.groupby(["group_id", "seq"])[["rank", "step"]].transform("first")
    return rows.assign(base=first["rank"], base_step=first["step"])


def joined_by_ties(offsets: pd.DataFrame) -> dict[int, int]:
    """Return what to add to the steps of each rank; {} where operations contradict each other.

    Args:
        offsets: base, rank and diff (the step of the base less that of the rank), one row a pair.
    """
    ties = list(offsets.itertuples(index=False, name=None))
    found: dict[int, int] = {}
    for root in sorted({rank for base, other, _ in ties for rank in (base, other)}):
        if root not in found:
            found |= joined_shifts(root, ties)
    agree = all(found[rank] == found[base] + diff for base, rank, diff in ties)
    return found if agree else {}


def _is_tied(trace: Trace, ranks: set[int], steps: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which steps communication with equal numbers of the step shows to be the same.

    All of them where it joins all ranks in some of them. A rank counts its steps one by one, so a
    step between two that join all ranks is the same on all, too.
    """
    if not len(steps):
        return np.zeros(0, dtype=bool)
    rows = issued_in_steps(trace)
    same = rows.loc[rows["step"] == rows["base_step"], ["step", "base", "rank"]].drop_duplicates()
    p2p = trace.frame("p2p")[["step", "rank", "peer"]].drop_duplicates()
    p2p = p2p[p2p["peer"] >= 0].set_axis(["step", "base", "rank"], axis=1)
    pairs = pd.concat([same, p2p])
    if _join(pairs[pairs["step"].isin(steps)], ranks):
        return np.ones(len(steps), dtype=bool)
    joined = [cast(int, step) for step, own in pairs.groupby("step") if _join(own, ranks)]
    if not joined:
        return np.zeros(len(steps), dtype=bool)
    return np.asarray((steps > min(joined)) & (steps < max(joined)))


def _join(pairs: pd.DataFrame, ranks: set[int]) -> bool:
    found = set(pairs[["base", "rank"]].itertuples(index=False, name=None))
    return any(ranks <= set(joined) for joined in connected(found))
