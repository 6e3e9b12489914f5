"""What the probe says on the stderr of a process that is not its own."""

from __future__ import annotations

import sys

from ..schema.printable import printable
from .program_signals import pass_on


def tell(clause: str) -> None:
    """Write one line to stderr, which may be closed, full or replaced by anything.

    Raises:
        BaseException: Only what a signal handler of the program raised meanwhile.
    """
    try:
        sys.stderr.write(f"meshscope: {printable(clause)}\n")
    except Exception as error:  # noqa: BLE001 - training goes on
        pass_on(error)
