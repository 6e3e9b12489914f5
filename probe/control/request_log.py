"""The requests that a process got, for its capture."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ..clock import unix_ns

_KEPT = 256
_OUTCOME_CHARACTERS = 120
"""A noisy client can take no more memory than so."""


class RequestLog:
    """The newest requests, oldest first, and how many there were.

    Attributes:
        count: All requests so far.
        errors: Requests in which the probe itself failed.
    """

    def __init__(self) -> None:
        self.count = 0
        self.errors = 0
        self._kept: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._listener: Callable[[RequestLog], None] | None = None

    def tell(self, listener: Callable[[RequestLog], None] | None) -> None:
        """Call a function after each request; None ends that."""
        self._listener = listener

    def add(self, verb: str, uid: int, pid: int, outcome: str) -> None:
        """Note a request.

        Args:
            verb: Its verb, ``?`` for one that does not exist.
            uid: User who asked.
            pid: Process that asked.
            outcome: What became of it, one clause.
        """
        self.count += 1
        self._kept.append(
            {
                "unix_ns": unix_ns(),
                "verb": verb,
                "uid": uid,
                "pid": pid,
                "outcome": outcome[:_OUTCOME_CHARACTERS],
            }
        )
        if self._listener is not None:
            self._listener(self)

    def failed(self, _error: BaseException) -> None:
        """Count an error of the probe."""
        self.errors += 1

    def to_json(self) -> list[dict[str, Any]]:
        """Return the newest requests, at most 256."""
        return list(self._kept)
