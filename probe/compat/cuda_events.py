"""Timing events of CUDA.

By torch's documented interface to ask for the current stream takes 4 us on an H200's host, more
than to record an event. Its compiled helper for generated code gives the handle of that stream
in a tenth of a us; streams are remembered by device and handle. A torch without it is asked
the long way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..schema.message import message
from .absent import NotApplicableError


def cuda_events() -> CudaEvents | None:
    """Return the timing events of CUDA, None until the training code has initialised it.

    Raises:
        NotApplicableError: This torch is built without CUDA.
    """
    import torch

    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        raise NotApplicableError(message("absent.cuda"))
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    return CudaEvents()


_MOST_STREAMS = 1024
"""Streams that are remembered; torch itself has no more than 32 of each priority a device."""


class CudaEvents:
    """Timing events of the current device, used again once they were read."""

    def __init__(self) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._free: list[Any] = []
        self._streams: dict[tuple[int, int], Any] = {}
        self._device, self._handle = _short_way(torch._C)

    def stream(self) -> Any:
        """Return the current stream: the same object for the same stream."""
        if self._device is None or self._handle is None:
            return self._cuda.current_stream()
        device = self._device()
        key = device, self._handle(device)
        found = self._streams.get(key)
        if found is None:
            if len(self._streams) >= _MOST_STREAMS:
                self._streams.clear()
            found = self._streams[key] = self._cuda.current_stream()
        return found

    def is_capturing(self) -> bool:
        """Tell whether the current stream is captured into a graph."""
        return bool(self._cuda.is_current_stream_capturing())

    def record(self, stream: Any) -> Any:
        """Record an event on a stream and return it."""
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def is_complete(self, event: Any) -> bool:
        """Tell whether an event has happened; never waits."""
        return bool(event.query())

    def elapsed_ns(self, first: Any, second: Any) -> int:
        """Return the time between two complete events, which CUDA gives in float ms."""
        return int(first.elapsed_time(second) * 1e6)

    def give_back(self, event: Any) -> None:
        """Let an event be recorded again."""
        self._free.append(event)


def _short_way(
    compiled: Any,
) -> tuple[Callable[[], int] | None, Callable[[int], int] | None]:
    """Return what gives the current device and the handle of its stream; None where there is none."""
    device = getattr(compiled, "_cuda_getDevice", None)
    handle = getattr(compiled, "_cuda_getCurrentRawStream", None)
    return (device, handle) if device is not None and handle is not None else (None, None)
