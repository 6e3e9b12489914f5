"""Counters that wrap: made to grow on where that is beyond doubt.

A 32-bit counter of a network port wraps within seconds at full rate. A fall from just
below a power of two to just above zero is a wrap; any other fall is a reset (the driver
was loaded again, the device came back), after which the counter starts anew, as what
happened in between is not known.
"""

from __future__ import annotations

_WIDTHS = (32, 64)
_NEAR = 4
"""A wrap is from the last quarter of the range to its first."""


class GrowingCounters:
    """The last raw value of each counter and what its wraps add up to.

    Attributes:
        resets: How often a counter fell without having wrapped.
    """

    def __init__(self) -> None:
        self.resets = 0
        self._last: dict[str, int] = {}
        self._added: dict[str, int] = {}

    def grown(self, name: str, raw: int) -> int:
        """Return the value of a counter with its wraps undone."""
        last = self._last.get(name)
        self._last[name] = raw
        if last is not None and raw < last:
            width = _wrapped_width(last, raw)
            if width:
                self._added[name] = self._added.get(name, 0) + (1 << width)
            else:
                self._added.pop(name, None)
                self.resets += 1
        return raw + self._added.get(name, 0)

    def forget(self, prefix: str) -> None:
        """Drop the counters whose name begins like that: their device is gone."""
        for known in (self._last, self._added):
            for name in [name for name in known if name.startswith(prefix)]:
                del known[name]


def _wrapped_width(last: int, raw: int) -> int:
    """Return the width in bits at which a counter wrapped, 0 if it did not."""
    for width in _WIDTHS:
        end = 1 << width
        if end - end // _NEAR <= last < end and raw < end // _NEAR:
            return width
    return 0
