"""Events of an Nsight export that lie, or reach, where nothing else of it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...wording.limits import Limit
from ..far_times import Extents, IntArray, LeftOut, Mask, Window, are_overrun
from .activities import Activities
from .ranges import NvtxEvents


def without_far_events(
    device: Activities, calls: Activities, nvtx: NvtxEvents, names: Sequence[str]
) -> tuple[Activities, Activities, NvtxEvents, list[Limit]]:
    """Return the events without those that no clock can have shown, and what is said of those.

    Left out is what begins or ends a day or more from where the others begin, and of the device
    what is longer than all that although later work of its stream begins within.
    """
    ranges = nvtx.ranges
    extents = Extents()
    for columns in (device.columns, calls.columns):
        extents.add(columns["start"], _dur(columns["start"], columns["end"]))
    extents.add(ranges.start, _dur(ranges.start, ranges.end))
    window = extents.doubtful_window()
    if window is None:
        return device, calls, nvtx, []
    left_out = LeftOut(window, names)
    kept_ranges = _kept(window, ranges.start, ranges.end, ranges.name, left_out)
    return (
        _filtered(device, window, left_out, streams=_streams(device.columns)),
        _filtered(calls, window, left_out),
        replace(nvtx, ranges=ranges.take(kept_ranges)),
        left_out.limits(),
    )


def _filtered(
    events: Activities, window: Window, left_out: LeftOut, streams: IntArray | None = None
) -> Activities:
    columns = events.columns
    kept = _kept(window, columns["start"], columns["end"], columns["name"], left_out, streams)
    return replace(events, columns={key: values[kept] for key, values in columns.items()})


def _kept(
    window: Window,
    start: IntArray,
    end: IntArray,
    name: IntArray,
    left_out: LeftOut,
    streams: IntArray | None = None,
) -> Mask:
    dur = _dur(start, end)
    far = window.are_far(start, dur)
    long = np.zeros(len(start), dtype=bool)
    if streams is not None:
        long = are_overrun(start, dur, streams, window.are_long(dur) & ~far)
    left_out.count(start, dur, name, far=far, long=long)
    return ~(far | long)


def _streams(columns: dict[str, IntArray]) -> IntArray:
    """Return one number for each stream of a device and a process."""
    places = np.column_stack([columns[name] for name in ("process", "device", "stream")])
    _, code = np.unique(places, axis=0, return_inverse=True)
    found: IntArray = code.reshape(-1)
    return found


def _dur(start: IntArray, end: IntArray) -> IntArray:
    dur: IntArray = np.maximum(end - start, 0)
    return dur
