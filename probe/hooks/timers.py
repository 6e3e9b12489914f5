"""What times spans and operations on a device, as the hooks that find them see it."""

from __future__ import annotations

from typing import Any, Protocol


class SpanTimer(Protocol):
    """Times spans on the device."""

    def begin(self) -> Any:
        """Note the begin of a span; return what its end needs."""

    def end(self, begin: Any, event_id: int) -> None:
        """Note the end of a span, whose record is ``event_id``."""


class WorkTimer(Protocol):
    """Times operations on the device."""

    def begin(self) -> Any:
        """Note that an operation is called now; return what ``issued`` needs."""

    def issued(self, begin: Any, boxed: Any, event_id: int, *, receives: bool) -> None:
        """Take an operation that was called.

        Args:
            begin: What ``begin`` returned.
            boxed: Its handle, None if it has none.
            event_id: Its record.
            receives: Whether it is a receive.
        """

    def wait_begins(self, work: Any) -> Any:
        """Note that a stream begins to wait for an operation; None if it is not known."""

    def wait_ended(self, begin: Any) -> None:
        """Note that the wait was queued that ``wait_begins`` has noted."""
