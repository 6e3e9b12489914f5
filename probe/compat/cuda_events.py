"""Timing events of CUDA, by torch's documented interface."""

from __future__ import annotations

from typing import Any

from .torch_names import NotApplicableError


def cuda_events() -> CudaEvents | None:
    """Return the timing events of CUDA, None until the training code has initialised it.

    Raises:
        NotApplicableError: This torch is built without CUDA.
    """
    import torch

    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        raise NotApplicableError("this torch is built without CUDA")
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    return CudaEvents()


class CudaEvents:
    """Timing events of the current device, used again once they were read."""

    def __init__(self) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._free: list[Any] = []

    def stream(self) -> int:
        """Return the handle of the current stream."""
        return int(self._cuda.current_stream().cuda_stream)

    def is_capturing(self) -> bool:
        """Tell whether the current stream is captured into a graph."""
        return bool(self._cuda.is_current_stream_capturing())

    def record(self) -> Any:
        """Record an event on the current stream and return it."""
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record()
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
