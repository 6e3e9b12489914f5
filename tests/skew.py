"""Captures whose clocks were set wrong: the faults that alignment undoes."""

from collections.abc import Collection
from dataclasses import replace

import pyarrow as pa

from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.tables import TABLES

TIMES = (
    *("start_ns", "issue_ns", "end_ns", "wait_start_ns", "wait_end_ns", "time_ns", "launch_ns"),
    *("device_start_ns", "alive_ns", "ended_ns"),
)
"""Columns that hold readings of a clock."""


def shifted(trace: Trace, ranks: Collection[int], offset_ns: int, drift: float = 0.0) -> Trace:
    """Return the trace with the clocks of some ranks ahead, and running fast by ``drift`` (ns/ns)."""
    tables = {}
    for name, table in trace.tables.items():
        frame = trace.frame(name).copy()
        if "rank" in frame and len(frame):
            chosen = frame["rank"].isin(ranks)
            for column in set(TIMES) & set(frame.columns):
                known = chosen & frame[column].notna()
                grown = (frame.loc[known, column].astype("int64") * drift).round().astype("int64")
                frame.loc[known, column] += offset_ns + grown
            table = TABLES[name].conform(pa.Table.from_pandas(frame, preserve_index=False))
        tables[name] = table
    return replace(trace, tables=tables, _frames={})
