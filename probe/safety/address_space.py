"""Whether this process may map the memory that the probe asks for beside what it uses.

Each thread reserves an arena that it hardly touches. Under a limit (``ulimit -v``) that would be
missing to the training, and C++ code ends the process then.
"""

from __future__ import annotations

import resource
from pathlib import Path

NEEDED_BYTES = 1 << 30
"""Measured: 0.6 GB."""
_STATM = Path("/proc/self/statm")


def too_little_address_space() -> str:
    """Return why the limit forbids to record, one clause; empty if it does not."""
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit_bytes == resource.RLIM_INFINITY:
        return ""
    try:
        used_bytes = int(_STATM.read_text("ascii").split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        used_bytes = 0
    left_bytes = max(limit_bytes - used_bytes, 0)
    if left_bytes >= NEEDED_BYTES:
        return ""
    return (
        f"the limit of address space (ulimit -v) leaves {left_bytes >> 20} MB, "
        f"of which the probe needs {NEEDED_BYTES >> 20}"
    )
