"""Where a rank was when a signal ended it, by what the interpreter wrote of its threads (``recording.fatal_stack``)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV
from typing import Any

from ..schema.manifest import FATAL_STACK_NAME, LAST_STACK_KEY
from ..schema.reading import open_file
from ..schema.terms import StackMoment

_SIGNAL_BITS = 0x7F
"""Of what ``wait`` tells; 0 where no signal ended the process."""
_FATAL = frozenset({SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL})
"""Signals after which the interpreter writes stacks."""
_MOST_BYTES = 1 << 20
"""Larger files are none of the interpreter's: it writes at most 100 functions of 100 threads."""
_BEGIN = "Fatal Python error: "
_CURRENT = "Current thread"
"""How the thread is called in which the signal came; it has no entry if it runs no Python."""
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x.*$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d{1,9}) in (.+)$', re.MULTILINE)
_OWN = re.compile(r"[/\\]meshscope[/\\]probe[/\\]|[/\\]torch[/\\]_ops\.py$")
"""Files whose functions are left out, as in stacks that the probe takes itself."""


def add_fatal_stack(
    directory: Path, manifest: dict[str, Any] | None, time_ns: int | None, wait_status: int | None
) -> None:
    """Put the stack among the annotations of a manifest, in place of what the rank noted before its end.

    What was written of a rank that a signal is known not to have ended is of something else: some libraries catch one.

    Args:
        directory: That of the part.
        manifest: Its manifest, which is changed; None if it cannot be read.
        time_ns: When the process ended, or was last known to be there.
        wait_status: How it ended, as ``wait`` tells; None where nobody saw it.
    """
    is_fatal = wait_status is None or wait_status & _SIGNAL_BITS in _FATAL
    if manifest is None or time_ns is None or not is_fatal or manifest.get("closed_unix_ns"):
        return
    notes = manifest.get("annotations")
    noted = notes.get(LAST_STACK_KEY) if isinstance(notes, dict) else None
    moment = noted.get("moment") if isinstance(noted, dict) else None
    stack = _stack(directory) if moment in (None, StackMoment.OTHER_DIED) else []
    if stack:
        note = {"time_ns": time_ns, "moment": StackMoment.FATAL_SIGNAL.value, "stack": stack}
        manifest["annotations"] = (notes if isinstance(notes, dict) else {}) | {
            LAST_STACK_KEY: note
        }


def _stack(directory: Path) -> list[list[object]]:
    """Return function, file and line of the thread in which the signal came, else of the first one; [] without any."""
    try:
        with open_file(directory / FATAL_STACK_NAME, most_bytes=_MOST_BYTES) as file:
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    threads = dict(_threads(text[max(text.rfind(_BEGIN), 0) :]))
    # The newest thread is written first.
    return threads.get(_CURRENT) or next(reversed(threads.values()), [])


def _threads(text: str) -> Iterator[tuple[str, list[list[object]]]]:
    """Yield how each thread is called and the functions that it was in, the innermost first."""
    names = list(_THREAD.finditer(text))
    borders = [*(name.start() for name in names), len(text)]
    for name, end in zip(names, borders[1:], strict=True):
        frames = _FRAME.finditer(text, name.end(), end)
        own = [[one[3], one[1], int(one[2])] for one in frames if not _OWN.search(one[1])]
        called = name[0]
        yield _CURRENT if called.startswith(_CURRENT) else called, own
