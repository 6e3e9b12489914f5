"""Whether the limits of this process leave room for what the probe adds: memory, threads.

Under a limit of processes (``ulimit -u``, or that of a container) they would be missing to the
training. And C++ code does not bear that there is none: where Kineto's client gets no thread,
``import torch`` fails.

Each thread reserves an arena that it hardly touches. Under a limit (``ulimit -v``) that would be
missing to the training, and C++ code ends the process then.
"""

from __future__ import annotations

import resource
import threading
from pathlib import Path

from .program_signals import pass_on
from .threads import start_deaf

NEEDED_THREADS = 8
"""Counted in a rank: up to five at a time, of which Kineto has one."""


def too_few_threads(needed: int = NEEDED_THREADS) -> str:
    """Return why no more threads may be started, one clause; empty if so many may.

    They are started for a moment: nothing tells all the limits, and what others use of them.
    """
    over = threading.Event()
    trial: list[threading.Thread] = []
    try:
        for _ in range(needed):
            thread = threading.Thread(target=over.wait, name="meshscope-trial", daemon=True)
            start_deaf(thread)
            trial.append(thread)
    except RuntimeError as error:
        pass_on(error)
        return (
            "the limit of processes (ulimit -u, or that of the container) leaves "
            f"{len(trial)} threads, of which the probe needs {needed}"
        )
    finally:
        over.set()
        for thread in trial:
            thread.join()
    return ""


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
