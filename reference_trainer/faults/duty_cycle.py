"""Stops and continues another process in turns: a core that is taken away and given back.

The signals come from a process of their own, never from the process that they
stop: a stopped one could not continue itself. It is started by the first rank
that shares the victim's host, reads one line per step on its standard input (the step,
the share of time to stop and the period; a share of 0 lets the victim run), and
lets the victim run for good when that input ends, as it does when the rank that
started it dies.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from meshscope.probe.clock import now_ns

_OWN_IDS = "/proc/self/ns/pid"


class Order(NamedTuple):
    """What the victim is to suffer from now on."""

    step: int
    """The step that has begun."""
    stopped_frac: float
    """Share of each period in which it is stopped."""
    period_ns: int
    """Length of a period, in nanoseconds."""


def signal_scope() -> int:
    """Return a number that processes share which know each other by their ids.

    They run on one host, and in one container where there are containers.
    """
    names = (Path("/proc/sys/kernel/random/boot_id").read_text("ascii"), os.readlink(_OWN_IDS))
    return int.from_bytes(hashlib.blake2b("".join(names).encode(), digest_size=7).digest())


class DutyCycle:
    """The other end: tells the helper process what to do.

    Args:
        victim_pid: Process that is stopped and continued.
        truth: File to which the helper appends each stop; None logs nothing.
    """

    def __init__(self, victim_pid: int, truth: Path | None) -> None:
        self._helper = subprocess.Popen(
            [sys.executable, "-m", __name__, str(victim_pid), *([str(truth)] if truth else [])],
            stdin=subprocess.PIPE,
            text=True,
            # It inherits the rank's environment, and must not be recorded as that rank.
            env=os.environ | {"MESHSCOPE_DISABLE": "1"},
        )

    def order(self, order: Order) -> None:
        """Change what the victim suffers; a helper that is gone is no error."""
        with contextlib.suppress(BrokenPipeError):
            assert self._helper.stdin is not None
            self._helper.stdin.write(json.dumps(order) + "\n")
            self._helper.stdin.flush()

    def close(self) -> None:
        """Let the victim run and end the helper."""
        with contextlib.suppress(BrokenPipeError):
            assert self._helper.stdin is not None
            self._helper.stdin.close()
        self._helper.wait()


_LOOK_S = 0.0002
_MOST_LOOKS = 500
"""A process that is not stopped after a tenth of a second waits in the kernel, and runs no code either."""


def follow_orders(victim_pid: int, truth: Path | None) -> None:
    """Stop and continue the victim as ordered, until the orders or the victim end."""
    order = Order(-1, 0.0, 0)
    # Lines are read from the descriptor: a buffered file would hide some from the selector.
    os.set_blocking(sys.stdin.fileno(), False)
    waiting = selectors.DefaultSelector()
    waiting.register(sys.stdin.fileno(), selectors.EVENT_READ)
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        try:
            while True:
                stopped_ns = round(order.stopped_frac * order.period_ns)
                if waiting.select((order.period_ns - stopped_ns) / 1e9 if stopped_ns else None):
                    lines = os.read(sys.stdin.fileno(), 1 << 16)
                    if not lines:
                        return
                    order = Order(*json.loads(lines.splitlines()[-1]))
                elif stopped_ns:
                    _stop_for(victim_pid, stopped_ns, order.step, truth)
        finally:
            os.kill(victim_pid, signal.SIGCONT)


def _stop_for(victim_pid: int, stopped_ns: int, step: int, truth: Path | None) -> None:
    """Stop the victim once, and note when it really was stopped."""
    os.kill(victim_pid, signal.SIGSTOP)
    _await_standstill(victim_pid)
    start_ns = now_ns()
    time.sleep(stopped_ns / 1e9)
    # Before the signal: a helper that loses its core right after it would note too much.
    end_ns = now_ns()
    os.kill(victim_pid, signal.SIGCONT)
    if truth is None:
        return
    record = {
        "record": "fault",
        "kind": "slow_rank",
        "step": step,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "mode": "duty",
        "requested_ns": stopped_ns,
    }
    # One write of one line to a file opened for appending: it cannot fall into
    # the middle of a line of the victim, which appends to the same file.
    with truth.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def _await_standstill(pid: int) -> None:
    """Return once a process that was told to stop has done so; on a busy machine that takes a while."""
    for _ in range(_MOST_LOOKS):
        # The name before the state, in brackets, may hold anything.
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        if state in "TZX":  # stopped, or at its end
            return
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    follow_orders(int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
