"""The stacks of a process that a signal ends in the middle of its work, as the interpreter writes them.

After SIGSEGV or SIGABRT no Python runs any more. ``faulthandler`` writes the stacks of all threads in C, and the process
then ends as it would have. It has one file: a program that has switched it on keeps its own, before us or after.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..schema.manifest import FATAL_STACK_NAME, FILE_MODE
from ..schema.reading import OwnDescriptor

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class FatalStack:
    """Has the stacks written into the directory of a rank, until ``close``."""

    def __init__(self) -> None:
        """Prepare nothing yet."""
        self._file: OwnDescriptor | None = None
        self._enable: Callable[..., Any] = faulthandler.enable
        self._is_in_use = False

    def open(self, directory: Path) -> None:
        """Have them written from now on, unless the program has seen to that.

        Raises:
            OSError: The file cannot be made.
        """
        if self._file is not None or faulthandler.is_enabled():
            return
        descriptor = os.open(directory / FATAL_STACK_NAME, _FLAGS, FILE_MODE)
        self._file, self._is_in_use = OwnDescriptor(descriptor), True
        self._enable = faulthandler.enable
        self._enable(descriptor, all_threads=True)
        # Nothing else tells whose file is in use later.
        faulthandler.enable = self._of_program

    def _of_program(self, *args: Any, **kwargs: Any) -> Any:
        """Switch it on for the program, which has its own file from now on."""
        self._is_in_use = False
        return self._enable(*args, **kwargs)

    def look(self) -> None:
        """Have nothing written where the program has closed our file: its number may be that of another one."""
        if self._file is not None and not self._file.is_open:
            self.close()

    def close(self) -> None:
        """Have nothing written any more, and leave nothing behind; a program that has its own file keeps that."""
        if self._file is None:
            return
        if faulthandler.enable == self._of_program:
            faulthandler.enable = self._enable
        if self._is_in_use:
            faulthandler.disable()
        self._file.close()
        self._file, self._is_in_use = None, False
