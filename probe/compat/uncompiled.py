"""Keeps torch.compile from compiling the probe's own functions.

What runs in the reach of a compiled call and is not a part of its graph, as the hooks of
communication do below a compiled DistributedDataParallel, is a candidate of its own: it would
be compiled in the training thread, again for each new kind of argument, and a wrapper around
what nobody compiles would pull that into a graph.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from .torch_names import compiler_skip

_LEFT: WeakKeyDictionary[ModuleType, int] = WeakKeyDictionary()
"""How many functions of a module are left alone: once for a process, however often it attaches."""


def leave_uncompiled(package: str) -> int:
    """Have all functions of a package that are imported so far left alone; return how many.

    Raises:
        UnsupportedError: This torch cannot leave a function alone.
    """
    skip, total = compiler_skip(), 0
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            total += _LEFT.get(module) or _leave_module(name, module, skip)
    return total


def _leave_module(name: str, module: ModuleType, skip: Any) -> int:
    done = set[CodeType]()
    for code in _codes_in(vars(module).values(), name):
        _mark(code, skip, done)
    # One that is being imported has not all of its functions.
    if not getattr(module.__spec__, "_initializing", False):
        _LEFT[module] = len(done)
    return len(done)


def _codes_in(values: Any, module: str) -> Iterator[CodeType]:
    """Return the code of functions, and of the functions of the classes that a module defines."""
    for value in list(values):
        if isinstance(value, type):
            if value.__module__ == module:
                yield from _codes_in(vars(value).values(), module)
            continue
        function = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType) and getattr(function, "__module__", None) == module:
            yield code


def _mark(code: CodeType, skip: Any, done: set[CodeType]) -> None:
    """Mark a function and those that it makes, whose code is a constant of its own."""
    if code in done:
        return
    done.add(code)
    skip(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _mark(constant, skip, done)
