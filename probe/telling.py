"""What the probe says on the stderr of a process that is not its own."""

from __future__ import annotations

import sys
from contextlib import suppress

from .schema.printable import printable


def tell(clause: str) -> None:
    """Write one line to stderr; never raises, as it may be closed, full or replaced by anything."""
    with suppress(Exception):
        sys.stderr.write(f"meshscope: {printable(clause)}\n")
