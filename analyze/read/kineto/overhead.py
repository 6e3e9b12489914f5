"""What the profiler itself and the driver did, as far as the profiler says so.

A flush of the profiler's buffers stops the program for tens of milliseconds. That time is none of the program's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from meshscope.probe.schema.terms import KernelCategory

from ...tables.intervals import intersect, pair, total_length, union
from ...wording.limits import Limit
from ...wording.message import message
from .columns import StepWindows
from .event_columns import CATEGORIES, Events, RoledEvents

_OF_PROFILER = re.compile(
    r"Buffer Flush|Activity Buffer Request|Instrumentation|Resource|UVM Activity Init"
)
"""Those that a run without the profiler does not have; modules are loaded there too."""
_COMPUTE = CATEGORIES.index(KernelCategory.COMPUTE)
_LEAST = 0.01
"""Share of the steps from which it is said."""


def with_overhead_notes(roles: RoledEvents) -> RoledEvents:
    """Return the events with the overhead as annotations of the host."""
    if not len(roles.overhead):
        return roles
    return replace(roles, host_note=Events.joined([roles.host_note, roles.overhead], 0))


def overhead_notes(roles: RoledEvents, steps: StepWindows) -> Iterator[Limit]:
    """Yield how much of the steps the profiler took, where that is much."""
    own = roles.overhead.named(roles.names_like(_OF_PROFILER))
    inside = intersect(union(pair(own.start, own.time.end)), union(pair(steps.start, steps.end)))
    time_ns, whole_ns = total_length(inside), int((steps.end - steps.start).sum())
    if not whole_ns or time_ns < _LEAST * whole_ns:
        return
    longest = roles.names[int(own.name[own.dur.argmax()])]
    share = time_ns / whole_ns
    yield message("doubt.work_of_profiler", share=share, time_ns=time_ns, name=longest)


def several_devices(roles: RoledEvents) -> Iterator[Limit]:
    """Yield how busy the devices of a process were, where it computed on several: they count as one."""
    device = roles.device
    busy = {}
    for number in np.unique(device.device[device.category == _COMPUTE]).tolist():
        own = device.at(np.flatnonzero(device.device == number))
        busy[number] = total_length(union(pair(own.start, own.time.end)))
    if len(busy) < 2:
        return
    least, *_, most = sorted(busy, key=lambda one: busy[one])
    ends = {"least_ns": busy[least], "most": most, "most_ns": busy[most]}
    yield message("doubt.several_devices", devices=len(busy), least=least, **ends)
