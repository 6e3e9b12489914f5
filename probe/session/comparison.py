"""Windows with and without the probe in one job, in an order that chance decides.

Two windows make a pair, and which of them comes first is drawn from the name of the
run: all ranks take the same without talking, and nothing that changes slowly in the
job (clocks, temperature, length of sequences) lines up with one side.
"""

from __future__ import annotations

import zlib

from ..clock import thread_cpu_ns
from ..cost import CostMeter
from .hook_set import HookSet


def is_watched(run_id: str, step: int, window_steps: int) -> bool:
    """Return whether the hooks record in a step of a comparison.

    Args:
        run_id: Name of the run.
        step: The step, from 0.
        window_steps: Steps of a window.
    """
    pair, second = divmod(step // window_steps, 2)
    first_is_watched = zlib.crc32(f"{run_id}:{pair}".encode()) & 1
    return bool(first_is_watched) != bool(second)


class Comparison:
    """Stops and resumes the hooks of a rank at the borders of windows.

    What that takes is left out of what the hooks cost: it belongs to the comparison alone, 10 to
    20 ms in each pair of windows, which is more than the hooks take in a window.
    """

    def __init__(self, hooks: HookSet, meter: CostMeter, run_id: str, window_steps: int) -> None:
        self._hooks = hooks
        self._meter = meter
        self._run_id = run_id
        self._window_steps = window_steps
        self._watched = True

    def at_border(self, next_step: int) -> None:
        """Do what the step that now begins needs."""
        wanted = is_watched(self._run_id, next_step, self._window_steps)
        if wanted != self._watched:
            self._watched = wanted
            begin_ns = thread_cpu_ns()
            if wanted:
                self._hooks.resume()
            else:
                self._hooks.pause()
            self._meter.leave_out(thread_cpu_ns() - begin_ns)
