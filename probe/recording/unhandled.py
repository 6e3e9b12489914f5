"""The type of the exception that ended the program, without its text, which may hold anything."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_AT_ONCE = 1_000
"""Before other finalizers: one of them may wait for a peer."""
_seen: list[str] = []


def watch_unhandled(then: Callable[[BaseException], None]) -> None:
    """Note what ends a process of ``multiprocessing``: its exceptions never reach the interpreter.

    Args:
        then: Called with it.
    """
    # Such a process has imported these; no other one needs them.
    process: Any = sys.modules.get("multiprocessing.process")
    util: Any = sys.modules.get("multiprocessing.util")
    if process is not None and util is not None and process.parent_process() is not None:
        util.Finalize(None, _note, args=(then,), exitpriority=_AT_ONCE)


def unhandled_exception() -> str | None:
    """Return the type of the exception that ended the program, None if none did.

    An interpreter in which somebody types goes on after one.
    """
    found = None if hasattr(sys, "ps1") else getattr(sys, "last_type", None)
    return str(found.__name__) if found is not None else next(iter(_seen), None)


def _note(then: Callable[[BaseException], None]) -> None:
    """Note the exception that is on its way out of the process, or that made it call ``sys.exit``."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        error = error.__context__ or (error if error.code else None)
    if error is not None:
        _seen[:] = [type(error).__name__]
        if isinstance(error, Exception):
            then(error)
