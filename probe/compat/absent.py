"""Why a hook is absent, or recorded not all: a reason that the manifest keeps as a code with values."""

from __future__ import annotations

from ..schema.message import Message, message


class UnsupportedError(Exception):
    """This torch lacks what a hook needs."""

    def __init__(self, reason: Message) -> None:
        super().__init__(reason)
        self.reason = reason
        """What it lacks, as the manifest keeps it."""


class NotApplicableError(UnsupportedError):
    """There is nothing here for a hook to record, so that nothing is missing without it."""


def lacks(name: str) -> UnsupportedError:
    """Return the error of a name that this torch or Python does not have."""
    return UnsupportedError(message("absent.name", name=name))


def error_reason(error: BaseException) -> Message:
    """Return an error of the system, of torch or of the probe as such a reason."""
    return message("absent.error", kind=type(error).__name__, error=str(error))
