"""Which processes ran the operators of a file: a profiler records its own alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .events import EventContent

_LEAST_FRAC = 0.05
"""Share of the operators below which a process is a slip of whoever wrote the file."""


class Processes:
    """Counts operators by the process that ran them."""

    def __init__(self) -> None:
        self._count: Counter[object] = Counter()

    def add(self, rows: Sequence[EventContent]) -> None:
        """Take a batch of operators; of a process that is no number or text, nothing."""
        try:
            self._count.update([event.pid for event in rows])
        except TypeError:
            return

    def found(self) -> tuple[str, ...]:
        """Return the processes that ran a good part of the operators."""
        least = _LEAST_FRAC * self._count.total()
        return tuple(str(process) for process, count in self._count.items() if count >= least)
