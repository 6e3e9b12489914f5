"""Ranks whose communication was not recorded when a capture ended.

A probe that takes too much, or that is asked to, records less from a step on, or records some
windows of steps only. What its rank has issued since is not known: that others are ahead of its
last record says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import pyarrow as pa

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


def unheard_limit(tables: Mapping[str, pa.Table]) -> tuple[str, ...]:
    """Return a limit for a capture that broke off: ranks of which nobody knows where they are.

    Args:
        tables: Those of the capture.
    """
    ranks = unheard_ranks(tables)
    if not ranks:
        return ()
    return (
        f"the communication of {rank_words(sorted(ranks))} was not recorded when the capture broke off: "
        "whether others wait there is not known",
    )


def _columns(tables: Mapping[str, pa.Table], name: str, columns: list[str]) -> pd.DataFrame:
    table = tables.get(name, TABLES[name].empty())
    frame: pd.DataFrame = table.select(columns).to_pandas()
    return frame
