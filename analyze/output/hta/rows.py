"""The events of one rank in the columns that HolisticTraceAnalysis works on.

It keeps host and device events in one frame: a device event has a stream, a host
event has stream -1, and both refer to names and categories by their place in one list
of symbols that all ranks share. Times are still integers of nanoseconds here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.terms import DeviceInterface, KernelCategory

_EVENT = ("name_id", "start_ns", "dur_ns", "step", "position")
_DEVICE = ("category", "device", "stream", "correlation", "size_bytes", "rate_bytes_per_s")
_SYNC = ("wait_stream", "wait_correlation")
TABLES = {
    "kernel": (*_EVENT, *_DEVICE, *_SYNC),
    "annotation": (*_EVENT, "device", "thread"),
    "op": (*_EVENT, "thread"),
    "runtime_call": (*_EVENT, "interface", "thread", "correlation"),
    "name": ("name_id", "name"),
}
"""The columns that the rows are made from, by table."""
FIRST_INDEX = 1
"""Index of the first event: HolisticTraceAnalysis takes a link to index 0 for none."""
HOST_PROCESS = 1_000_000
"""Stands for the process of the host, beyond the ordinals of all devices."""

KERNEL_WORDS: Mapping[str, str] = {
    KernelCategory.COMPUTE: "kernel",
    KernelCategory.COMMUNICATION: "kernel",
    KernelCategory.UNKNOWN: "kernel",
    KernelCategory.MEMCPY: "gpu_memcpy",
    KernelCategory.MEMSET: "gpu_memset",
    KernelCategory.SYNC: "cuda_sync",
}
CALL_WORDS: Mapping[str, str] = {
    DeviceInterface.RUNTIME: "cuda_runtime",
    DeviceInterface.DRIVER: "cuda_driver",
}
OPERATOR, HOST_NOTE, DEVICE_NOTE = "cpu_op", "user_annotation", "gpu_user_annotation"

_STEP_NAME = re.compile(r"ProfilerStep\s*#\s*\d+")
_NONE = -1
_BYTES_PER_GB = 1e9
_Columns = dict[str, npt.NDArray[Any]]


class Symbols(dict[str, int]):
    """A number for each distinct text, in the order in which they come."""

    def __missing__(self, text: str) -> int:
        code = self[text] = len(self)
        return code

    def codes(self, texts: list[str]) -> npt.NDArray[np.int64]:
        """Return the number of each text."""
        return np.fromiter((self[text] for text in texts), np.int64, len(texts))


def event_rows(tables: Mapping[str, pa.Table], symbols: Symbols) -> pd.DataFrame:
    """Return all events of one rank, in the order of their source where that is known.

    Args:
        tables: The rank's rows, with the columns of ``TABLES``.
        symbols: Numbers of the names and categories; new ones are added.

    Returns:
        One row an event: index (from ``FIRST_INDEX``, also the label), cat and name
        (codes), pid (device, or ``HOST_PROCESS``), tid (stream or thread), start_ns,
        dur_ns, stream, correlation, bytes, memory_bw_gbps (GB/s, 0 where there is none),
        wait_on_stream, wait_on_cuda_event_record_corr_id, and iteration (the step, -1
        where no ``ProfilerStep`` is marked). What does not apply is -1.
    """
    names = tables["name"]
    code_of = np.full(1 + pc.max(names["name_id"]).as_py() if len(names) else 0, _NONE, np.int64)
    code_of[names["name_id"].to_numpy()] = symbols.codes(names["name"].to_pylist())
    parts = [
        _kernels(tables["kernel"], symbols),
        _annotations(tables["annotation"], symbols),
        _operators(tables["op"], symbols),
        _calls(tables["runtime_call"], symbols),
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    columns["name"] = code_of[columns["name"]]
    if not any(map(_STEP_NAME.match, names["name"].to_pylist())):
        columns["iteration"][:] = _NONE
    order = np.lexsort((-columns["dur_ns"], columns["start_ns"], columns.pop("position")))
    index = np.arange(FIRST_INDEX, FIRST_INDEX + len(order))
    ordered = {name: column[order] for name, column in columns.items()}
    return pd.DataFrame({"index": index, **ordered}, index=pd.Index(index), copy=False)


def _kernels(kernel: pa.Table, symbols: Symbols) -> _Columns:
    stream = _numbers(kernel, "stream")
    return _event_columns(kernel) | {
        "cat": _coded(kernel["category"], KERNEL_WORDS, symbols),
        "pid": _numbers(kernel, "device"),
        "tid": stream,
        "stream": stream,
        "correlation": _numbers(kernel, "correlation"),
        "bytes": _numbers(kernel, "size_bytes"),
        "memory_bw_gbps": pc.fill_null(kernel["rate_bytes_per_s"], 0.0).to_numpy() / _BYTES_PER_GB,
        "wait_on_stream": _numbers(kernel, "wait_stream"),
        "wait_on_cuda_event_record_corr_id": _numbers(kernel, "wait_correlation"),
    }


def _annotations(annotation: pa.Table, symbols: Symbols) -> _Columns:
    device = _numbers(annotation, "device")
    on_host = device == _NONE
    words = np.where(on_host, HOST_NOTE, DEVICE_NOTE).tolist()
    return _event_columns(annotation) | {
        "cat": symbols.codes(words),
        "pid": np.where(on_host, HOST_PROCESS, device),
        "tid": _numbers(annotation, "thread"),
    }


def _operators(op: pa.Table, symbols: Symbols) -> _Columns:
    return _event_columns(op) | {
        "cat": symbols.codes([OPERATOR] * len(op)),
        "tid": _numbers(op, "thread"),
    }


def _calls(call: pa.Table, symbols: Symbols) -> _Columns:
    return _event_columns(call) | {
        "cat": _coded(call["interface"], CALL_WORDS, symbols),
        "tid": _numbers(call, "thread"),
        "correlation": _numbers(call, "correlation"),
    }


def _event_columns(table: pa.Table) -> _Columns:
    """Return what every event has, and the values of a host event for the rest."""
    count = len(table)
    return {
        "cat": np.empty(0, np.int64),
        "name": _numbers(table, "name_id"),
        "pid": np.full(count, HOST_PROCESS),
        "tid": np.empty(0, np.int64),
        "start_ns": _numbers(table, "start_ns"),
        "dur_ns": _numbers(table, "dur_ns"),
        "stream": np.full(count, _NONE),
        "correlation": np.full(count, _NONE),
        "bytes": np.full(count, _NONE),
        "memory_bw_gbps": np.zeros(count),
        "wait_on_stream": np.full(count, _NONE),
        "wait_on_cuda_event_record_corr_id": np.full(count, _NONE),
        "iteration": _numbers(table, "step"),
        "position": _numbers(table, "position"),
    }


def _numbers(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = pc.fill_null(table[name], _NONE).to_numpy()
    return values.astype(np.int64)


def _coded(
    column: pa.ChunkedArray, words: Mapping[str, str], symbols: Symbols
) -> npt.NDArray[np.int64]:
    """Return the code of the word for each value; words that no row has get none.

    Some analyses ask whether a category is among the symbols.
    """
    values = column.combine_chunks().dictionary_decode().dictionary_encode()
    codes = symbols.codes([words[value] for value in values.dictionary.to_pylist()])
    found: npt.NDArray[np.int64] = codes[values.indices.to_numpy()]
    return found
