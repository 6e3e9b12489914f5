"""Act when an exception ends the program, before its traceback is printed.

Where one rank fails its launcher may kill the others within a tenth of a second: before the interpreter
has printed the traceback of this one, and before it calls what is registered for its exit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from .imports import Failing


class ExceptionWatch:
    """Stands in front of ``sys.excepthook``."""

    def __init__(self, action: Callable[[BaseException], None], source: Failing) -> None:
        """Prepare nothing yet.

        Args:
            action: Called with the exception, in the main thread.
            source: Told about an error in it.
        """
        self._action: Callable[[BaseException], None] | None = action
        self._source = source
        self._original: Any = None
        self._stand_in: Any = None

    def start(self) -> None:
        """Stand in until ``stop``."""
        original = self._original = sys.excepthook

        @wraps(original)
        def excepthook(kind: Any, error: Any, traceback: Any) -> Any:
            if self._action is not None and isinstance(error, Exception | KeyboardInterrupt):
                try:
                    self._action(error)
                except Exception as failure:  # noqa: BLE001 - the traceback has to be printed
                    self._source.failed(failure)
            return original(kind, error, traceback)

        self._stand_in = sys.excepthook = excepthook

    def stop(self) -> None:
        """Put the function back unless somebody stands in front of it, who then only calls on through it."""
        self._action = None
        if self._stand_in is not None and sys.excepthook is self._stand_in:
            sys.excepthook = self._original
