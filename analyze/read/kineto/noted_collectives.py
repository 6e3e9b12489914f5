"""Kernels that communicate because the host says so: they were launched inside of a noted collective.

Libraries whose kernels no rule knows by name, such as those behind ``xccl:all_reduce``, are called inside of
an annotation. Where a kernel in there is known to communicate, the others arrange data for it::

    host    |-- nccl:all_gather --|      |-- xccl:all_reduce --|
    kernel     nccl...  copy                  kernel_1  kernel_2
    is         comm.    compute               comm.     comm.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from meshscope.probe.schema.terms import KernelCategory

from .columns import DeviceLinks
from .event_columns import CATEGORIES, Events, IntArray, RoledEvents
from .events import EventArgs

_NOTE = re.compile(r"(?:nccl|rccl|xccl|hccl|ucc):.")
"""Annotations of the process groups of devices; those of hosts copy to the host and launch no other work."""
_COMPUTE = CATEGORIES.index(KernelCategory.COMPUTE)
_COMMUNICATION = CATEGORIES.index(KernelCategory.COMMUNICATION)


def with_noted_collectives(roles: RoledEvents, links: DeviceLinks) -> RoledEvents:
    """Return the events with the kernels of such collectives as communication."""
    notes = roles.host_note.named(roles.names_like(_NOTE))
    device = roles.device
    if not len(notes) or not len(device):
        return roles
    note = _note_around(notes, np.where(links.is_linked, links.launch, notes.start.min() - 1))
    known = np.unique(note[device.category == _COMMUNICATION])
    is_own = (device.category == _COMPUTE) & (note >= 0) & ~np.isin(note, known)
    if not is_own.any():
        return roles
    category = np.where(is_own, _COMMUNICATION, device.category)
    found = {place: EventArgs() for place in np.flatnonzero(is_own).tolist()}
    return replace(
        roles,
        device=replace(device, category=category),
        communication=roles.communication | found,
    )


def _note_around(notes: Events, time: IntArray) -> IntArray:
    """Return which of the notes, in order of time, began last before each instant and is open; -1 if none."""
    order = np.argsort(notes.start, kind="stable")
    place = np.searchsorted(notes.start[order], time, side="right") - 1
    end = notes.time.end[order]
    return np.where((place >= 0) & (time < end[place]), place, -1)
