"""Files of which all times are in another unit than the microseconds of the format.

Nothing in such a file contradicts anything else, but physics bounds it. A call that launches a kernel takes
2 to 10 us, and a kernel about 1 us at least, whatever the program does. The shortest of hundreds says which unit it is::

                      shortest launch    shortest kernel
    usual             2 us               1 us
    in nanoseconds    2 ms               1 ms
    in milliseconds   2 ns               1 ns
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from meshscope.probe.schema.errors import TraceFormatError

from ...wording.message import message
from ..far_times import IntArray
from .event_columns import RoledEvents
from .stamps import EXPORT_AGAIN

_LEAST = 200
"""Launches, and kernels, below which a small program may have none that is short."""
_LONG_LAUNCH_NS = 500_000
_LONG_KERNEL_NS = 100_000
"""No program whose calls wait for their kernels has only kernels this long, hundreds of them."""
_SHORT_LAUNCH_NS = 100
_SHORT_KERNEL_NS = 100
_ROUNDED_NS = 1_000
"""Old profilers write whole microseconds: zero is then a short time, and no other unit."""
_LAUNCHES = re.compile(r".*launch", re.IGNORECASE)


def refuse_other_unit(roles: RoledEvents, where: str) -> None:
    """Refuse a file whose launches and kernels are all a thousand times too long, or too short.

    Raises:
        TraceFormatError: It is such a file.
    """
    kernel = roles.device.dur[roles.device.dur > 0]
    if len(kernel) < _LEAST:
        return
    shortest_ns = int(kernel.min())
    if _SHORT_KERNEL_NS <= shortest_ns < _LONG_KERNEL_NS:
        return
    launch = np.concatenate([np.empty(0, np.int64), *_launches(roles)])
    launch = launch[launch > 0]
    if len(launch) < _LEAST:
        return
    least_ns, usual_ns = int(launch.min()), int(np.median(launch))
    is_long = shortest_ns >= _LONG_KERNEL_NS and least_ns >= _LONG_LAUNCH_NS
    is_short = shortest_ns < _SHORT_KERNEL_NS and usual_ns < _SHORT_LAUNCH_NS
    if is_long or (is_short and (launch % _ROUNDED_NS != 0).any()):
        raise TraceFormatError(
            message(
                "refused.other_unit_of_times",
                launch_ns=least_ns if is_long else usual_ns,
                kernel_ns=shortest_ns,
            ),
            where=where,
            remedy=EXPORT_AGAIN,
        )


def _launches(roles: RoledEvents) -> Iterator[IntArray]:
    """Yield the lengths of the calls that launch kernels, part by part."""
    codes = np.array(sorted(roles.names_like(_LAUNCHES)), dtype=np.int64)
    for part in roles.launch.parts():
        yield part.dur[np.isin(part.name, codes)]
