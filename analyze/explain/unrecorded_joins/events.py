"""Joins that the times show beside the operations that were recorded."""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import CollectiveKind

from ...align.communication.events import CommunicationEvents
from ...align.communication.rows import narrow


def with_inferred(events: CommunicationEvents, joins: pd.DataFrame) -> CommunicationEvents:
    """Return the events with inferred joins as operations of their own.

    They have no size: nothing was seen to be sent. On a capture of hosts they are waited for from the
    first to the last instant.

    Args:
        events: What was recorded.
        joins: rank, step, group_id, axis, join (from 0 on), start_ns, split_ns, end_ns.
    """
    frame = events.frame
    is_host = bool(frame["host"].any())
    waited = joins[["start_ns", "end_ns"]].to_numpy(np.float64)
    first = int(frame["join"].max()) + 1 if len(frame) else 0
    rows = pd.DataFrame(
        {
            "rank": joins["rank"].to_numpy(np.int64),
            "step": joins["step"].to_numpy(np.int64),
            "group_id": joins["group_id"].to_numpy(object),
            "axis": joins["axis"].to_numpy(object),
            "kind": CollectiveKind.BARRIER.value,
            "link": "",
            "size_bytes": 0,
            "is_p2p": False,
            "is_send": False,
            "is_buffered": False,
            "host": is_host,
            "float_bytes": 0,
            "join": narrow(joins["join"].to_numpy(np.int64) + first),
            "start_ns": joins["start_ns"].to_numpy(np.int64),
            "end_ns": joins["end_ns"].to_numpy(np.float64),
            "wait_start_ns": waited[:, 0] if is_host else np.nan,
            "wait_end_ns": waited[:, 1] if is_host else np.nan,
            "wire_ns": joins["end_ns"].to_numpy(np.float64)
            - joins["split_ns"].to_numpy(np.float64),
            "split_ns": joins["split_ns"].to_numpy(np.float64),
            "is_inferred": True,
        }
    )
    columns = {str(name): _appended(frame[name], rows[name]) for name in frame}
    return events._replace(frame=pd.DataFrame(columns, copy=False))


def _appended(column: pd.Series, more: pd.Series) -> pd.Series:
    """Return a column with more rows; categories stay in sorted order."""
    if not isinstance(column.dtype, pd.CategoricalDtype):
        return pd.concat([column, more.astype(column.dtype)], ignore_index=True)
    names = sorted({*column.cat.categories, *more.unique()})
    dtype = pd.CategoricalDtype(pd.Index(names))
    return pd.concat([column.astype(dtype), more.astype(dtype)], ignore_index=True)
