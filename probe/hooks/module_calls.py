"""How many module calls pass the wrapper of ``Module.__call__`` with nothing to record.

Each of them pays a Python frame, in a model of many small modules most of what the probe
costs. Counting them as they happen would double that, and ``torch.compile`` would see it.
So they are counted by the structure of the model: every module below a recorded call is
taken to be called once in it. One that is called in a loop counts too little, an expert
that gets no token too much.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ..compat.torch_names import runs_without_python
from ..cost import CostMeter
from ..safety.program_signals import pass_on

_MOST_KNOWN = 4096
"""Modules whose number is remembered; a job has few whose calls are recorded."""


class ModuleCalls:
    """Adds the calls below recorded ones to what the hooks cost.

    Args:
        meter: Told of them.
    """

    def __init__(self, meter: CostMeter) -> None:
        self._meter = meter
        self._known: dict[int, tuple[Callable[[], Any], int]] = {}

    def note(self, module: Any) -> None:
        """Note that a module was called; anything else counts as one call."""
        known = self._known.get(id(module))
        if known is None or known[0]() is not module:
            known = self._found(module)
        self._meter.frames += known[1]

    def _found(self, module: Any) -> tuple[Callable[[], Any], int]:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        try:
            found = self._known[id(module)] = (weakref.ref(module), called_modules(module))
        except Exception as error:  # noqa: BLE001 - an odd module: training goes on, and less is counted
            pass_on(error)
            return lambda: None, 1
        return found


def called_modules(module: Any) -> int:
    """Return how many modules a call of one calls, itself included.

    Containers that are only indexed are not called; nothing of Python is called below a
    module that is compiled or scripted.
    """
    from torch.nn import Module

    found: set[int] = set()
    called, waiting = 0, [module]
    while waiting:
        inner = waiting.pop()
        if id(inner) in found:
            continue
        found.add(id(inner))
        called += getattr(type(inner), "forward", None) is not Module.forward
        if not runs_without_python(inner):
            waiting += [child for child in inner._modules.values() if child is not None]
    return called
