"""Whether this process may start the threads that the probe needs beside those of the training.

Under a limit of processes (``ulimit -u``, or that of a container) they would be missing to the
training. And C++ code does not bear that there is none: where Kineto's client gets no thread,
``import torch`` fails.
"""

from __future__ import annotations

import threading

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
