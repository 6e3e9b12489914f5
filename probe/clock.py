"""The clocks of the probe; nothing else in meshscope's capture reads a clock.

All times of a capture are nanoseconds of the host's monotonic clock, which all
processes of one boot share and no time daemon steps. Clock pairs tie it to the
wall clock, so that captures of several hosts and other tools' files can be
laid side by side.
"""

import threading
import time
from pathlib import Path
from typing import NamedTuple

now_ns = time.monotonic_ns
"""Monotonic time of this boot in ns."""

thread_cpu_ns = time.thread_time_ns
"""CPU time that the calling thread has used, in ns."""

unix_ns = time.time_ns
"""Wall clock in ns since 1970; may be stepped, so never used for a duration."""

_PAIR_ATTEMPTS = 5
"""The closest of five: a reading that was interrupted is dropped."""


def own_threads_cpu_ns() -> int:
    """Return the CPU time of the probe's own threads in this process, as far as the system tells."""
    total_ns = 0
    for thread in threading.enumerate():
        if thread.name.startswith("meshscope-"):
            # Not by a clock of the thread: that of one that has just ended is not safe to read.
            total_ns += _schedstat(thread.native_id)[0]
    return total_ns


def thread_queued_ns(native_id: int | None) -> int | None:
    """Return how long a thread of this process has waited for a processor while it was ready, in ns.

    None where the system does not say: run queues are counted by kernels with CONFIG_SCHED_INFO.

    Args:
        native_id: What ``threading.get_native_id`` returns in that thread.
    """
    on_processor_ns, queued_ns = _schedstat(native_id)
    # Where nothing is counted both are zero, of a thread that has run.
    return queued_ns if on_processor_ns > 0 else None


def _schedstat(native_id: int | None) -> tuple[int, int]:
    """Return how long a thread of this process ran and was ready to run, in ns; zeros if the system does not say."""
    try:
        said = Path(f"/proc/self/task/{native_id}/schedstat").read_text("ascii").split()
        return int(said[0]), int(said[1])
    except (OSError, ValueError, IndexError):
        return 0, 0


class ClockPair(NamedTuple):
    """One reading of both clocks at the same moment, within an error."""

    monotonic_ns: int
    unix_ns: int
    error_ns: int
    """Half the time that the reading took: the bound of its error."""


def clock_pair() -> ClockPair:
    """Read both clocks together; of a few attempts the one least disturbed."""
    return min((_read_pair() for _ in range(_PAIR_ATTEMPTS)), key=lambda pair: pair.error_ns)


def _read_pair() -> ClockPair:
    before_ns = now_ns()
    wall_ns = unix_ns()
    after_ns = now_ns()
    error_ns = (after_ns - before_ns + 1) // 2
    return ClockPair(before_ns + (after_ns - before_ns) // 2, wall_ns, error_ns)
