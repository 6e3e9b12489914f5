"""Host time that keeps the device waiting: data loading, checkpoints, garbage collection."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from ..clock import now_ns, thread_cpu_ns
from ..compat import data_loader_iterator_class
from ..imports import ImportWatch
from ..schema.terms import SpanKind
from .base import Capture, Patches, Place, timed

_CHECKPOINT_PACKAGE = "torch.distributed.checkpoint"
_CHECKPOINT_MODULE = f"{_CHECKPOINT_PACKAGE}.state_dict_saver"
_SAVING_THREAD = "AsyncCheckpointExecutor"
"""How torch names the thread that writes an asynchronous save."""
_COLLECTION = Place(SpanKind.GC)


class DataLoadHook:
    """Records the wait for the next batch of a ``DataLoader``."""

    def __init__(self, capture: Capture) -> None:
        self.source = capture.source("data_load")
        self._patches = Patches(self.source)

    def install(self) -> None:
        """Wrap the iterators of all data loaders.

        Raises:
            UnsupportedError: Their class has moved.
        """
        self._patches.replace(
            data_loader_iterator_class(), "__next__", timed(self.source, SpanKind.DATA_LOAD)
        )

    def remove(self) -> None:
        """Restore the iterators."""
        self.source.on = False
        self._patches.restore()


class CheckpointHook:
    """Records ``torch.save`` and the saving calls of distributed checkpoints.

    Of an asynchronous save only the part that blocks the caller is a span: the thread
    behind it calls the same functions, and is noted in ``Capture.aside`` meanwhile.
    """

    def __init__(self, capture: Capture, watch: ImportWatch) -> None:
        self.source = capture.source("checkpoint")
        self._watch = watch
        self._patches = Patches(self.source)
        self._timed = _unless_aside(capture.aside, timed(self.source, SpanKind.CHECKPOINT))

    def install(self) -> None:
        """Wrap the saving functions, now or when they are imported."""
        import torch

        self._patches.replace(torch, "save", self._timed)
        self._watch.when_imported(_CHECKPOINT_PACKAGE, self._wrap_distributed, self.source)

    def remove(self) -> None:
        """Restore the saving functions."""
        self.source.on = False
        self._patches.restore()

    def _wrap_distributed(self) -> None:
        """Wrap each function in its module and where the package offers it."""
        import sys

        for module in (sys.modules[_CHECKPOINT_MODULE], sys.modules[_CHECKPOINT_PACKAGE]):
            for name in ("save", "async_save"):
                if name in vars(module):
                    self._patches.replace(module, name, self._timed)


def _unless_aside(aside: set[int], record: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that records calls but those of threads that save behind the training."""

    def decorate(original: Any) -> Any:
        recorded = record(original)

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            thread = threading.current_thread()
            if not thread.name.startswith(_SAVING_THREAD):
                return recorded(*args, **kwargs)
            own = threading.get_ident()
            if own in aside:
                return original(*args, **kwargs)
            aside.add(own)
            try:
                return original(*args, **kwargs)
            finally:
                aside.discard(own)

        return call

    return decorate


class GarbageHook:
    """Records garbage collections that are long enough to matter."""

    def __init__(self, capture: Capture) -> None:
        self.source = capture.source("gc")
        self._least_ns = capture.config.min_gc_ns
        self._start_ns = -1
        self._start_cpu_ns = -1

    def install(self) -> None:
        """Listen to the collector."""
        gc.callbacks.append(self._collected)

    def remove(self) -> None:
        """Stop to listen."""
        self.source.on = False
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, _info: dict[str, Any]) -> None:
        """Note the start; record at the stop.

        This runs wherever an allocation starts a collection, in the middle of
        a record too: the recorder takes that, as it holds no lock.
        """
        if phase == "start":
            self._start_ns, self._start_cpu_ns = now_ns(), thread_cpu_ns()
        elif self._start_ns >= 0:
            start_ns, self._start_ns = self._start_ns, -1
            if self.source.on and now_ns() - start_ns >= self._least_ns:
                self.source.record_span(_COLLECTION, start_ns, self._start_cpu_ns)
