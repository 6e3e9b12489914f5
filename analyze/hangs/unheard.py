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

from meshscope.probe.schema.manifest import STANDSTILL_KEY
from meshscope.probe.schema.sampling import is_recorded
from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import CaptureLevel

from ..labels import rank_words

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
        left_out = {
            rank
            for rank, one_in in zip(sampled["rank"], sampled["one_in"].astype(int), strict=True)
            if not is_recorded(int(done.get(rank, -1)) + 1, one_in)
        }
    return frozenset({*last.loc[silent, "rank"].tolist(), *left_out})


def counted_collectives(
    steps: pa.Table, manifests: Mapping[int, Mapping[str, Any]], unheard: frozenset[int]
) -> dict[tuple[str, int], int]:
    """Return the last collective of each group that an unheard rank issued, by what it noted.

    A note of an earlier step tells nothing.

    Args:
        steps: The ``step`` table.
        manifests: Manifests of the ranks.
        unheard: Ranks whose communication was not recorded at the end.
    """
    if not unheard:
        return {}
    frame = steps.select(["rank", "start_ns", "dur_ns"]).to_pandas()
    ended_ns = (frame["start_ns"] + frame["dur_ns"]).groupby(frame["rank"]).max()
    found: dict[tuple[str, int], int] = {}
    for rank in unheard:
        annotations = manifests.get(rank, {}).get("annotations")
        note = annotations.get(STANDSTILL_KEY) if isinstance(annotations, dict) else None
        counts = note.get("collectives") if isinstance(note, dict) else None
        time_ns = note.get("time_ns") if isinstance(note, dict) else None
        if not isinstance(counts, dict) or type(time_ns) is not int:
            continue
        if time_ns > ended_ns.get(rank, 0):
            # The first one has the number 0.
            found |= {
                (group, rank): count - 1 for group, count in counts.items() if type(count) is int
            }
    return found


def unheard_limits(tables: Mapping[str, pa.Table]) -> tuple[str, ...]:
    """Return limits for a capture that broke off: ranks of which less is known than of others.

    Args:
        tables: Those of the capture, with ``progress``.
    """
    unheard = unheard_ranks(tables)
    progress = _columns(tables, "progress", ["rank", "issued_seq"]).dropna()
    counted = unheard & set(progress["rank"].astype(int))
    limits = []
    if counted:
        limits.append(
            f"the communication of {rank_words(sorted(counted))} was not recorded when the capture broke off: "
            "where collectives stood is told by the counts of the backends, and messages are not known"
        )
    if unheard - counted:
        limits.append(
            f"the communication of {rank_words(sorted(unheard - counted))} was not recorded when the capture "
            "broke off: whether others wait there is not known"
        )
    return tuple(limits)


def _columns(tables: Mapping[str, pa.Table], name: str, columns: list[str]) -> pd.DataFrame:
    table = tables.get(name, TABLES[name].empty())
    frame: pd.DataFrame = table.select(columns).to_pandas()
    return frame
