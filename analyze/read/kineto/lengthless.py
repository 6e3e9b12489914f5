"""Work of a device without a length that can be read: left out, as work that the profiler lost.

With a length of zero it would look like idle time, and the account would name a cause of that. Left out, its
launch lacks its work, and ``kernels.lost_work`` says how much idle time may be none::

    launched   a  b  c             launched   a  b  c
    recorded   aa ?  cc      ->    recorded   aa    cc      b may have run between

A collective stays, with a length of zero: without it all later ones of its group would be matched wrongly.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.terms import KernelCategory

from ...wording.limits import Limit
from ...wording.message import message
from .event_columns import CATEGORIES, RoledEvents
from .stamps import EXPORT_AGAIN

_LEAST = 20
"""Events of which not one has a length by more than a few accidents."""
_COMMUNICATION = CATEGORIES.index(KernelCategory.COMMUNICATION)


def without_lengthless_work(roles: RoledEvents, where: str) -> tuple[RoledEvents, list[Limit]]:
    """Return the events without work of a device whose length is unknown, and what is said of it.

    Raises:
        TraceFormatError: No work of the device has a length.
    """
    device = roles.device
    lacks = device.dur < 0
    if not lacks.any():
        return roles, []
    if len(device) >= _LEAST and lacks.all():
        raise TraceFormatError(
            message("refused.no_lengths", events=len(device)), where=where, remedy=EXPORT_AGAIN
        )
    stays = lacks & (device.category == _COMMUNICATION)
    keep = ~lacks | stays
    place = np.cumsum(keep) - 1
    kept = replace(device, dur=np.maximum(device.dur, 0)).at(np.flatnonzero(keep))
    communication = {int(place[at]): args for at, args in roles.communication.items() if keep[at]}
    notes: list[Limit] = []
    of_all = {"events": len(device)}
    if not keep.all():
        notes.append(message("missing.lengthless_work", count=int((~keep).sum()), **of_all))
    if stays.any():
        notes.append(message("assumed.lengthless_communication", count=int(stays.sum()), **of_all))
    return replace(roles, device=kept, communication=communication), notes
