"""What goes wrong inside one process: burnt time, collections, storage, memory, and its end.

Each class does one thing to the process that it lives in and returns when it
really began and ended; what was asked for is decided elsewhere.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, cast

import torch
from torch import Tensor

from meshscope import probe
from meshscope.probe.clock import now_ns, thread_cpu_ns

from .ground_truth import Span

CRASH_EXIT_CODE = 70
"""Exit code of a rank that crashes with ``mode=exit``."""

_BURN_WIDTH = 128
"""Width of the matrices that ``burn_cpu`` multiplies: about 0.1 ms each."""
_HEAP_STEP = 100_000
"""Objects by which the heap of ``GarbagePause`` grows while it is measured."""
_HEAP_MOST = 4_000_000
"""Objects, about 100 bytes each, above which that heap does not grow."""
_CAUTION = 0.5
"""Part of the missing objects by which it grows at once: one slow collection must not overshoot."""
_SMALLEST_PAGE = 4096
"""Every page is touched once, else the kernel gives no memory."""


def burn_cpu(cpu_ns: int) -> None:
    """Multiply matrices until this thread has used the given CPU time, in nanoseconds."""
    end_ns = thread_cpu_ns() + cpu_ns
    matrix = torch.full((_BURN_WIDTH, _BURN_WIDTH), 1.0 / _BURN_WIDTH)
    with torch.no_grad():
        while thread_cpu_ns() < end_ns:
            matrix = matrix @ matrix


class GarbagePause:
    """Full garbage collections of a wanted length.

    What makes a real collection long is the number of objects that it has to
    look at. So a heap of linked objects is built once, before training, and
    grows until a collection takes long enough; no garbage has to be made inside
    a step, which would cost more than the pause. The links are shuffled, so that
    looking at an object misses the caches, as it does in an old heap.

    Args:
        pause_ns: The wanted length of a collection, in nanoseconds.

    Attributes:
        longest_ns: The last collection while it was built; shorter than wanted where the heap
            has become as large as it may.
    """

    def __init__(self, pause_ns: int) -> None:
        self._heap: list[list[object]] = []
        shuffle = random.Random(0)
        gc.disable()  # the heap must not be collected over and over while it grows
        try:
            added = _HEAP_STEP
            self.longest_ns = 0
            while self.longest_ns < pause_ns and added:
                self._grow(shuffle, added)
                start_ns, end_ns = self.collect()
                self.longest_ns = end_ns - start_ns
                added = self._missing(pause_ns)
        finally:
            gc.enable()

    def collect(self) -> Span:
        """Collect now; the heap survives, so the next collection takes as long."""
        start_ns = now_ns()
        gc.collect()
        return start_ns, now_ns()

    def _missing(self, pause_ns: int) -> int:
        """Return by how much to grow: most of the way, as small heaps are faster per object."""
        missing = len(self._heap) * (pause_ns / max(self.longest_ns, 1) - 1)
        return min(max(int(_CAUTION * missing), _HEAP_STEP), _HEAP_MOST - len(self._heap))

    def _grow(self, shuffle: random.Random, size: int) -> None:
        added: list[list[object]] = [[] for _ in range(size)]
        order = list(range(size))
        shuffle.shuffle(order)
        for place, node in zip(order, added, strict=True):
            node.append(added[place])
        self._heap += added


class SlowStorage:
    """Checkpoints to a storage with a latency and a bandwidth of its own.

    Args:
        path: File that is written over and over; None writes nowhere, only as slowly.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path or Path(os.devnull)

    def save(
        self, state: Mapping[str, Tensor], *, latency_ns: int, bytes_per_s: float
    ) -> tuple[Span, int]:
        """Save a state with ``torch.save``.

        Returns:
            When it blocked the caller, and for how long the storage was asked to, in nanoseconds.
        """
        start_ns = now_ns()
        with self._path.open("wb") as file:
            slow = _SlowFile(file, latency_ns, bytes_per_s)
            torch.save(dict(state), cast("IO[bytes]", slow))
        return (start_ns, now_ns()), slow.requested_ns


class _SlowFile:
    """The part of a file that ``torch.save`` uses, with writes that take their time.

    Attributes:
        requested_ns: What the writes so far had to take longer, in nanoseconds.
    """

    def __init__(self, file: IO[bytes], latency_ns: int, bytes_per_s: float) -> None:
        self._file = file
        self._owed_ns = latency_ns
        self._bytes_per_s = bytes_per_s
        self.requested_ns = 0

    def write(self, content: bytes) -> int:
        """Write, and sleep for the latency once and for each byte."""
        if self._bytes_per_s:
            self._owed_ns += round(len(content) / self._bytes_per_s * 1e9)
        time.sleep(self._owed_ns / 1e9)
        self.requested_ns += self._owed_ns
        self._owed_ns = 0
        return self._file.write(content)

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()


class MemoryGrowth:
    """Host memory that is allocated, touched and never let go.

    Attributes:
        held_bytes: How much is held by now.
    """

    def __init__(self) -> None:
        self._held: list[Tensor] = []
        self.held_bytes = 0

    def grow(self, size_bytes: int) -> Span:
        """Hold more; every page is written to, so that it is really there."""
        start_ns = now_ns()
        block = torch.empty(size_bytes, dtype=torch.uint8)
        block[::_SMALLEST_PAGE] = 1
        self._held.append(block)
        self.held_bytes += size_bytes
        return start_ns, now_ns()


def read_late(number: Tensor, late_ns: int) -> Span:
    """Read a number with ``.item()``, from a device that is behind the host, if by ``late_ns``.

    Returns:
        When the host was blocked.
    """
    start_ns = now_ns()
    with probe.span("host_blocked"):
        time.sleep(late_ns / 1e9)
        number.item()
    return start_ns, now_ns()


def stand_still() -> None:
    """Never return, and use no CPU time; signals still end the process."""
    while True:
        signal.pause()


def end_process(mode: str) -> None:
    """End this process at once, without any clean-up.

    Args:
        mode: ``exit`` for an exit code, ``kill`` for a signal that cannot be caught.
    """
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(CRASH_EXIT_CODE)
