"""Host time that keeps the device waiting: data loading, checkpoints, garbage collection."""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from ..clock import now_ns, thread_cpu_ns
from ..compat.torch_names import data_loader_iterator_class
from ..recording.record_heads import span_head
from ..schema.records import SPAN_CODES
from ..schema.terms import SpanKind
from ..watches.imports import ImportWatch
from .base import Capture, Patches, timed

_CHECKPOINT_PACKAGE = "torch.distributed.checkpoint"
_CHECKPOINT_MODULE = f"{_CHECKPOINT_PACKAGE}.state_dict_saver"
_SAVING_THREAD = "AsyncCheckpointExecutor"
"""How torch names the thread that writes an asynchronous save."""
_MOST_COLLECTIONS = 4096
"""Of one step that are remembered, the newest; a step has some hundreds."""


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

        self._patches.replace_alike((torch.serialization, torch), "save", self._timed)
        self._watch.when_imported(_CHECKPOINT_PACKAGE, self._wrap_distributed, self.source)

    def remove(self) -> None:
        """Restore the saving functions."""
        self.source.on = False
        self._patches.restore()

    def _wrap_distributed(self) -> None:
        """Wrap each function in its module and where the package offers it."""
        import sys

        modules = (sys.modules[_CHECKPOINT_MODULE], sys.modules[_CHECKPOINT_PACKAGE])
        for name in ("save", "async_save"):
            if name in vars(modules[0]):
                self._patches.replace_alike(modules, name, self._timed)


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
    """Records garbage collections that are long enough to matter, at the end of their step.

    The collector calls nothing that is written in Python: that would handle a signal which
    came during the collection, and what its handler raises (``KeyboardInterrupt``) is lost
    there. So both times are noted by parts of the interpreter alone.
    """

    def __init__(self, capture: Capture) -> None:
        self.source = capture.source("gc")
        self._capture = capture
        self._starts: deque[tuple[int, int]] = deque(maxlen=_MOST_COLLECTIONS)
        self._stops: deque[tuple[int, int]] = deque(maxlen=_MOST_COLLECTIONS)
        phases = {"start": _noting(self._starts), "stop": _noting(self._stops)}
        # Called as ``(phase, what was collected)``: the second is the default of ``getattr``.
        self._collected = partial(getattr, type("Phases", (), phases)())

    def install(self) -> None:
        """Listen to the collector."""
        gc.callbacks.append(self._collected)

    def remove(self) -> None:
        """Stop to listen."""
        self.source.on = False
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)
        self.record()

    def record(self) -> None:
        """Record the collections since the last call of this."""
        for _ in range(len(self._stops)):
            start_ns, start_cpu_ns = self._starts.popleft()
            end_ns, end_cpu_ns = self._stops.popleft()
            if end_ns - start_ns >= self._capture.config.min_gc_ns:
                self._capture.recorder.record_span(
                    span_head(SPAN_CODES[SpanKind.GC], -1, -1),
                    start_ns,
                    end_ns - start_ns,
                    end_cpu_ns - start_cpu_ns,
                )


def _noting(times: deque[tuple[int, int]]) -> property:
    """Return an attribute of which each look adds the time, and the CPU time of the thread."""
    both = zip(iter(now_ns, None), iter(thread_cpu_ns, None), strict=False)
    return property(partial(next, map(times.append, both)))
