"""What ``compat`` is for the profiler: private and version-dependent names, looked for here only."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..schema.message import message
from .absent import UnsupportedError, lacks


def deep_profiler() -> Any:
    """Return a profiler of operators, shapes and device activities that has not begun.

    Raises:
        UnsupportedError: Another profiler is on, or this torch has none.
    """
    import torch

    profiler = getattr(torch, "profiler", None)
    if profiler is None:
        raise lacks("torch.profiler")
    if is_profiling():
        raise UnsupportedError(message("absent.profiler_in_use"))
    activities = [profiler.ProfilerActivity.CPU]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        activities.append(profiler.ProfilerActivity.CUDA)
    options = {"activities": activities, "record_shapes": True}
    try:
        # Skips the events of the Python interface, which a written trace does not need.
        trace_only = torch._C._profiler._ExperimentalConfig(trace_only=True)
    except (AttributeError, TypeError):
        return profiler.profile(**options)
    return profiler.profile(**options, experimental_config=trace_only)


def is_profiling() -> bool | None:
    """Tell whether a profiler of torch is on in this thread; None where torch does not say."""
    import torch

    is_on = getattr(torch._C._autograd, "_profiler_enabled", None)
    return None if is_on is None else bool(is_on())


def before_other_profiler(act: Callable[[], None]) -> Callable[[], None]:
    """Call a function before the next profiler of this process gets ready; return what ends that.

    The training code would get nothing of a profile that begins while another one is on.
    Where this torch gets profilers ready in another way, nothing is called.
    """
    module = sys.modules.get("torch.autograd.profiler")
    owner = getattr(module, "profile", None)
    original = None if owner is None else vars(owner).get("_prepare_trace")
    if owner is None or original is None:
        return lambda: None

    def prepare(profiler: Any, *args: Any, **kwargs: Any) -> Any:
        act()
        return original(profiler, *args, **kwargs)

    def restore() -> None:
        if vars(owner).get("_prepare_trace") is prepare:
            owner._prepare_trace = original

    owner._prepare_trace = prepare
    return restore


def kineto_iterations() -> int:
    """Return how many steps Kineto has counted in this process.

    Raises:
        UnsupportedError: This torch does not count, or its daemon client is off.
    """
    module = sys.modules.get("torch.autograd.profiler")
    tracker = getattr(module, "KinetoStepTracker", None)
    if tracker is None or not hasattr(tracker, "current_step"):
        raise lacks("torch.autograd.profiler.KinetoStepTracker")
    count = int(tracker.current_step())
    if count < 1:
        raise UnsupportedError(message("absent.kineto_steps"))
    return count
