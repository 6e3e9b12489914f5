"""Work that nobody waits for yet: what the next click asks for, one thing after the other."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

_LOG = logging.getLogger(__name__)


class Background:
    """One thread that works through what was asked for; nothing is asked for twice at a time."""

    def __init__(self) -> None:
        """Begin without any work, and without a thread."""
        self._lock = threading.Lock()
        self._work: OrderedDict[Hashable, tuple[float, Callable[[], object]]] = OrderedDict()
        self._is_working = False

    def later(self, key: Hashable, work: Callable[[], object], after_s: float = 0.0) -> None:
        """Have something done after a while; not where the same waits already.

        Args:
            key: What it is.
            work: Does it; what it raises is logged.
            after_s: For how long the reader's own requests go first.
        """
        with self._lock:
            self._work.setdefault(key, (after_s, work))
            if not self._is_working:
                self._is_working = True
                threading.Thread(target=self._run, name="background", daemon=True).start()

    def _run(self) -> None:
        rest = threading.Event()
        while True:
            with self._lock:
                if not self._work:
                    self._is_working = False
                    return
                key, (after_s, work) = next(iter(self._work.items()))
            rest.wait(after_s)
            try:
                work()
            except Exception:  # noqa: BLE001 - whoever asks for it gets the error
                _LOG.debug("%s was not prepared", key, exc_info=True)
            with self._lock:
                self._work.pop(key, None)
