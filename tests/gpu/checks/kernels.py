"""Kernels of a Kineto trace, and the spans of the probe that launched them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]

_LAUNCHES = ("cuda_runtime", "cuda_driver")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


class Compared(NamedTuple):
    """Spans that launched something on the device, one value each, in ns."""

    device_ns: Times
    """Time between the span's events."""
    kernel_ns: Times
    """From the begin of its first kernel to the end of its last one."""
    start_error_ns: Times
    """Begin of the span on the device as the probe says it, minus that of its first kernel."""


def kernels_of(trace: Mapping[str, Any]) -> Times:
    """Return (launch, begin, end) of everything that ran on the device, unix ns, by launch.

    A launch and what it ran have the same correlation id.
    """
    base_ns = int(trace.get("baseTimeNanoseconds") or 0)
    launches: dict[int, float] = {}
    ran: list[tuple[int, float, float]] = []
    for event in trace["traceEvents"]:
        correlation = (event.get("args") or {}).get("correlation")
        if event.get("ph") != "X" or correlation is None:
            continue
        if event.get("cat") in _LAUNCHES:
            launches[int(correlation)] = float(event["ts"])
        elif event.get("cat") in _ON_DEVICE:
            begin_us = float(event["ts"])
            ran.append((int(correlation), begin_us, begin_us + float(event["dur"])))
    rows = [(launches[at], begin, end) for at, begin, end in ran if at in launches]
    if not rows:
        return np.zeros((0, 3), dtype=np.int64)
    found: Times = (np.array(sorted(rows)) * 1e3).astype(np.int64) + base_ns
    return found


def compare(spans: Mapping[str, Times], kernels: Times, to_unix_ns: int) -> Compared:
    """Join spans with what was launched while they ran on the host.

    Args:
        spans: ``start_ns``, ``dur_ns``, ``device_start_ns``, ``device_dur_ns``, monotonic.
        kernels: What ``kernels_of`` gives.
        to_unix_ns: What to add to monotonic times.
    """
    rows = []
    starts = spans["start_ns"] + to_unix_ns
    firsts = np.searchsorted(kernels[:, 0], starts)
    ends = np.searchsorted(kernels[:, 0], starts + spans["dur_ns"])
    for place, (first, end) in enumerate(zip(firsts, ends, strict=True)):
        if first == end:
            continue
        begin_ns = kernels[first:end, 1].min()
        kernel_ns = kernels[first:end, 2].max() - begin_ns
        error_ns = spans["device_start_ns"][place] + to_unix_ns - begin_ns
        rows.append((int(spans["device_dur_ns"][place]), int(kernel_ns), int(error_ns)))
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return Compared(*columns)
