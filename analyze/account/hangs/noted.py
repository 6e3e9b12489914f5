"""The end of a run as a dump of PyTorch's recorder would show it, by what ranks noted of that recorder.

A probe that records some windows of steps only has no record of the step in which the job ended. The notes have the
operations of that step, numbered by the backends, so they are compared among themselves only.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.imported_tables import COLLECTIVE_CALL
from meshscope.probe.schema.standstill_tables import PROGRESS
from meshscope.probe.schema.tables import COLLECTIVE, P2P
from meshscope.probe.schema.terms import Axis, TimeSource

from ...tables.capabilities import FLIGHT_RECORDER
from ...tables.trace import Trace


def as_dumped(trace: Trace) -> Trace | None:
    """Return the trace with what was noted in place of what was recorded; None where fewer than two ranks noted any.

    Args:
        trace: A capture that broke off.
    """
    noted = trace.frame("noted_collective")
    if noted["rank"].nunique() < 2:
        return None
    collectives = noted.assign(
        step=-1,
        axis=Axis.OTHER.value,
        issue_ns=noted["time_ns"],
        start_ns=noted["time_ns"],
        end_ns=pd.array([None] * len(noted), dtype="Int64"),
        source=TimeSource.HOST_ISSUE.value,
        event_id=range(len(noted)),
    )
    calls = noted.assign(is_started=None)
    tables = {
        spec.name: spec.conform(pa.Table.from_pandas(frame, preserve_index=False))
        for spec, frame in (
            (COLLECTIVE, collectives),
            (COLLECTIVE_CALL, calls),
            (PROGRESS, _progress(noted)),
        )
    }
    return replace(trace.with_tables(tables | {"p2p": P2P.empty()}), origin=FLIGHT_RECORDER)


def _progress(noted: pd.DataFrame) -> pd.DataFrame:
    """Return how far each rank came in each group: to before the first that is open."""
    keys = [noted["rank"], noted["group_id"].astype(str)]
    last = noted.groupby(keys)["seq"].max().rename("issued_seq")
    first_open = noted["seq"].where(noted["is_open"]).groupby(keys).min()
    completed = (first_open - 1).fillna(last).astype("int64").rename("completed_seq")
    return pd.concat([last, completed], axis=1).reset_index()
