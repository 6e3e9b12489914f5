"""Memory that was used for a while goes back to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import pyarrow as pa


def release_unused() -> None:
    """Give memory back to the system that was taken for a while, where the system has a call for it."""
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
