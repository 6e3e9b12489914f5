"""Device work that begins before its launch: by how much the clock of the device is off."""

from __future__ import annotations

from .arrays import IntArray

LEAST_EVENTS = 20
"""Events that must tell it."""
_EARLY_FRAC = 0.1
_EARLY_NS = 20_000
"""Clocks of host and device are matched to some microseconds."""


def early_events(delay: IntArray) -> int:
    """Return how many activities begin before their launch; 0 where too few do to doubt the clock.

    Args:
        delay: From the launch to the begin of each, ns.
    """
    early = int((delay < -_EARLY_NS).sum())
    return early if early >= max(LEAST_EVENTS, len(delay) * _EARLY_FRAC) else 0


def early_ns(delay: IntArray) -> int:
    """Return by how much the clock of the device is behind at least, ns; 0 where nothing shows it.

    Args:
        delay: From the launch to the begin of each activity, ns.
    """
    return int(-delay.min()) if early_events(delay) else 0
