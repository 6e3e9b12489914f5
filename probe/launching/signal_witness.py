"""Tells a signal that reaches every process of the job from one for the launcher alone.

A scheduler may signal all processes of a job, or their group (SLURM does, for a time limit and for
``--signal``): the command has the signal then, and would get it twice if it was passed on. Others
signal the process that they have started, and the command has to be told (kubernetes does). The
signal itself is the same in both cases, so a process that only waits, in the group of the command
and with the signals blocked, shows by what is pending for it which of the two it was.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress

_WAITS = (sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()")
_LOOK_S = 0.01
_LOOKS = 25
"""A scheduler takes one process after the other."""
_END_S = 1.0
"""A killed process is gone at once; one that the kernel holds is left to it."""


class Witness:
    """A process beside the command, to be made where the signals are blocked: it inherits that."""

    def __init__(self) -> None:
        """Start it; without one every signal is passed on."""
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError):
            # It ends with us, whatever ends us: its input does.
            self._process = subprocess.Popen(
                _WAITS,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def has_heard(self, signal_number: int) -> bool:
        """Tell whether a signal came to it too, after a moment in which it may come."""
        if self._process is None:
            return False
        for _ in range(_LOOKS):
            if _pending(self._process.pid) >> (signal_number - 1) & 1:
                return True
            time.sleep(_LOOK_S)
        return False

    def end(self) -> None:
        """End it."""
        if self._process is None:
            return
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=_END_S)
        self._process = None


def _pending(pid: int) -> int:
    """Return the signals that wait for a process as a mask, bit 0 for signal 1; 0 if unknown."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("ShdPnd:"):
                return int(line.split()[1], 16)
    return 0
