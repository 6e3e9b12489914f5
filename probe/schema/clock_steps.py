"""Finds where the wall clock was put while a rank recorded."""

from __future__ import annotations

from itertools import pairwise

_LEAST_NS = 10_000_000
"""Smaller steps change nothing that a reader could see."""
_MOST_DRIFT = 500e-6
"""A clock that is slewed runs at most so much faster or slower (adjtime(3), ntpd)."""


def clock_steps(pairs: object) -> list[int]:
    """Return by how many ns the wall clock jumped between readings, in their order.

    Args:
        pairs: Readings of a rank manifest: monotonic ns, wall clock ns, error ns.
            What is not of this form is passed over.
    """
    steps = []
    for (monotonic_ns, unix_ns, error_ns), (later_ns, later_unix_ns, later_error_ns) in pairwise(
        readings(pairs)
    ):
        step_ns = (later_unix_ns - unix_ns) - (later_ns - monotonic_ns)
        slewed_ns = _MOST_DRIFT * abs(later_ns - monotonic_ns)
        if abs(step_ns) > _LEAST_NS + slewed_ns + error_ns + later_error_ns:
            steps.append(step_ns)
    return steps


def readings(pairs: object) -> list[list[int]]:
    """Return the readings of a rank manifest that are of their form."""
    return [pair for pair in pairs if _is_reading(pair)] if isinstance(pairs, list) else []


def _is_reading(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 3 and all(type(part) is int for part in pair)
