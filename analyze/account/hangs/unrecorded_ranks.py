"""Ranks whose communication was not recorded when a capture ended.

A probe that takes too much, or that is asked to, records less from a step on, or records some
windows of steps only. What its rank has issued since is not known: that others are ahead of its
last record says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.manifest import LAST_OPERATIONS_KEY
from meshscope.probe.schema.sampling import is_recorded
from meshscope.probe.schema.standstill_tables import NO_GROUP
from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import CaptureLevel, Direction

from ...tables.trace import Trace
from ...wording.limits import Limit
from ...wording.message import message
from .notes import notes_of_last_step

SILENT_NS = 5_000_000_000
"""A process that is ten times as long without a sign of life as it should be."""
_WITH_COMMUNICATION = (CaptureLevel.COLLECTIVES.value, CaptureLevel.KERNELS.value)


def unheard_ranks(tables: Mapping[str, pa.Table]) -> frozenset[int]:
    """Return the ranks whose communication is not recorded in the step that they were in.

    Args:
        tables: Those of the capture.
    """
    levels = _columns(tables, "recording", ["rank", "step", "level", "one_in"])
    last = levels.sort_values("step", kind="stable").drop_duplicates("rank", keep="last")
    silent = ~last["level"].astype(str).isin(_WITH_COMMUNICATION)
    sampled = last[~silent & (last["one_in"] > 1)]
    left_out: set[int] = set()
    if len(sampled):
        done = _columns(tables, "step", ["rank", "step"]).groupby("rank")["step"].max()
        # Windows go by the numbers of the newest attempt, which begin at 0.
        begun = (
            max(tables["attempt"]["first_step"].to_pylist(), default=0)
            if "attempt" in tables
            else 0
        )
        left_out = {
            rank
            for rank, one_in in zip(sampled["rank"], sampled["one_in"].astype(int), strict=True)
            if not is_recorded(max(int(done.get(rank, -1)) + 1 - begun, 0), one_in)
        }
    return frozenset({*last.loc[silent, "rank"].tolist(), *left_out})


def unknown_at_the_end(trace: Trace) -> list[int]:
    """Return the ranks of which nothing tells what they had issued when the job ended."""
    progress = trace.frame("progress")
    of_group = progress[progress["group_id"] != NO_GROUP]
    return sorted(map(int, of_group.loc[of_group["issued_seq"].isna(), "rank"].unique()))


def lost_ranks(trace: Trace) -> frozenset[int]:
    """Return ranks of which nothing tells what they had issued, and that fell silent long before others did.

    Such a process is stopped, or native code holds its interpreter. It has issued nothing since, so others
    wait for it, if they wait. Who ended in order is not lost.
    """
    progress = trace.frame("progress")
    by_rank = progress.groupby("rank").agg(
        issued=("issued_seq", "count"),
        in_order=("completed_seq", "count"),
        alive_ns=("alive_ns", "max"),
    )
    alive_ns = by_rank["alive_ns"].dropna().astype("int64")
    is_silent = alive_ns <= alive_ns.max() - SILENT_NS
    is_unknown = (by_rank["issued"] == 0) & (by_rank["in_order"] == 0)
    unknown = unheard_ranks(trace.tables) & set(by_rank.index[is_unknown])
    return frozenset(map(int, alive_ns.index[is_silent])) & unknown


def counted_collectives(
    tables: Mapping[str, pa.Table],
    manifests: Mapping[int, Mapping[str, Any]],
    unheard: frozenset[int],
) -> dict[tuple[str, int], int]:
    """Return the last collective of each group that an unheard rank issued, by what it noted.

    A note of an earlier step tells nothing. Nor do counts of a group that carries messages, which
    backends count too, each rank its own, or of one with members that are recorded: their
    numbers are others.

    Args:
        tables: Those of the capture.
        manifests: Manifests of the ranks.
        unheard: Ranks whose communication was not recorded at the end.
    """
    if not unheard:
        return {}
    comparable = _comparable_groups(tables, set(manifests) - unheard)
    own = {rank: manifest for rank, manifest in manifests.items() if rank in unheard}
    found: dict[tuple[str, int], int] = {}
    standing = notes_of_last_step(tables["step"], own)
    last = notes_of_last_step(tables["step"], own, LAST_OPERATIONS_KEY)
    # What was noted because another rank had died may have gone on; after its own exception a rank did not.
    failed = {rank: note for rank, note in last.items() if note.get("error")}
    for rank, note in (standing | failed).items():
        counts = note.get("collectives")
        # The first one has the number 0.
        found |= {
            (group, rank): count - 1
            for group, count in (counts.items() if isinstance(counts, dict) else ())
            if type(count) is int and group in comparable
        }
    return found


def _comparable_groups(tables: Mapping[str, pa.Table], heard: set[int]) -> set[str]:
    """Return the groups without messages of which no member is recorded."""
    groups = _columns(tables, "group", ["group_id", "ranks"])
    sums = _columns(tables, "communication_sum", ["group_id", "operation"]).astype(str)
    sent = sums["operation"].isin([direction.value for direction in Direction])
    messages = set(_columns(tables, "p2p", ["group_id"])["group_id"].astype(str))
    messages |= set(sums.loc[sent, "group_id"])
    alone = [heard.isdisjoint(ranks) for ranks in groups["ranks"]]
    return set(groups.loc[alone, "group_id"].astype(str)) - messages


def unheard_limits(tables: Mapping[str, pa.Table]) -> tuple[Limit, ...]:
    """Return limits for a capture that broke off: ranks of which less is known than of others.

    Args:
        tables: Those of the capture, with ``progress``.
    """
    unheard = unheard_ranks(tables)
    progress = _columns(tables, "progress", ["rank", "issued_seq"]).dropna()
    counted = unheard & set(progress["rank"].astype(int))
    limits: list[Limit] = []
    if counted:
        limits.append(message("missing.counted_by_backends", ranks=sorted(counted)))
    if unheard - counted:
        limits.append(message("missing.not_recorded_at_the_end", ranks=sorted(unheard - counted)))
    return tuple(limits)


def _columns(tables: Mapping[str, pa.Table], name: str, columns: list[str]) -> pd.DataFrame:
    table = tables.get(name, TABLES[name].empty())
    frame: pd.DataFrame = table.select(columns).to_pandas()
    return frame
