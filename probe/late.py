"""Begins to record in a process that runs already, from a thread that is not its own."""

from __future__ import annotations

from . import api


def begin() -> None:
    """Open the control socket and have the main thread put the hooks in; never raises."""
    api.stand_by()
    api.record_when_possible()
