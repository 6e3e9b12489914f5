"""Tests that must have the machine for themselves, among others that run beside each other."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def turn(place: Path, *, alone: bool) -> Iterator[None]:
    """Wait for a turn: beside others, or alone; processes that name the same place take turns.

    Who waits to be alone stands in the door, so that no other comes in meanwhile.
    """
    with ExitStack() as held:
        door, room = (
            held.enter_context(open(place.with_suffix(name), "w", encoding="ascii"))
            for name in (".door", ".room")
        )
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
