"""The events of one rank as the content of a trace file of the PyTorch profiler.

The position of an event in the list is its index in the frame of ``event_rows``, so
that what an analysis of the frame finds can be drawn into the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from .rows import FIRST_INDEX, HOST_PROCESS, Symbols

_NS_PER_US = 1_000
_ARGUMENTS = {
    "stream": "stream",
    "correlation": "correlation",
    "bytes": "bytes",
    "memory_bw_gbps": "memory bandwidth (GB/s)",
    "wait_on_stream": "wait_on_stream",
    "wait_on_cuda_event_record_corr_id": "wait_on_cuda_event_record_corr_id",
}
_BATCH = 10_000
"""Rows at once: bounds the memory of a write."""


def raw_header(
    rank: int, world_size: int | None, device: str | None, base_ns: int
) -> dict[str, Any]:
    """Return what stands before the events of a rank.

    Args:
        rank: The global rank.
        world_size: Ranks of the job, None where that is not known.
        device: Model of the device, None where that is not known.
        base_ns: What the stamps count from.
    """
    distributed = {"rank": rank} | ({} if world_size is None else {"world_size": world_size})
    return {
        "schemaVersion": 1,
        "distributedInfo": distributed,
        "deviceProperties": [] if device is None else [{"id": 0, "name": device}],
        "baseTimeNanoseconds": base_ns,
        "displayTimeUnit": "ms",
    }


def raw_events(
    rows: pd.DataFrame, symbols: Symbols, *, rank: int, base_ns: int
) -> Iterator[list[dict[str, Any]]]:
    """Yield batches of trace events; a stamp is an integer where it is whole microseconds.

    Args:
        rows: The events, as ``event_rows`` returns them.
        symbols: What their codes mean.
        rank: The global rank.
        base_ns: What the stamps count from.
    """
    name = {"name": f"rank {rank}"}
    title = {"ph": "M", "pid": HOST_PROCESS, "tid": 0, "ts": 0, "name": "process_name"}
    yield [title | {"args": name}] * FIRST_INDEX
    texts = list(symbols)
    for begin in range(0, len(rows), _BATCH):
        yield _events(rows.iloc[begin : begin + _BATCH], texts, base_ns)


def _events(rows: pd.DataFrame, texts: list[str], base_ns: int) -> list[dict[str, Any]]:
    columns = {
        "cat": [texts[code] for code in rows["cat"]],
        "name": [texts[code] for code in rows["name"]],
        "pid": rows["pid"].tolist(),
        "tid": rows["tid"].tolist(),
        "ts": _microseconds(rows["start_ns"].to_numpy() - base_ns),
        "dur": _microseconds(rows["dur_ns"].to_numpy()),
        "args": _arguments(rows),
    }
    keys = ("ph", *columns)
    return [
        dict(zip(keys, ("X", *row), strict=True)) for row in zip(*columns.values(), strict=True)
    ]


def _arguments(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the arguments of each event; one that does not apply is left out."""
    found: list[dict[str, Any]] = [{} for _ in range(len(rows))]
    for column, key in _ARGUMENTS.items():
        values = rows[column].to_numpy()
        known = values > 0 if column == "memory_bw_gbps" else values != -1
        for place, value in zip(
            np.flatnonzero(known).tolist(), values[known].tolist(), strict=True
        ):
            found[place][key] = value
    devices = rows["pid"].tolist()
    for place in np.flatnonzero(rows["stream"].to_numpy() != -1).tolist():
        found[place]["device"] = devices[place]
    return found


def _microseconds(time_ns: npt.NDArray[np.int64]) -> list[int] | list[float]:
    if not (time_ns % _NS_PER_US).any():
        whole: list[int] = (time_ns // _NS_PER_US).tolist()
        return whole
    exact: list[float] = (time_ns / _NS_PER_US).tolist()
    return exact
