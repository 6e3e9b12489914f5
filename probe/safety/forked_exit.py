"""How a forked child of a process with Kineto's client ends.

The client's thread waits on a condition variable, and only the parent has that thread. The
child has the variable as if somebody still waited on it, and its exit, which destroys it,
waits for ever. So a child leaves when Python has ended, before libraries are taken apart:
glibc calls what was registered last first, with the exit code (``man 3 on_exit``).
"""

from __future__ import annotations

import os
import sys

_DAEMON_VARIABLE = "KINETO_USE_DAEMON"
"""As in ``deep.kineto_fabric``, which is not imported at the start of every process."""


def prepare() -> None:
    """Have children that this process forks end, if it was told to start Kineto's client."""
    if os.environ.get(_DAEMON_VARIABLE):
        os.register_at_fork(after_in_child=_skip_destructors)


def _skip_destructors() -> None:
    if "torch" not in sys.modules:
        return
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)  # before that: what C code has printed
    except (ImportError, AttributeError, OSError):
        pass  # Another libc: such a child ends as it would without us.
