"""Device work that begins before its launch, or so long after that no queue explains it: its clock is off.

A queue holds some thousand launches, so work may begin seconds after its launch, but never before it, and not
all of it a minute late.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...tables.early_work import LEAST_EVENTS, early_events
from ...wording.limits import Limit
from ...wording.message import message
from .columns import DeviceLinks
from .event_columns import RoledEvents

_LATE_NS = 60_000_000_000


def clock_notes(roles: RoledEvents, links: DeviceLinks) -> Iterator[Limit]:
    """Yield by how much the clock of the device is off, where the launches show it."""
    linked = np.flatnonzero(links.is_linked)
    if len(linked) < LEAST_EVENTS:
        return
    delay = roles.device.start[linked] - links.launch[linked]
    early = early_events(delay)
    if early:
        most = {"early": early, "events": len(delay), "apart_ns": int(-delay.min())}
        yield message("doubt.device_before_launch", **most)
    elif int(delay.min()) > _LATE_NS:
        yield message("doubt.device_after_launch", events=len(delay), apart_ns=int(delay.min()))
