"""Kernels that may communicate although neither metadata nor name says so.

A library of its own, such as a new expert dispatch, launches its kernels from C++ onto a
stream beside the one that computes. What such a kernel does cannot be known; counted
as computation it would hide communication, so it is separated as ``unknown``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from meshscope.probe.schema.printable import listed
from meshscope.probe.schema.terms import KernelCategory

from ...tables.intervals import union
from ...wording.limits import Limit
from ...wording.message import message
from ..kernel_names import kernel_category
from .columns import DeviceLinks
from .event_columns import CATEGORIES, Events, IntArray, RoledEvents

_COMPUTE = CATEGORIES.index(KernelCategory.COMPUTE)
_UNKNOWN = CATEGORIES.index(KernelCategory.UNKNOWN)
_LEAST_LINKED_FRAC = 0.5
"""Share of the computing kernels that must have an operator, so that having none says something."""

_SHOWN = 4
"""Streams that a note names."""

Mask = npt.NDArray[np.bool_]


def separated(roles: RoledEvents, links: DeviceLinks) -> RoledEvents:
    """Return the events with the kernels that may communicate as ``unknown``."""
    device = roles.device
    category = np.where(maybe_communication(device, links), _UNKNOWN, device.category)
    return replace(roles, device=replace(device, category=category))


def unknown_notes(roles: RoledEvents, links: DeviceLinks) -> list[Limit]:
    """Return what is said of the kernels of unknown kind, one clause each.

    Activities of a category that is not known are none of them: what they did is not known.
    """
    device = roles.device
    is_unknown = device.category == _UNKNOWN
    is_fused = is_unknown & (links.operator >= 0)
    fused = [c for c, n in enumerate(roles.names) if kernel_category(n) is KernelCategory.UNKNOWN]
    is_fused &= np.isin(device.name, fused)
    is_unseen = is_unknown & (links.operator < 0)
    notes: list[Limit] = []
    if is_fused.any():
        notes.append(message("doubt.fused_kernels", **_amount(device, is_fused)))
    if is_unseen.any():
        streams = sorted(set(device.stream[is_unseen].tolist()))
        notes.append(
            message(
                "doubt.kernels_without_operator",
                **_amount(device, is_unseen),
                streams=listed(streams, most=_SHOWN),
            )
        )
    return notes


def _amount(device: Events, mask: Mask) -> dict[str, int]:
    return {"kernels": int(mask.sum()), "time_ns": int(device.dur[mask].sum())}


def maybe_communication(device: Events, links: DeviceLinks) -> Mask:
    """Return which device activities may communicate, by where and how they ran.

    All of this must hold; where the file records no operators, nothing is said:

    - it is a kernel that no rule knows, and no operator launched it;
    - no kernel of its stream was launched by an operator, so the stream does no
      ordinary computation;
    - its grid has more than one block, or is not recorded;
    - its launch started this kernel alone: replayed graphs put computation on any stream;
    - kernels of its stream overlap the computation of other streams of the device.
    """
    is_compute = device.category == _COMPUTE
    has_operator = links.operator >= 0
    none = np.zeros(len(device), dtype=bool)
    ordinary = is_compute & has_operator
    if not ordinary.any() or ordinary.sum() < _LEAST_LINKED_FRAC * is_compute.sum():
        return none
    stream = _stream_codes(device)
    is_side = ~np.isin(stream, stream[ordinary])
    suspects: Mask = is_compute & is_side & (device.blocks != 1) & ~_shares_launch(device)
    for place in np.unique(device.device[suspects]):
        own = device.device == place
        busy = union(_intervals(device, ordinary & own))
        for code in np.unique(stream[suspects & own]):
            members = suspects & (stream == code)
            if not _overlap(_intervals(device, members), busy):
                suspects &= ~members
    return suspects


def _stream_codes(device: Events) -> IntArray:
    """Return one number for each pair of device and stream."""
    devices, place = np.unique(device.device, return_inverse=True)
    _, stream = np.unique(device.stream, return_inverse=True)
    codes: IntArray = stream * len(devices) + place
    return codes


def _shares_launch(device: Events) -> Mask:
    """Return which activities have the launch of another one too, as in a replayed graph."""
    _, place, count = np.unique(device.correlation, return_inverse=True, return_counts=True)
    shared: Mask = (count[place] > 1) & (device.correlation > 0)
    return shared


def _intervals(device: Events, mask: Mask) -> IntArray:
    return np.column_stack([device.start[mask], device.time.end[mask]])


def _overlap(intervals: IntArray, merged: IntArray) -> bool:
    """Return whether any interval meets the merged ones."""
    if not len(merged):
        return False
    following = np.searchsorted(merged[:, 1], intervals[:, 0], side="right")
    inside = following < len(merged)
    return bool((merged[following[inside], 0] < intervals[inside, 1]).any())
