"""The stacks of a process that a signal ends in the middle of its work, as the interpreter writes them.

After SIGSEGV or SIGABRT no Python runs any more. ``faulthandler`` writes the stacks of all threads in C, and the process
then ends as it would have. It has one file: a program that has switched it on keeps its own, before us or after.
"""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path

from ..schema.manifest import FATAL_STACK_NAME, FILE_MODE
from ..schema.reading import OwnDescriptor

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class FatalStack:
    """Has the stacks written into the directory of a rank, until ``close``."""

    def __init__(self) -> None:
        """Prepare nothing yet."""
        self._file: OwnDescriptor | None = None

    def open(self, directory: Path) -> None:
        """Have them written from now on, unless the program has seen to that.

        Raises:
            OSError: The file cannot be made.
        """
        if self._file is not None or faulthandler.is_enabled():
            return
        descriptor = os.open(directory / FATAL_STACK_NAME, _FLAGS, FILE_MODE)
        self._file = OwnDescriptor(descriptor)
        faulthandler.enable(descriptor, all_threads=True)

    def look(self) -> None:
        """Have nothing written where the program has closed our file: its number may be that of another one."""
        if self._file is not None and not self._file.is_open:
            self._file = None
            faulthandler.disable()

    def close(self) -> None:
        """Have nothing written any more; whose file is in use now is not known, so ours leads to nowhere."""
        self.look()
        file, self._file = self._file, None
        if file is not None:
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, file.number, inheritable=False)
            os.close(nowhere)
