"""Which processes ran the operators of a file, or called the device: a profiler records its own alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .events import EventContent

_LEAST_FRAC = 0.05
"""Share of the operators below which a process is a slip of whoever wrote the file."""


class Processes:
    """Counts operators, and calls, by the process that they are of.

    The two are counted apart: some profilers give calls a process of their own.
    """

    def __init__(self) -> None:
        self._operators: Counter[object] = Counter()
        self._calls: Counter[object] = Counter()

    def add(self, rows: Sequence[EventContent]) -> None:
        """Take a batch of operators; of a process that is no number or text, nothing."""
        _add(self._operators, rows)

    def add_calls(self, rows: Sequence[EventContent]) -> None:
        """Take a batch of calls likewise."""
        _add(self._calls, rows)

    def found(self) -> tuple[str, ...]:
        """Return the processes that ran a good part of the operators, or of the calls if these are more."""
        return max(_found(self._operators), _found(self._calls), key=len)


def _add(counter: Counter[object], rows: Sequence[EventContent]) -> None:
    try:
        counter.update([event.pid for event in rows])
    except TypeError:
        return


def _found(counter: Counter[object]) -> tuple[str, ...]:
    least = _LEAST_FRAC * counter.total()
    return tuple(str(process) for process, count in counter.items() if count >= least)
