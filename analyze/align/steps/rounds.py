"""Rounds: from one communication to the next, where ranks take unequal numbers of steps between.

Ranks that train alone for as many steps as their data has, and average their models then (federated
averaging, local SGD), meet in steps of unequal numbers. Which steps are the same is then not
known, but which rounds are: those that end in the same communication. For example, with a communication in the
steps marked by a star, and the number of the round below::

    rank 0    0 1 2* 3 4 5*       rank 1    0 1 2 3* 4 5 6 7*
              0 0 0  1 1 1                  0 0 0 0  1 1 1 1
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import cast

import numpy as np
import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import StepDetail

from ...tables.arrays import IntArray
from ...tables.trace import Trace
from ...wording.message import message
from ..topology.group_traffic import connected
from .same_step import issued_in_steps, renumbered, steps_apart

LEAST_ROUNDS = 3
LEAST_AGREEING = 0.9
"""Share of the operations of which all members must be in the same round."""
MOST_EQUAL = 0.5
"""Share of the operations up to which their members may be in steps of equal numbers."""


def with_rounds(trace: Trace) -> Trace:
    """Return a capture of ours with rounds for steps, where ranks communicate in steps of unequal numbers.

    Nothing is looked at where the windows of equal steps overlap in time on all ranks.
    """
    if (
        not trace.capabilities.counts_steps_by_rank
        or trace.row_count("attempt") > 1
        or trace.kernel_steps
    ):
        return trace
    steps = trace.frame("step")
    details = set(steps["detail"].dropna().astype(str))
    if not details <= {StepDetail.FULL.value} or not len(steps_apart(trace, steps)):
        return trace
    ends = _ends_of_rounds(trace)
    if not ends:
        return trace

    def number(rank: int, step: IntArray) -> IntArray:
        return np.where(step >= 0, np.searchsorted(ends[rank], step), step)

    between = [last - first for own in ends.values() for first, last in pairwise(own.tolist())]
    found = renumbered(trace, number)
    tables = {"step": _joined(steps, ends), **_with_microbatches(trace, found)}
    limit = message("assumed.rounds", least=min(between), most=max(between))
    return replace(found.with_tables(tables), limits=(*found.limits, limit))


def _ends_of_rounds(trace: Trace) -> dict[int, IntArray]:
    """Return the steps of each rank in which it communicates; {} where these are no common rounds."""
    rows = issued_in_steps(trace)
    if rows.empty or trace.row_count("p2p"):
        return {}
    ends = {cast(int, rank): np.unique(own) for rank, own in rows.groupby("rank")["step"]}
    if set(ends) != set(trace.ranks) or min(map(len, ends.values())) < LEAST_ROUNDS:
        return {}
    rows = rows[rows["rank"] != rows["base"]]
    same_round = _rounds(ends, rows["rank"], rows["step"]) == _rounds(
        ends, rows["base"], rows["base_step"]
    )
    agree = rows[same_round]
    pairs = set(agree[["base", "rank"]].itertuples(index=False, name=None))
    is_whole = any(set(trace.ranks) <= set(joined) for joined in connected(pairs))
    equal = float((rows["step"] == rows["base_step"]).mean())
    if not is_whole or len(agree) < LEAST_AGREEING * len(rows) or equal > MOST_EQUAL:
        return {}
    return ends


def _rounds(ends: dict[int, IntArray], rank: pd.Series, step: pd.Series) -> IntArray:
    """Return the round of each step."""
    ranks, steps = rank.to_numpy(np.int64), step.to_numpy(np.int64)
    found = np.zeros(len(steps), np.int64)
    for own, last in ends.items():
        at = ranks == own
        found[at] = np.searchsorted(last, steps[at])
    return found


def _joined(steps: pd.DataFrame, ends: dict[int, IntArray]) -> pa.Table:
    """Return the windows of whole rounds, each made of those of its steps."""
    parts = []
    for rank, own in steps.groupby("rank"):
        number = np.searchsorted(ends[cast(int, rank)], own["step"].to_numpy(np.int64))
        rounds = own.assign(step=number, end_ns=own["start_ns"] + own["dur_ns"]).groupby("step")
        joined = rounds.agg(start_ns=("start_ns", "min"), end_ns=("end_ns", "max"))
        joined["tokens"] = rounds["tokens"].sum(min_count=1)
        # A round is whole if the step that ends it is.
        is_whole = np.isin(ends[cast(int, rank)][: len(joined)], own["step"])
        joined = joined.iloc[: int(is_whole.sum())]
        parts.append(joined.reset_index().assign(rank=rank, detail=own["detail"].iloc[0]))
    frame = pd.concat(parts, ignore_index=True)
    frame["dur_ns"] = frame["end_ns"] - frame["start_ns"]
    columns = frame[list(TABLES["step"].column_names())]
    return TABLES["step"].conform(pa.Table.from_pandas(columns, preserve_index=False))


def _with_microbatches(before: Trace, after: Trace) -> dict[str, pa.Table]:
    """Return the tables with microbatches that count on through the steps of a round."""
    names = [name for name in ("span", "microbatch") if after.row_count(name)]
    placed = {name: _placed(before, after, name) for name in names}
    if "span" not in placed:
        return {}
    spans = placed["span"]
    each = int(spans["microbatch"].max()) + 1
    first = spans.groupby(["rank", "step"])["own_step"].min().rename("first")
    found = {}
    for name, rows in placed.items():
        into = rows["own_step"] - rows.join(first, on=["rank", "step"])["first"]
        moved = rows["microbatch"] + each * into.fillna(0).astype(np.int64)
        numbers = rows["microbatch"].where(rows["microbatch"] < 0, moved)
        table = after.tables[name]
        at = table.column_names.index("microbatch")
        column = pa.array(numbers.to_numpy())
        found[name] = TABLES[name].conform(table.set_column(at, "microbatch", column))
    return found


def _placed(before: Trace, after: Trace, name: str) -> pd.DataFrame:
    """Return rank, step, microbatch and own_step (that before they were rounds) of a table's rows."""
    rows = after.tables[name].select(["rank", "step", "microbatch"]).to_pandas()
    rows["own_step"] = before.tables[name]["step"].to_numpy()
    return cast(pd.DataFrame, rows)
