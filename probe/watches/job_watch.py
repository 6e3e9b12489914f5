"""Act when this process shows to be a rank: it joins a process group, or an optimizer steps.

A job of one process needs neither a launcher nor a process group. What tells it from a launcher,
a script that prepares data or a worker that loads them is that it changes weights.

torch calls its hooks in the middle of a walk over them, and none may be added to what is walked
over. It goes over the hooks of all optimizers first, then over those of the one at hand: the
first kind gives that optimizer one of the second kind, which may add to the first.

Ranks that were started without torch's variables (``torch.multiprocessing.spawn``, srun, mpirun)
learn who they are by an argument of ``init_process_group``; nobody else is told.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .imports import Action, Failing, ImportWatch

_OPTIMIZER_MODULE = "torch.optim.optimizer"


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
        imports.when_imported(_OPTIMIZER_MODULE, self._listen, self._source)

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
            sys.modules[_OPTIMIZER_MODULE], "register_optimizer_step_pre_hook", None
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


_GROUPS_MODULE = "torch.distributed.distributed_c10d"
_MODULES = (_GROUPS_MODULE, "torch.distributed")
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
        imports.when_imported(_GROUPS_MODULE, self._patch, self._source)

    def stop(self) -> None:
        """Put the function back wherever nobody else has changed it."""
        for name in _MODULES:
            module = sys.modules.get(name)
            if module is not None and getattr(module, _NAME, None) is self._stand_in is not None:
                setattr(module, _NAME, self._original)

    def _patch(self) -> None:
        original = getattr(sys.modules[_GROUPS_MODULE], _NAME)

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
