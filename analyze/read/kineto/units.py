"""Files of which all times are in another unit than the microseconds of the format.

Nothing in such a file contradicts anything else, but physics bounds it. A call that launches a kernel takes
2 to 10 us, and a kernel about 1 us at least, whatever the program does; no profiler can note a call in less
than 0.1 us. The shortest of many, or the usual one, says which unit it is::

                      shortest launch    shortest kernel
    usual             2 us               1 us
    in nanoseconds    2 ms               1 ms
    in milliseconds   2 ns               1 ns

A copy carries its size and its rate, and with them its length in seconds: one is enough.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshscope.probe.schema.errors import TraceFormatError

from ...wording.message import Message, message
from ..far_times import IntArray
from .event_columns import LAUNCH_CALLS, Events, RoledEvents, SpilledEvents
from .stamps import EXPORT_AGAIN

_LEAST = 20
"""Launches, or operators, below which a small program may have none that is usual."""
_LONG_LAUNCH_NS = 500_000
_LONG_KERNEL_NS = 100_000
"""No program whose calls do not wait for their kernels has only kernels and calls this long."""
_SHORT_CALL_NS = 100
"""The usual call, or operator, takes longer: a profiler reads the clock twice."""
_SHORT_SHARE_NS = 20
"""Work of a device takes about 1 us, and no device runs fifty at once for long."""
_ROUNDED_NS = 1_000
"""Old profilers write whole microseconds: zero is then a short time, and no other unit."""
_OTHER_RATE = 100.0
"""How many times longer, or shorter, than its size and rate say a copy is in another unit."""


def refuse_other_unit(roles: RoledEvents, where: str) -> None:
    """Refuse a file whose times are a thousand times too long, or too short, or of which the device has no lengths.

    Raises:
        TraceFormatError: It is such a file.
    """
    launch = _launches(roles)
    said = (
        _by_extent(roles.device)
        or _by_length(roles.device)
        or _by_calls(roles, launch)
        or _by_copies(roles.device, launch)
    )
    if said is not None:
        raise TraceFormatError(said, where=where, remedy=EXPORT_AGAIN)


def _by_extent(device: Events) -> Message | None:
    """Return what is wrong with the time from the first to the last work of the device."""
    if len(device) < _LEAST:
        return None
    extent_ns = int(device.time.end.max() - device.start.min())
    if extent_ns >= _SHORT_SHARE_NS * len(device):
        return None
    return message("refused.other_unit_of_extent", events=len(device), extent_ns=extent_ns)


def _by_length(device: Events) -> Message | None:
    """Return that no work of the device lasts: its lengths were left out, or rounded down."""
    if len(device) < _LEAST or device.dur.any():
        return None
    return message("refused.no_lengths", events=len(device))


def _by_calls(roles: RoledEvents, launch: IntArray) -> Message | None:
    """Return what is wrong with the lengths of the calls, None where nothing is."""
    if len(launch) < _LEAST:
        operator = _lengths(roles.operator)
        if len(launch) or len(operator) < _LEAST or not _are_too_short(operator):
            return None
        return message("refused.other_unit_of_operators", operator_ns=int(np.median(operator)))
    if _are_too_short(launch):
        return message("refused.other_unit_of_calls", launch_ns=int(np.median(launch)))
    kernel = roles.device.dur[roles.device.dur > 0]
    if len(kernel) < _LEAST:
        return None
    least = {"launch_ns": int(launch.min()), "kernel_ns": int(kernel.min())}
    is_long = least["launch_ns"] >= _LONG_LAUNCH_NS and least["kernel_ns"] >= _LONG_KERNEL_NS
    if is_long and not _wait_for_kernels(roles):
        return message("refused.other_unit_of_times", **least)
    return None


def _are_too_short(lengths: IntArray) -> bool:
    return bool(np.median(lengths) < _SHORT_CALL_NS and (lengths % _ROUNDED_NS != 0).any())


def _by_copies(device: Events, launch: IntArray) -> Message | None:
    """Return what is wrong with the lengths of the copies; usual launches overrule them."""
    if len(launch) and _SHORT_CALL_NS <= np.median(launch) < _LONG_LAUNCH_NS:
        return None
    if not len(device.size_bytes):
        return None
    is_known = (device.size_bytes > 0) & (device.rate_bytes_per_s > 0) & (device.dur > 0)
    if not is_known.any():
        return None
    by_rate = device.size_bytes[is_known] / device.rate_bytes_per_s[is_known] * 1e9
    over = device.dur[is_known] / by_rate
    if 1 / _OTHER_RATE < np.median(over) < _OTHER_RATE:
        return None
    at = int(np.argsort(over)[len(over) // 2])
    stated = {"dur_ns": int(device.dur[is_known][at]), "by_rate_ns": round(by_rate[at])}
    return message("refused.other_unit_of_copies", **stated)


def _launches(roles: RoledEvents) -> IntArray:
    """Return the lengths of the calls that launch kernels, without those of no length."""
    codes = np.array(sorted(roles.names_like(LAUNCH_CALLS)), dtype=np.int64)
    return _lengths(roles.launch, codes)


def _lengths(events: SpilledEvents, codes: IntArray | None = None) -> IntArray:
    parts: Iterator[IntArray] = (
        part.dur if codes is None else part.dur[np.isin(part.name, codes)]
        for part in events.parts()
    )
    found = np.concatenate([np.empty(0, np.int64), *parts])
    return found[found > 0]


def _wait_for_kernels(roles: RoledEvents) -> bool:
    """Return whether most calls last until their kernel is done, as with ``CUDA_LAUNCH_BLOCKING``."""
    device = roles.device
    order = np.argsort(device.correlation, kind="stable")
    keys = device.correlation[order]
    count = waiting = 0
    for part in roles.launch.parts():
        place = np.searchsorted(keys, part.correlation).clip(max=max(len(keys) - 1, 0))
        own = order[place]
        is_own = (part.correlation > 0) & (device.correlation[own] == part.correlation)
        count += int(is_own.sum())
        waiting += int((is_own & (part.time.end >= device.time.end[own])).sum())
    return 2 * waiting > count
