"""Act when this process trains: at the first step of an optimizer of torch.

A job of one process needs neither a launcher nor a process group. What tells it from a launcher,
a script that prepares data or a worker that loads them is that it changes weights.

torch calls its hooks in the middle of a walk over them, and none may be added to what is walked
over. It goes over the hooks of all optimizers first, then over those of the one at hand: the
first kind gives that optimizer one of the second kind, which may add to the first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .imports import Action, Failing, ImportWatch

_HOME = "torch.optim.optimizer"


class OptimizerWatch:
    """Waits for the first ``optimizer.step()`` of this process, or of a child that it forks."""

    def __init__(self, action: Action, source: Failing) -> None:
        """Prepare nothing yet.

        Args:
            action: Called once, in the thread that trains, before the weights change.
            source: Told about an error in it.
        """
        self._action = action
        self._source = source
        self._every: Any = None
        self._own: Any = None
        self._stopped = False

    def start(self, imports: ImportWatch) -> None:
        """Wait, from now on or as soon as there are optimizers."""
        imports.when_imported(_HOME, self._listen, self._source)

    def stop(self) -> None:
        """Cease to wait; nothing of ours is called by any later step of another optimizer."""
        self._stopped = True
        if self._every is not None:
            self._every.remove()
            self._every = None

    def let_go(self) -> None:
        """Take the last hook off the optimizer that was first, outside its walk over such hooks."""
        if self._own is not None:
            self._own.remove()
            self._own = None

    def _listen(self) -> None:
        register: Callable[..., Any] | None = getattr(
            sys.modules[_HOME], "register_optimizer_step_pre_hook", None
        )
        # Without it steps are not seen either, and a capture would hold nothing.
        if register is not None and not self._stopped:
            self._every = register(self._first)

    def _first(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        try:
            if self._own is None and not self._stopped:
                self._own = optimizer.register_step_pre_hook(self._act)
        except Exception as error:  # noqa: BLE001 - the training goes on
            self._stopped = True
            self._source.failed(error)

    def _act(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._stopped:
            return
        try:
            self.stop()
            self._action()
        except Exception as error:  # noqa: BLE001 - the training goes on
            self._source.failed(error)
