"""Whether the hooks can change now: nobody is in the middle of what they change.

The interpreter runs a pending call between any two instructions of the main thread, so also
in a hook of the program's own that torch calls in a walk over the hooks of optimizers: the walk
would end with an error, in the training code. It may be in a search for a module as well, which
would pass over a finder, or in an implementation of ours that the dispatcher called. Which of
these a thread is in, its frames tell.
"""

from __future__ import annotations

import sys
from types import FrameType

_OPTIMIZER = "torch.optim.optimizer"
_STEP_WRAPPER = "wrapper"
_PROFILER = "torch.autograd.profiler"
_PLACES = frozenset(
    {
        ("importlib._bootstrap", "_find_spec"),
        ("_frozen_importlib", "_find_spec"),
        ("meshscope.probe.hooks.collectives", "kernel"),
        ("meshscope.probe.hooks.waits", "wait_tensor"),
        ("meshscope.probe.hooks.waits", "wait_tensors"),
    }
)
"""Module and name of functions within which nothing may change."""


def hooks_may_change() -> bool:
    """Tell whether no thread is where it would notice."""
    return not any(_would_notice(frame) for frame in sys._current_frames().values())


def _would_notice(frame: FrameType | None) -> bool:
    inner: FrameType | None = None
    while frame is not None:
        module, name = frame.f_globals.get("__name__"), frame.f_code.co_name
        if (module, name) in _PLACES:
            return True
        if module == _OPTIMIZER and name == _STEP_WRAPPER and _may_walk(frame, inner):
            return True
        inner, frame = frame, frame.f_back
    return False


def _may_walk(wrapper: FrameType, inner: FrameType | None) -> bool:
    """Tell whether a wrapped ``optimizer.step()`` may be in one of its two walks over hooks.

    It is in none while the profiler's mark around it is set or taken away, nor in the step
    itself, which may run all of the training: the closure that it is given.
    """
    if inner is None:
        return True
    step = getattr(wrapper.f_locals.get("func"), "__code__", None)
    return inner.f_code is not step and inner.f_globals.get("__name__") != _PROFILER
