"""Memory at phase borders: device allocator, resident set, capacity.

The peak is the allocator's own: highest since the process started, or since
the training code last reset it. The probe never resets it, because the
training code may print it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable

from ..compat.torch_names import cuda_device, cuda_memory_reader
from ..job.run_facts import RunFacts
from ..schema.reading import OwnDescriptor
from ..schema.records import MEMORY_PHASE_CODES
from ..schema.terms import MemoryPhase
from .base import Capture

_WHOLE_STEPS = 16
_EVERY_STEPS = 8
"""With a device, and unless the settings say otherwise."""
_STATM = "/proc/self/statm"
_MEMINFO = "/proc/meminfo"


class MemoryHook:
    """Samples memory when the step hook passes a phase border."""

    def __init__(self, capture: Capture, facts: RunFacts) -> None:
        self.source = capture.source("memory")
        self._capture = capture
        self._facts = facts
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._statm: OwnDescriptor | None = None
        self._capacity: dict[str, int] = {}
        self._read_device: Callable[[], tuple[int, int, int]] | None = None

    def install(self) -> None:
        """Open the counters of this process."""
        try:
            self._statm = OwnDescriptor(os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            self._capture.recorder.annotate("memory.rss", f"unknown: {error}")
        self._capture.recorder.annotate(
            "memory.peak", "allocator's highest since start or the training code's last reset"
        )

    def remove(self) -> None:
        """Close the counters."""
        self.source.on = False
        if self._statm is not None:
            self._statm.close()
            self._statm = None

    def sample(
        self, phase: MemoryPhase, read_before: dict[str, int] | None = None
    ) -> dict[str, int] | None:
        """Record memory at a phase border; return what was read, None where this step has no sample.

        Args:
            phase: The border.
            read_before: What was read at another border that meets it; read anew if None.
        """
        recorder = self._capture.recorder
        if not self.source.on or not self._is_due(recorder.step):
            return None
        try:
            values = read_before or self._read()
            stage = self._capture.activity.stage_of_rank()
            recorder.record_memory(MEMORY_PHASE_CODES[phase], stage, **values)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)
            return None
        return values

    def _is_due(self, step: int) -> bool:
        """Tell whether a step has samples.

        The allocator of a device makes 160 us of reading it, two or three times a step. Its peak
        holds between samples, and so few steps tell how memory grows.
        """
        every = self._capture.config.memory_every_steps
        if every == 0:
            every = 1 if self._read_device is None or step < _WHOLE_STEPS else _EVERY_STEPS
        return step % every == 0

    def _read(self) -> dict[str, int]:
        values: dict[str, int] = {}
        if self._statm is not None and self._statm.is_open:
            resident_pages = int(os.pread(self._statm.number, 128, 0).split()[1])
            values["rss_bytes"] = resident_pages * self._page_bytes
        if self._read_device is None:
            self._find_device()
        if self._read_device is not None:
            allocated, reserved, peak = self._read_device()
            values["allocated_bytes"] = allocated
            values["reserved_bytes"] = reserved
            values["peak_bytes"] = peak
        return values | self._capacity

    def _find_device(self) -> None:
        """Look for a device, which the training code initialises at a time of its choosing."""
        self._read_device = cuda_memory_reader()
        if self._read_device is not None:
            device = cuda_device()
            self._capacity = {"capacity_bytes": device.memory_bytes}
            self._facts.learn({"device_name": device.name})
            if device.uuid is not None:
                self._capture.recorder.annotate("device_uuid", device.uuid)
        elif not self._capacity:
            self._capacity = {"capacity_bytes": _host_share_bytes()}
            self._facts.learn({"device_name": f"CPU {platform.processor() or platform.machine()}"})


def _host_share_bytes() -> int:
    """Return the memory of this host that is one rank's share; -1 when not known."""
    try:
        with open(_MEMINFO, encoding="ascii") as file:
            total_bytes = int(file.readline().split()[1]) * 1024
        return total_bytes // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    except (OSError, ValueError, IndexError):
        return -1
