"""The clocks of the dashboard, which sees nothing of the probe but its schema."""

from __future__ import annotations

import time


def monotonic_s() -> float:
    """Return seconds that never go back."""
    return time.monotonic()


def unix_ns() -> int:
    """Return the time of day, ns since 1970."""
    return time.time_ns()
