"""Every check by name: where it is and how long it may take at most."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

from .context import Context


class Check(NamedTuple):
    """One check."""

    module: str
    function: str
    seconds: float
    """After this time it is ended; what it had found until then is kept."""
    needs: str
    """``gpu``, or ``any`` where it also makes sense on a CPU."""
    about: str

    def load(self) -> Callable[[Context], None]:
        """Import the check.

        Raises:
            ImportError: A package that it needs is missing.
        """
        module = importlib.import_module(f".{self.module}", __package__)
        found: Callable[[Context], None] = getattr(module, self.function)
        return found


CHECKS = {
    "machine": Check("machine", "machine", 60, "any", "versions, devices, what doctor finds"),
    "devices": Check("devices", "devices", 60, "any", "NVML and GPM fields and their latency"),
    "event_cost": Check("events", "event_cost", 60, "gpu", "what one CUDA event costs the host"),
    "event_times": Check("events", "event_times", 75, "gpu", "stage times against kernels"),
    "span_cost": Check("events", "span_cost", 60, "any", "what a recorded stage costs the host"),
    "collectives": Check("collectives", "collectives", 75, "any", "counts, coalescing, times"),
    "stream_waits": Check("stream_waits", "stream_waits", 60, "gpu", "what a stream waits for"),
    "cuda_graphs": Check("graphs", "cuda_graphs", 75, "gpu", "the hooks under CUDA graphs"),
    "compiled": Check("compiled", "compiled", 120, "any", "the hooks under torch.compile"),
    "daemon_trace": Check("daemon", "daemon_trace", 90, "any", "a deep trace by Kineto's client"),
    "armed_trace": Check("armed", "armed_trace", 100, "any", "deep traces by meshscope arm"),
    "two_ranks": Check("two_ranks", "two_ranks", 90, "any", "two ranks share the device"),
    "overhead": Check("overhead", "overhead", 150, "any", "steps with and without the probe"),
}
"""In the order in which they run."""
