"""Act when this process has joined the process group of its job.

Ranks that were started without torch's variables (``torch.multiprocessing.spawn``, srun, mpirun)
learn who they are by an argument of ``init_process_group``; nobody else is told.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .imports import Action, Failing, ImportWatch

_HOME = "torch.distributed.distributed_c10d"
_MODULES = (_HOME, "torch.distributed")
"""Where training code takes the function from."""
_NAME = "init_process_group"


class GroupWatch:
    """Stands in for ``init_process_group`` until it has been called with success once."""

    def __init__(self, action: Action, source: Failing) -> None:
        """Prepare nothing yet.

        Args:
            action: Called after the group was joined, by whoever joined it: in a forked child too.
            source: Told about an error in it.
        """
        self._action = action
        self._source = source
        self._original: Callable[..., Any] | None = None
        self._stand_in: Callable[..., Any] | None = None

    def start(self, imports: ImportWatch) -> None:
        """Stand in, now or as soon as the function exists."""
        imports.when_imported(_HOME, self._patch, self._source)

    def stop(self) -> None:
        """Put the function back wherever nobody else has changed it."""
        for name in _MODULES:
            module = sys.modules.get(name)
            if module is not None and getattr(module, _NAME, None) is self._stand_in is not None:
                setattr(module, _NAME, self._original)

    def _patch(self) -> None:
        original = getattr(sys.modules[_HOME], _NAME)

        @functools.wraps(original)
        def init_process_group(*arguments: Any, **keywords: Any) -> Any:
            result = original(*arguments, **keywords)
            self.stop()
            try:
                self._action()
            except Exception as error:  # noqa: BLE001 - the training has joined its group, and goes on
                self._source.failed(error)
            return result

        self._original, self._stand_in = original, init_process_group
        for name in _MODULES:
            module = sys.modules.get(name)
            if getattr(module, _NAME, None) is original:
                setattr(module, _NAME, init_process_group)
