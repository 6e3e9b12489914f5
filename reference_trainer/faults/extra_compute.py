"""Compute that nobody asked for: matrix products on the device of a rank, for a wanted time.

On a CPU they run until the thread has used the time. On a GPU they are queued on
the current stream like the kernels of a layer: what a product takes there is
measured once, before the training, and after that nothing waits for the device.
When they really ran is known from a pair of events, read when they are over. ::

    host     queue n products |  goes on
    device          ... layer | begin | n products | end | layer ...
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from meshscope.probe.clock import now_ns

from .ground_truth import Span
from .host_faults import burn_cpu

Log = Callable[[Span], None]
"""Takes when something really ran."""

_WIDTH = 1024
"""Width of the matrices: some 40 us of a recent GPU in fp32, longer than their launch."""
_PRODUCTS = 50
"""Products of one measurement."""
_ATTEMPTS = 5
"""The shortest of five: others may use the device too."""


class ExtraCompute(Protocol):
    """Computes for a wanted time; ``HostCompute`` and ``DeviceCompute`` are the two of them."""

    def spend(self, wanted_ns: int, log: Log) -> None:
        """Compute for about so long, and tell when it was, at once or later."""

    def settle(self, *, wait: bool = False) -> None:
        """Tell of what is over by now; with ``wait``, of everything."""


class HostCompute:
    """Burns the CPU of the calling thread."""

    def spend(self, wanted_ns: int, log: Log) -> None:
        """Compute until the thread has used the time."""
        start_ns = now_ns()
        burn_cpu(wanted_ns)
        log((start_ns, now_ns()))

    def settle(self, *, wait: bool = False) -> None:
        """Do nothing: all was reported."""


class _Running(NamedTuple):
    """Products that may not be over yet."""

    begin: torch.cuda.Event
    end: torch.cuda.Event
    log: Log


class DeviceCompute:
    """Queues matrix products on a GPU; builds and measures them now, and waits for that.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._factor = torch.full((_WIDTH, _WIDTH), 1.0 / _WIDTH, device=device)
        self._product = torch.empty_like(self._factor)
        self._running: deque[_Running] = deque()
        self._origin = _marked()
        self._origin.synchronize()
        self._origin_ns = now_ns()
        self._product_ns = min(self._measured_ns() for _ in range(_ATTEMPTS))

    def spend(self, wanted_ns: int, log: Log) -> None:
        """Queue products of about so long; ``settle`` tells when they ran."""
        begin = _marked()
        self._queue(products_of(wanted_ns, self._product_ns))
        self._running.append(_Running(begin, _marked(), log))

    def settle(self, *, wait: bool = False) -> None:
        """Tell of what is over by now; with ``wait``, of everything."""
        while self._running and (wait or _is_over(self._running[0].end)):
            begin, end, log = self._running.popleft()
            end.synchronize()
            log((self._at_ns(begin), self._at_ns(end)))

    def _at_ns(self, moment: torch.cuda.Event) -> int:
        """Return when an event was, on the host's clock: the time since one that the host saw."""
        return self._origin_ns + round(_between_ns(self._origin, moment))

    def _queue(self, products: int) -> None:
        with torch.no_grad():
            for _ in range(products):
                torch.mm(self._factor, self._factor, out=self._product)

    def _measured_ns(self) -> float:
        """Return what one of many products takes."""
        begin = _marked()
        self._queue(_PRODUCTS)
        end = _marked()
        end.synchronize()
        return max(_between_ns(begin, end), 1.0) / _PRODUCTS


def products_of(wanted_ns: int, product_ns: float) -> int:
    """Return how many products take about as long as wanted; none only for no time at all.

    >>> [products_of(wanted_ns, 40_000.0) for wanted_ns in (0, 1_000, 1_000_000)]
    [0, 1, 25]
    """
    return max(round(wanted_ns / product_ns), 1) if wanted_ns > 0 else 0


def _marked() -> torch.cuda.Event:
    """Return an event behind everything that is queued on the current stream."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _is_over(event: torch.cuda.Event) -> bool:
    """Return whether the device has come to an event; nothing waits."""
    return bool(event.query())  # type: ignore[no-untyped-call]


def _between_ns(begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
    """Return the time between two events that are over."""
    return float(begin.elapsed_time(end)) * 1e6
