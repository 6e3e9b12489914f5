"""Of how many windows of steps the ranks of a run record one: what one asks for, all do.

Ranks that record other steps than their peers leave messages without their other end. So a
rank that is over its budget asks by a file in the run directory, and all ranks follow from a
step on that lies so far ahead that each has looked by then: some seconds where the directory is
on a disk of the host, whose files are seen at once, else a minute. In the first steps of a run each
rank on such a disk looks at every step, so that an order comes a few steps ahead. Where ranks do not
share that directory, those who do agree, and the others may record other steps.

Who asked for too little, as a few samples showed it, asks for more again. Then the orders of a new
round hold over those before, and whoever is over its budget asks in that round.
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
QUICK_STEPS = 20
"""So many first steps of a run are looked for orders one by one, where files are seen at once."""
QUICK_LOOK_NS = 50_000_000
QUICK_AHEAD_NS = 250_000_000
QUICK_AHEAD_STEPS = 3
"""In one of these the order is written, in the next one all look, in the third all have read it."""
MOST_ROUNDS = 4
"""So often a run may be ordered to record more again: a cost that comes and goes is thinned out in the end."""
_MOST_STEP = 1 << 40


class Sample(NamedTuple):
    """What all ranks of a run are to do."""

    one_in: int
    """Of so many windows one is recorded."""
    first_step: int
    """From this step on."""
    round: int = 0
    """How often more was ordered before."""

    def overrules(self, other: Sample | None) -> bool:
        """Tell whether this holds where both are ordered: that of a later round, in one round the lesser recording."""
        return other is None or (self.round, self.one_in) > (other.round, other.one_in)


ALL_STEPS = Sample(1, 0)
"""What they do before any order."""


class SampleOrder:
    """The order that holds in a run, as one rank knows it.

    Attributes:
        newest: What was ordered last; None before. Any thread may read it.
        is_own: Whether this rank has asked for that.
    """

    def __init__(self, listener: Callable[[Sample], None]) -> None:
        """Prepare; nothing is looked for before ``open``.

        Args:
            listener: Called when this rank's wish has become the order of all.
        """
        self.newest: Sample | None = None
        self.is_own = False
        self._is_local = False
        self._ahead_ns = AHEAD_NS
        self._look_ns = LOOK_NS
        self._listener = listener
        self._wish: Sample | None = None
        self._path: Path | None = None
        self._looked_ns = -LOOK_NS
        self._quick_end_ns = 0
        self._is_hastened = False

    def open(self, run_path: Path) -> None:
        """Look into this run directory from now on."""
        self._path = run_path / SAMPLING_FILE
        if slow_file_system_of(run_path) is None:
            self._is_local = True
            self._look_ns, self._ahead_ns = LOCAL_LOOK_NS, LOCAL_AHEAD_NS

    def ask(self, wish: Sample) -> None:
        """Ask for less or for more, from the training thread; nothing is written here."""
        self._wish = wish

    def is_coming(self, followed: Sample | None) -> bool:
        """Tell whether something else than what this rank follows is asked for or ordered already."""
        return any(
            found is not None and found.overrules(followed) for found in (self._wish, self.newest)
        )

    def ahead_ns(self, step: int, step_ns: int) -> int:
        """Return how long before its step an order is given.

        Args:
            step: The step in which it is asked for.
            step_ns: How long steps are.
        """
        is_quick = step <= QUICK_STEPS and self.newest is None and self._is_local
        return max(QUICK_AHEAD_NS, QUICK_AHEAD_STEPS * step_ns) if is_quick else self._ahead_ns

    def hasten(self, step: int) -> bool:
        """Tell at a border of the first steps whether the thread that looks is to do so at once."""
        if self.newest is not None or not self._is_local:
            return False
        time_ns = now_ns()
        if step <= QUICK_STEPS:
            self._quick_end_ns = time_ns + QUICK_AHEAD_NS
        elif step > QUICK_STEPS + QUICK_AHEAD_STEPS and time_ns > self._quick_end_ns:
            return False
        is_due = self._wish is not None or time_ns - self._looked_ns >= QUICK_LOOK_NS
        self._is_hastened |= is_due
        return is_due

    def look(self) -> None:
        """Read what others ordered and write what this rank wishes, in a thread that may touch files.

        Raises:
            OSError: The order cannot be written; this rank then follows it alone.
        """
        wish = self._wish
        is_early = wish is None and not self._is_hastened
        if self._path is None or (is_early and now_ns() - self._looked_ns < self._look_ns):
            return
        self._is_hastened = False
        self._looked_ns = now_ns()
        ordered, known = _read(self._path), self.newest
        if ordered is not None and ordered.overrules(known):
            self.newest, self.is_own = ordered, False
            known = ordered
        is_new = wish is not None and wish.overrules(known)
        if wish is not None and is_new:
            self.newest, self.is_own = wish, True
            known = wish
            self._listener(wish)
        self._wish = None
        # Two that ask at once may overwrite each other: what asks for least is to hold.
        is_lost = ordered is not None and known is not None and known.overrules(ordered)
        if known is not None and (is_new or is_lost):
            write_json(self._path, known._asdict())


def _read(path: Path) -> Sample | None:
    """Return what a file orders; None where there is none, or none that makes sense."""
    try:
        found = read_json(path)
    except RunDirectoryError:
        return None
    one_in, first_step = found.get("one_in"), found.get("first_step")
    times = found.get("round", 0)
    if type(one_in) is not int or type(first_step) is not int or type(times) is not int:
        return None
    makes_sense = 0 <= first_step <= _MOST_STEP and 0 <= times <= MOST_ROUNDS
    # All is recorded before an order.
    makes_sense &= one_in in (ONE_IN if times else ONE_IN[1:])
    return Sample(one_in, first_step, times) if makes_sense else None
