"""Of how many windows of steps the ranks of a run record one: what one asks for, all do.

Ranks that record other steps than their peers leave messages without their other end. So a
rank that is over its budget asks by a file in the run directory, and all ranks follow from a
step on that lies so far ahead that each has looked by then: some seconds where the directory is
on a disk of the host, whose files are seen at once, else a minute. Where ranks do not share that
directory, those who do agree, and the others may record other steps.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..clock import now_ns
from ..recording.ring_copy import slow_file_system_of
from ..schema.errors import RunDirectoryError
from ..schema.manifest import read_json, write_json
from ..schema.sampling import ONE_IN

SAMPLING_FILE = "sampling.json"
LOOK_NS = 10_000_000_000
"""Longest time between two looks for the file: it may lie on a file system that serves thousands."""
AHEAD_NS = 60_000_000_000
"""So long before its step an order is given: file systems may show a new file half a minute late."""
LOCAL_LOOK_NS = 250_000_000
LOCAL_AHEAD_NS = 1_500_000_000
"""Both on a disk of this host. A rank writes and looks when its writer wakes, twice a second."""
_MOST_STEP = 1 << 40


class Sample(NamedTuple):
    """What all ranks of a run are to do."""

    one_in: int
    """Of so many windows one is recorded."""
    first_step: int
    """From this step on, with which such a window begins."""


class SampleOrder:
    """The order that holds in a run, as one rank knows it.

    Attributes:
        newest: What was ordered last; None before. Any thread may read it.
        ahead_ns: So long before its step an order is given.
    """

    def __init__(self, listener: Callable[[Sample], None]) -> None:
        """Prepare; nothing is looked for before ``open``.

        Args:
            listener: Called when this rank's wish has become the order of all.
        """
        self.newest: Sample | None = None
        self.ahead_ns = AHEAD_NS
        self._look_ns = LOOK_NS
        self._listener = listener
        self._wish: Sample | None = None
        self._path: Path | None = None
        self._looked_ns = -LOOK_NS

    def open(self, run_path: Path) -> None:
        """Look into this run directory from now on."""
        self._path = run_path / SAMPLING_FILE
        if slow_file_system_of(run_path) is None:
            self._look_ns, self.ahead_ns = LOCAL_LOOK_NS, LOCAL_AHEAD_NS

    def ask(self, wish: Sample) -> None:
        """Ask for less, from the training thread; nothing is written here."""
        self._wish = wish

    def is_coming(self, one_in: int) -> bool:
        """Tell whether less than one window in so many is asked for or ordered already."""
        return any(
            found is not None and found.one_in > one_in for found in (self._wish, self.newest)
        )

    def look(self) -> None:
        """Read what others ordered and write what this rank wishes, in a thread that may touch files.

        Raises:
            OSError: The order cannot be written; this rank then follows it alone.
        """
        wish = self._wish
        if self._path is None or (wish is None and now_ns() - self._looked_ns < self._look_ns):
            return
        self._looked_ns = now_ns()
        ordered, known = _read(self._path), self.newest
        if ordered is not None and (known is None or ordered.one_in > known.one_in):
            self.newest = known = ordered
        is_new = wish is not None and (known is None or wish.one_in > known.one_in)
        if wish is not None and is_new:
            self.newest = known = wish
            self._listener(wish)
        self._wish = None
        # Two that ask at once may overwrite each other: what asks for least is to hold.
        is_lost = ordered is not None and known is not None and ordered.one_in < known.one_in
        if known is not None and (is_new or is_lost):
            write_json(self._path, known._asdict())


def _read(path: Path) -> Sample | None:
    """Return what a file orders; None where there is none, or none that makes sense."""
    try:
        found = read_json(path)
    except RunDirectoryError:
        return None
    one_in, first_step = (found.get(name) for name in Sample._fields)
    if type(one_in) is not int or one_in not in ONE_IN[1:] or type(first_step) is not int:
        return None
    return Sample(one_in, first_step) if 0 <= first_step <= _MOST_STEP else None
