"""Device work that begins before its launch, or so long after that no queue explains it: its clock is off.

A queue holds some thousand launches, so work may begin seconds after its launch, but never before it, and not
all of it a minute late.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...wording.limits import Limit
from ...wording.message import message
from .columns import DeviceLinks
from .event_columns import RoledEvents

_LEAST = 20
"""Events that must tell it."""
_EARLY_FRAC = 0.1
_EARLY_NS = 20_000
"""Clocks of host and device are matched to some microseconds."""
_LATE_NS = 60_000_000_000


def clock_notes(roles: RoledEvents, links: DeviceLinks) -> Iterator[Limit]:
    """Yield by how much the clock of the device is off, where the launches show it."""
    linked = np.flatnonzero(links.is_linked)
    if len(linked) < _LEAST:
        return
    delay = roles.device.start[linked] - links.launch[linked]
    early = int((delay < -_EARLY_NS).sum())
    if early >= max(_LEAST, len(delay) * _EARLY_FRAC):
        most = {"early": early, "events": len(delay), "apart_ns": int(-delay.min())}
        yield message("doubt.device_before_launch", **most)
    elif int(delay.min()) > _LATE_NS:
        yield message("doubt.device_after_launch", events=len(delay), apart_ns=int(delay.min()))
