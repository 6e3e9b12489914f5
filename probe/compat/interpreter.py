"""Does this Python have the interpreter lock, which the recorder relies on?

Threads that record at once get different slots of the ring from one shared iterator,
and its step is atomic under the lock only: without it two records could land in one
slot. An extension module that needs the lock turns it on for good when it is imported.
"""

from __future__ import annotations

import sys

REMEDY = "Start Python with PYTHON_GIL=1 or -X gil=1"


def no_interpreter_lock() -> str:
    """Return that the lock is off, which forbids to record, one clause; empty if it is on."""
    # Python 3.12 and older have no way to turn it off.
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        return ""
    return (
        "this free-threaded Python runs without the interpreter lock, which the recorder needs "
        "(PYTHON_GIL=1 turns it on)"
    )
