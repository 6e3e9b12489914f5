"""Captures written row by row: literal tables for tests with answers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

_COMMUNICATION = {
    "rank": 0,
    "step": 0,
    "group_id": "g",
    "axis": "dp",
    "seq": 0,
    "size_bytes": 1024,
    "dtype": "float32",
    "source": "device",
    "wait_start_ns": None,
    "wait_end_ns": None,
}
_DEFAULTS: dict[str, dict] = {
    "step": {"rank": 0, "step": 0, "start_ns": 0, "tokens": None},
    "span": {"rank": 0, "step": 0, "stage": 0, "chunk": 0, "microbatch": 0, "cpu_ns": None},
    "collective": {**_COMMUNICATION, "kind": "all_reduce"},
    "p2p": {**_COMMUNICATION, "axis": "pp", "microbatch": -1, "chunk": -1},
    "kernel": {
        "rank": 0,
        "step": 0,
        "device": 0,
        "stream": 7,
        "name_id": 0,
        "category": "compute",
        "correlation": -1,
        "op_id": -1,
        "launch_ns": None,
    },
    "name": {"rank": 0},
    "op": {"rank": 0, "step": 0, "thread": 1},
    "runtime_call": {
        "rank": 0,
        "step": 0,
        "interface": "runtime",
        "thread": 1,
        "correlation": -1,
    },
    "annotation": {"rank": 0, "step": 0, "device": -1, "thread": 1},
    "communication_sum": {
        "rank": 0,
        "step": 0,
        "group_id": "g",
        "axis": "dp",
        "operation": "all_reduce",
        "peer": -1,
        "size_log2": 10,
        "count": 1,
        "ended": 1,
        "waited": 0,
        "size_bytes": 1024,
    },
    "microbatch": {"rank": 0, "step": 0, "microbatch": 0},
    "memory": {"rank": 0, "step": 0, "phase": "after_backward", "stage": -1, "time_ns": 0},
    "device": {"host": "h"},
    "rank_device": {"host": "h", "evidence": "stated"},
    "device_event": {"host": "h", "time_ns": 0, "kind": "xid"},
    "device_sample": {"host": "h", "sm_util_frac": 1.0},
    "host_sample": {"host": "h"},
    "link_sample": {"host": "h", "port": "p", "speed_bytes_per_s": 1e9},
    "progress": {"rank": 0, "group_id": "g", "completed_seq": None},
    "collective_call": {"rank": 0, "group_id": "g", "input_bytes": 0, "output_bytes": 0},
    "transfer_call": {"rank": 0, "event_id": 0},
    "group": {"group_id": "g", "axis": "other", "ranks": [0, 1]},
    "attempt": {
        "training_step": None,
        "start_unix_ns": 0,
        "end_unix_ns": 1,
        "ranks": 2,
        "killed_ranks": 0,
    },
    "recording": {"rank": 0, "step": 0, "start_ns": None, "reason": None},
    "standing": {"rank": 0, "depth": 0, "goes_on": False, "moment": "standstill"},
    "noted_collective": {"rank": 0, "group_id": "g", "input_bytes": 0, "output_bytes": 0},
}


def trace_of(
    *,
    layout: ParallelLayout | None = None,
    run: dict | None = None,
    origin: str = "test",
    per_step_clock: bool = False,
    ranks: tuple[int, ...] | None = None,
    **rows: list[dict],
) -> Trace:
    """Return a capture that holds the given rows; columns left out have plain defaults.

    Communication rows give ``start_ns`` and ``end_ns``; ``issue_ns`` is the start and
    ``event_id`` the position of the row. The ranks are those of the ``step`` rows.
    """
    tables = {name: _table(name, given) for name, given in rows.items() if given}
    seen = {row.get("rank", 0) for row in rows.get("step", [])} or {0}
    row = dict.fromkeys(TABLES["run"].column_names()) | {"run_id": "literal"} | (run or {})
    return Trace(
        path=Path("literal"),
        run=row,
        layout=layout,
        ranks=ranks if ranks is not None else tuple(sorted(seen)),
        tables=tables,
        origin=origin,
        per_step_clock=per_step_clock,
    )


def _table(name: str, given: list[dict]) -> pa.Table:
    rows = [{**_DEFAULTS[name], **row} for row in given]
    if name in ("collective", "p2p"):
        rows = [{"issue_ns": row["start_ns"], "event_id": at, **row} for at, row in enumerate(rows)]
    columns = {key: [row.get(key) for row in rows] for key in {key for row in rows for key in row}}
    return TABLES[name].conform(pa.table(columns))


def host_row(start_ns: int, end_ns: int, **row: object) -> dict:
    """Return a communication row that the host blocked on from issue to end."""
    return {
        "start_ns": start_ns,
        "end_ns": end_ns,
        "source": "host_blocking",
        "wait_start_ns": start_ns,
        "wait_end_ns": end_ns,
        **row,
    }
