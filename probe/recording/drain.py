"""Takes newly committed records out of the ring, in order and in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..schema.slots import FIRST_SEQ, committed, slot_dtype
from .ring import RingWriter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BATCH_SLOTS = 2048
"""Slots copied at once: 256 KB."""


class RingDrain:
    """Follows the sequence numbers of a ring while other threads write it.

    A slot is taken if it shows the expected commit word before it was copied, and
    the expected front after. Any other slot is one of three: not written yet (stop there),
    overwritten because the drain is a whole lap behind (count, skip ahead), or
    never finished because an exception hit its writer (count, step over it once
    it was found unfinished twice with finished ones behind it).
    """

    def __init__(self, ring: RingWriter) -> None:
        """Start before the first record."""
        self._slots_source = ring.slots
        self._slot_count = ring.slot_count
        self._slots: NDArray[np.void] | None = None
        self._next = FIRST_SEQ
        self._unfinished = -1
        self._losses: Counter[str] = Counter()

    def has(self, count: int) -> bool:
        """Tell whether at least this many records wait."""
        seq = self._next + count - 1
        return bool(self._view()["commit"][seq % self._slot_count] >= seq)

    def collect(self, *, final: bool) -> NDArray[np.void] | None:
        """Return a copy of the next committed slots, or None if there are none.

        Args:
            final: Step over unfinished records at once.
        """
        import numpy as np

        slots = self._view()
        while True:
            expected = np.arange(self._next, self._next + min(_BATCH_SLOTS, self._slot_count))
            places = expected % self._slot_count
            whole = slots["commit"][places] == expected
            copied = slots[places]
            # Who overwrites a slot changes its front first.
            taken = whole & (slots["slot_seq"][places] == expected)
            run = len(taken) if taken.all() else int(np.argmin(taken))
            self._next += run
            if run:
                return copied[:run]
            later = bool(taken.any())
            if not self._skip(later=later, final=final):
                return None

    def held(self) -> Iterator[NDArray[np.void]]:
        """Yield copies of all committed slots that the ring holds, drained or not."""
        slots = self._view()
        for first in range(0, self._slot_count, _BATCH_SLOTS):
            window = slots[first : first + _BATCH_SLOTS]
            commit = window["commit"].copy()
            copied = window.copy()
            untouched = (commit == copied["commit"]) & (commit == window["slot_seq"])
            yield copied[committed(copied) & untouched]

    def take_losses(self) -> dict[str, int]:
        """Return the records lost since the last call, by counter name."""
        losses, self._losses = dict(self._losses), Counter()
        return losses

    def release(self) -> None:
        """Let go of the ring; nothing can be collected any more."""
        self._slots = None
        self._slots_source = memoryview(b"")

    def _skip(self, *, later: bool, final: bool) -> bool:
        """Step over what cannot be taken; return False where the drain must wait."""
        slots = self._view()
        place = self._next % self._slot_count
        seen = max(int(slots["commit"][place]), int(slots["slot_seq"][place]))
        if seen > self._next:
            newest = int(slots["commit"].max())
            # Leave the writers room to go on while the rest is copied.
            ahead = newest - self._slot_count + self._slot_count // 8
            ahead = max(ahead, self._next + 1)
            self._losses["ring_overwritten_dropped"] += ahead - self._next
            self._next = ahead
            return True
        if not later:
            return False
        if final or self._unfinished == self._next:
            self._losses["unfinished_dropped"] += 1
            self._next += 1
            return True
        self._unfinished = self._next
        return False

    def _view(self) -> NDArray[np.void]:
        if self._slots is None:
            import numpy as np

            self._slots = np.frombuffer(self._slots_source, dtype=slot_dtype())
        return self._slots
