"""Descriptors that are kept for long, in a process that is not ours.

A program that makes itself a daemon closes whatever is open (``os.closerange``), and the next file
that it opens gets a number that was ours. To write there, or to close it, would be to its harm.
"""

from __future__ import annotations

import os


class OwnDescriptor:
    """A descriptor that is used only while it is the file that it was in the beginning."""

    __slots__ = ("_file", "number")

    def __init__(self, number: int) -> None:
        """Take an open descriptor over."""
        self.number = number
        self._file = _file_of(number)

    @property
    def is_open(self) -> bool:
        """Tell whether the number still stands for that file."""
        return self._file is not None and _file_of(self.number) == self._file

    def close(self) -> None:
        """Close it, if it is still ours; a second call does nothing."""
        if self.is_open:
            os.close(self.number)
        self._file = None


def _file_of(number: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino
