"""Begins to record in a process that runs already, from a thread that is not its own."""

from __future__ import annotations

from .. import api
from ..schema.errors import MeshscopeError


def begin() -> str:
    """Open the control socket and have the main thread put the hooks in; never raises.

    Returns:
        Why nothing is to be recorded here, one clause; empty where it is.
    """
    try:
        api.stand_by()
        return api.record_when_possible()
    except MeshscopeError as error:
        return str(error)
